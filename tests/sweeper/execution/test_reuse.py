"""Trials taken over from another sweep: the same numbers and decisions as if trained here, or not taken over at all."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core import ids
from sweeper.core.errors import SweeperError
from sweeper.core.ids import config_hash, replicate_seed, trial_name
from sweeper.execution.reuse import MANIFEST_KEY, choose_sources, reusable_trials
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.state import ENDED, fold
from sweeper.monitoring.status import status_of, statuses_table
from sweeper.planning.preparation import dataset_facts
from sweeper.reporting.summary import reused_lines
from sweeper.results import load
from sweeper.scheduling.base import audit
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.storage.sweeps import Sweep
from tests.faults.reference import SMALL, decisions_of
from tests.running import metrics_by_key, reports, write_space
from tests.seeds import drawn_seed
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.records import fields, made_body

TABLES = ("epochs", "evaluations", "reliability", "predictions")


@pytest.fixture
def inline(tmp_path: Path) -> Inline:
    return Inline(tmp_path)


def rows(sweep: Sweep, table: str) -> str:
    """Return a table as text, in which a NaN equals a NaN; without what training took of time."""
    left_out = "EXCLUDE (seconds)" if table == "epochs" else ""
    return repr(load(sweep.paths.root).rows(f"SELECT * {left_out} FROM {table} ORDER BY ALL"))


@pytest.mark.integration
def test_an_extended_sweep_trains_only_what_is_new_and_equals_one_that_trained_everything(inline: Inline) -> None:
    first = inline.run("first")
    whole = inline.run("whole", "samples=6")
    extended = inline.run("extended", "samples=6", named=("first",))
    assert inline.trained == [4, 5]
    records = list(read_journal(extended.paths.journal))
    assert decisions_of(reports(extended.paths)) == decisions_of(reports(whole.paths))
    checked, differences = audit(extended.spec.schedule, records)
    assert checked and not differences
    for table in TABLES:
        assert rows(extended, table) == rows(whole, table), table
    results = load(extended.paths.root)
    marks = results.rows("SELECT trial, reused_from, reused_epochs = epochs AS whole FROM trials WHERE replicate = 0")
    assert [row["reused_from"] for row in sorted(marks, key=lambda row: row["trial"])] == ["first"] * 4 + [None] * 2
    assert reused_lines(results) == ["4 trials reused from first"]
    origins = [fields(r)["reused"]["record"] for r in records if fields(r).get("reused")]
    assert origins == [r.sequence for r in read_journal(first.paths.journal) if r.kind == "report"]
    cells = [list(column.cells) for column in statuses_table(status_of(inline.output, "extended")).columns]
    assert ["6 (4 reused)"] in cells


def test_a_trial_that_goes_further_here_keeps_its_reports_and_is_trained_again(inline: Inline) -> None:
    inline.run("first")
    turned = inline.run("turned", "objective.mode=max", every=True)
    assert inline.trained, "what was worst goes furthest now"
    alone = inline.run("alone", "objective.mode=max")
    assert not audit(turned.spec.schedule, read_journal(turned.paths.journal))[1]
    assert all(trial.status in ENDED for trial in fold(read_journal(turned.paths.journal), 4).trials.values())
    measured, expected = metrics_by_key(reports(turned.paths)), metrics_by_key(reports(alone.paths))
    shared = measured.keys() & expected.keys()
    assert len(shared) > 8 and repr([measured[key] for key in shared]) == repr([expected[key] for key in shared])
    further = load(turned.paths.root).rows("SELECT DISTINCT trial FROM trials WHERE reused_epochs < epochs")
    assert sorted(row["trial"] for row in further) == [trial_name(index) for index in sorted(inline_trained(turned))]


def inline_trained(sweep: Sweep) -> set[int]:
    """Return the configurations that have reports of their own beside those that were taken over."""
    own = {fields(r)["configuration"] for r in reports(sweep.paths) if "reused" not in fields(r)}
    return own & {fields(r)["configuration"] for r in reports(sweep.paths) if "reused" in fields(r)}


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("seed=4", "its seed differs"),
        ("scheduler.max_epochs=27", "its scheduler differs"),
        ("evaluation.bins=10", "its evaluation differs"),
        ("replicates.count=1", "its replicates differs"),
        ("objective.metric=val_accuracy", "its objective differs"),
        ("resources.cpu=2", "its resources differs"),
    ],
)
def test_what_would_change_a_number_is_named_and_nothing_is_taken_over(
    source: tuple[Inline, Sweep], override: str, reason: str
) -> None:
    inline, _ = source
    spec, facts = load_spec(inline._space, [override]), dataset_facts(inline.dataset)
    with pytest.raises(SweeperError, match=reason):
        choose_sources(spec, facts, inline.output, every=False, named=["first"])
    names, notes = choose_sources(spec, facts, inline.output, every=True, named=[])
    assert not names and len(notes) == 1 and reason in notes[0]


def test_other_code_other_data_and_sweeps_that_do_not_exist_are_refused(
    source: tuple[Inline, Sweep], monkeypatch: pytest.MonkeyPatch
) -> None:
    inline, _ = source
    spec, facts = load_spec(inline._space), dataset_facts(inline.dataset)
    assert choose_sources(spec, facts, inline.output, every=True, named=[])[0] == ["first"]
    with pytest.raises(SweeperError, match="its dataset differs"):
        choose_sources(spec, {**facts, "split_hash": "0" * 64}, inline.output, every=False, named=["first"])
    with pytest.raises(SweeperError, match=r"there is no sweep 'frist'.*\n.*'first'"):
        choose_sources(spec, facts, inline.output, every=False, named=["frist"])
    monkeypatch.setattr("sweeper.execution.reuse.code_version", lambda: "other")
    with pytest.raises(SweeperError, match="its code or package versions differ"):
        choose_sources(spec, facts, inline.output, every=False, named=["first"])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inline, Sweep]:
    """A finished sweep that tests only read, or take over from."""
    inline = Inline(tmp_path_factory.mktemp("source"))
    return inline, inline.run("first")


def test_a_trial_whose_tables_are_damaged_or_that_ran_other_code_in_between_is_trained(
    source: tuple[Inline, Sweep], tmp_path: Path
) -> None:
    inline, first = source
    seed = drawn_seed()
    print(f"damage drawn with seed {seed}")
    draw = random.Random(seed)
    victim = draw.choice(sorted((first.paths.tables / "predictions").glob("c*.parquet")))
    whole = victim.read_bytes()
    victim.write_bytes(whole[: draw.randrange(len(whole))])
    kept = _reusable(first, inline, tmp_path)
    victim.write_bytes(whole)
    assert set(range(4)) - kept == {int(victim.name[1:6])}
    other = Journal(first.paths.journal, durable=False)
    other.append(made_body("attempt", {"attempt": 2, "host": "here", "pid": 1, "code": "other"}))
    report = fields(reports(first.paths)[-1])
    other.append(made_body("report", {**report, "attempt": 2, "configuration": 3}))
    assert _reusable(first, inline, tmp_path) == {0, 1, 2}


def _reusable(first: Sweep, inline: Inline, folder: Path) -> set[int]:
    found = reusable_trials(named(first), range(4), inline.output, folder)
    return {index for index in range(4) if found(index) is not None}


def named(source: Sweep) -> Sweep:
    """Return a sweep whose manifest names `source`: itself will do."""
    manifest = json.loads(source.paths.manifest.read_text())
    source.paths.manifest.write_text(json.dumps({**manifest, MANIFEST_KEY: [source.name]}))
    return source


def test_no_sweep_trains_the_same_thing_twice(tmp_path: Path) -> None:
    """A configuration that a grid draws again has another place, and so other seeds."""
    text = SMALL.replace("{loguniform: [0.01, 0.3]}, momentum", "{grid: [0.1, 0.2]}, momentum") % {"samples": 3}
    spec = load_spec(write_space(tmp_path, text.replace("{uniform: [0.5, 5]}", "3")), ["space.loss=cross_entropy"])
    drawn = configurations(spec)
    hashes = [config_hash(drawn[index]) for index in range(len(drawn))]
    assert len(set(hashes)) < len(hashes)

    def seeds() -> Iterator[int]:
        for index in range(len(drawn)):
            yield from (replicate_seed(spec.seed, index, replicate) for replicate in range(50))

    assert len(set(seeds())) == 50 * len(drawn)


def test_the_code_version_follows_sources_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "losses" / "focal.py").write_text("gamma = 2")

    def version() -> str:
        ids.code_version.cache_clear()
        return ids.code_version()

    monkeypatch.setattr(ids.trainables, "__file__", str(tmp_path / "__init__.py"))
    try:
        before = version()
        assert version() == before
        (tmp_path / "losses" / "focal.py").write_text("gamma = 3")
        edited = version()
        monkeypatch.setattr(ids.metadata, "version", lambda package: "0")
        assert len({before, edited, version()}) == 3
    finally:
        ids.code_version.cache_clear()
