"""A searcher that begins with what earlier sweeps found, on real trainings; trials taken over by one that searches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.domains import choices_of
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.ids import config_hash
from sweeper.execution.reuse import lessons
from sweeper.figures import hyperparameters
from sweeper.journal.journal import read_journal
from sweeper.journal.state import fold
from sweeper.planning.preparation import dataset_facts
from sweeper.reporting.page import write_report
from sweeper.reporting.summary import searcher_lines
from sweeper.results import load
from sweeper.scheduling.base import audit
from sweeper.search.base import audit_suggestions
from sweeper.space.loading import load_spec, searcher_for
from sweeper.storage.sweeps import Sweep
from tests.running import reports
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields

SEARCHED = ("searcher=optuna", "searcher.startup=2", "samples=6")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inline, Sweep]:
    """A finished random sweep, which tests only read."""
    inline = Inline(tmp_path_factory.mktemp("earlier"))
    return inline, inline.run("earlier", "samples=8")


@pytest.fixture(scope="module")
def searched(earlier: tuple[Inline, Sweep]) -> Sweep:
    """A finished search that knew nothing, which tests only read."""
    return earlier[0].run("searched", *SEARCHED)


def _lessons(inline: Inline, *overrides: str) -> list[Any]:
    spec = load_spec(inline._space, [*SEARCHED, "searcher.warm_start=[earlier]", *overrides])
    return lessons(spec, dataset_facts(inline.dataset), inline.output)


def test_it_learns_what_finished_in_its_space_and_counts_the_rest(earlier: tuple[Inline, Sweep]) -> None:
    inline, sweep = earlier
    trials = fold(read_journal(sweep.paths.journal), 8).trials
    finished = {index: trial for index, trial in trials.items() if trial.status == "completed"}
    assert 0 < len(finished) < 8, "some were stopped early, which teach nothing"
    (lesson,) = _lessons(inline)
    assert (len(lesson.observations), lesson.outside) == (len(finished), 0)
    node = sweep.spec.space
    for each, (index, trial) in zip(lesson.observations, finished.items(), strict=True):
        assert each.trial == f"c{index:05d}" and each.value == trial.objective
        assert each.choices == choices_of(node, sweep.configurations[index])
    rates = [sweep.configurations[index]["optimizer"]["lr"] for index in finished]
    within = sum(rate <= min(rates) for rate in rates)
    (lesson,) = _lessons(inline, f"space.optimizer.lr.loguniform=[0.01, {min(rates)}]")
    assert (len(lesson.observations), lesson.outside) == (within, len(finished) - within)


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("objective.metric=val_accuracy", "its objective is min val_nll, not min val_accuracy"),
        ("objective.mode=max", "its objective is min val_nll, not max val_nll"),
        ("scheduler.max_epochs=27", "its max_epochs is 9, not 27"),
        ("dataset.label_noise=0.1", "its data set or split differs"),
    ],
)
def test_sweeps_that_measured_something_else_are_refused(
    earlier: tuple[Inline, Sweep], override: str, reason: str
) -> None:
    with pytest.raises(InvalidSearchSpace, match=reason):
        _lessons(earlier[0], override)


def test_every_name_that_teaches_nothing_is_told_at_once(earlier: tuple[Inline, Sweep]) -> None:
    with pytest.raises(InvalidSearchSpace) as raised:
        _lessons(earlier[0], "searcher.warm_start=[erlier, earlier, nothing]", "scheduler.max_epochs=27")
    assert [fault.path for fault in raised.value.faults] == [f"searcher.warm_start[{place}]" for place in range(3)]
    assert "'earlier'" in raised.value.faults[0].remedy


def test_what_was_learned_is_in_the_journal_the_manifest_and_the_summary(
    earlier: tuple[Inline, Sweep], searched: Sweep, tmp_path: Path
) -> None:
    warm = earlier[0].run("warm", *SEARCHED, "searcher.warm_start=[earlier]")
    records = list(read_journal(warm.paths.journal))
    assert [record.kind for record in records[:3]] == ["attempt", "learned", "suggested"]
    number = len(fields(records[1])["observations"])
    manifest = json.loads(warm.paths.manifest.read_text())
    assert manifest["warm_start"] == [{"sweep": "earlier", "observations": number, "outside": 0}]
    assert manifest["versions"]["optuna"]
    lines = searcher_lines(load(warm.paths.root))
    assert lines == [
        "optuna chose 6 configurations: 2 trials at random, then from what was observed",
        f"it started from {number} finished trials of earlier",
    ]
    # Two startup trials are known already, so nothing is random: it differs from the one that knew nothing.
    assert _suggestions(warm)[0] != _suggestions(searched)[0]
    # The journal is enough: a copy elsewhere, without the earlier sweep, is audited alike.
    moved = shutil.copytree(warm.paths.journal, tmp_path / "journal")
    audited = audit_suggestions(lambda: searcher_for(warm.spec), read_journal(moved))
    assert (audited.checked, audited.differences) == (6, [])
    assert not audit(warm.spec.schedule, records)[1]


def _suggestions(sweep: Sweep) -> list[Any]:
    return [fields(r)["choices"] for r in read_journal(sweep.paths.journal) if r.kind == "suggested"]


@pytest.mark.integration
def test_a_longer_search_takes_over_what_a_shorter_one_trained(tmp_path: Path) -> None:
    """One at a time a search repeats itself, so the first trials of a longer one are those of the shorter."""
    inline = Inline(tmp_path)
    short = inline.run("short", *SEARCHED)
    whole = inline.run("whole", *SEARCHED, "samples=9")
    extended = inline.run("extended", *SEARCHED, "samples=9", named=("short",))
    assert inline.trained == [6, 7, 8]
    assert _suggestions(extended) == _suggestions(whole) and _suggestions(whole)[:6] == _suggestions(short)
    assert [fields(r)["decision"] for r in reports(extended.paths)] == [
        fields(r)["decision"] for r in reports(whole.paths)
    ]
    # A random sweep has other configurations at the same places, but for none of them the same.
    inline.run("random", "samples=9", named=("short",))
    assert len(inline.trained) == 9


def test_tables_and_report_have_every_configuration_that_was_chosen(
    earlier: tuple[Inline, Sweep], searched: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = load(searched.paths.root)
    rows = results.rows("SELECT config_hash, config_optimizer_lr AS lr FROM trials ORDER BY trial, replicate")
    known = [searched.configurations[index] for index in range(6)]
    assert [row["config_hash"] for row in rows[::2]] == [config_hash(values) for values in known]
    assert [row["lr"] for row in rows[::2]] == [values["optimizer"]["lr"] for values in known]
    write_report(searched.paths.root)
    assert searched.paths.report.stat().st_size > 100_000
    monkeypatch.setattr(hyperparameters, "MINIMUM_TRIALS", 6)
    captions = [hyperparameters.draw_importance(each).caption for each in (results, load(earlier[1].paths.root))]
    assert ["A searcher chose these configurations" in caption for caption in captions] == [True, False]
