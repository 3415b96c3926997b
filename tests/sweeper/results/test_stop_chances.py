"""The column `decisions.fragility`: read on demand, of any sweep whose replicates say how far seeds spread."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from sweeper.reporting.figures.rungs import draw_fragility
from sweeper.results import Results
from sweeper.results.listing import columns_table
from sweeper.results.queries import QueryError
from sweeper.results.results import stop_chances
from sweeper.results.trial_facts import trial_facts
from tests.sweeper.synthetic_sweep import write_sweep


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("chances") / "s"
    return Results(write_sweep(folder, configurations=24, failures=1, samples=20))


STOPS = "SELECT trial, kind, fragility FROM decisions ORDER BY trial, epoch, kind"


def test_stops_have_a_chance_and_other_decisions_none(results: Results) -> None:
    rows = results.rows(STOPS)
    assert len(rows) == results.rows("SELECT count(*) AS n FROM decisions")[0]["n"]
    stopped = [row for row in rows if row["kind"] == "stop"]
    assert stopped and all(row["fragility"] is None for row in rows if row["kind"] != "stop")
    assert all(0 <= float(str(row["fragility"])) <= 1 for row in stopped)
    assert 0 < sum(float(str(row["fragility"])) for row in stopped) < len(stopped) / 2


def test_the_tables_themselves_stay_as_they_are(results: Results) -> None:
    assert "fragility" not in results.columns("decisions")
    with results.snapshot() as held:
        before = held.table("decisions")
        assert held.sql(STOPS).equals(results.sql(STOPS))
        with pytest.raises(QueryError, match="nowhere"):
            held.sql("SELECT fragility FROM nowhere")
        assert held.table("decisions").equals(before)
    described = columns_table(results).filter(columns_table(results)["table"].to_numpy() == "decisions").to_pylist()
    assert described[-1]["column"] == "fragility" and "other seeds" in described[-1]["meaning"]


def test_a_sweep_without_tables_has_no_stops(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert Results(tmp_path / "empty").rows(STOPS) == []


def test_show_says_it_of_a_stopped_trial_alone(results: Results) -> None:
    chances = stop_chances(results)
    status = {str(row["trial"]): row["status"] for row in results.rows("SELECT trial, status FROM trials")}
    for wanted, said in (("early_stopped", True), ("completed", False)):
        trial = next(name for name in chances if status[name] == wanted)
        words = f"finished in {chances[trial].finishes:.0%}"
        assert any(words in remark for remark in trial_facts(results, trial).remarks) is said


def test_the_figure_shows_every_stop(results: Results) -> None:
    figure = draw_fragility(results)
    assert figure is not None and [panel.heading for panel in figure.panels] == ["rung 3", "rung 9"]
    stopped = results.rows("SELECT count(*) AS n FROM decisions WHERE kind = 'stop'")[0]["n"]
    assert f"{stopped} stopped trials" in figure.caption


@pytest.mark.parametrize(
    "changed",
    [
        {"constraints": [{"metric": "val_ece", "at_most": 0.1}]},
        {"scheduler": {"name": "none", "max_epochs": 27}},
        {"scheduler": {"name": "nobody_has_it", "max_epochs": 27}},
        {"objective": {"metric": "val_nothing", "mode": "min"}},
    ],
    ids=json.dumps,
)
def test_without_evidence_it_is_null(results: Results, tmp_path: Path, changed: dict[str, object]) -> None:
    folder = shutil.copytree(results.folder, tmp_path / "copy", symlinks=True)
    written = yaml.safe_load((folder / "sweep.yaml").read_text("utf-8"))
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**written, **changed}), "utf-8")
    changed_results = Results(folder)
    assert stop_chances(changed_results) == {} and draw_fragility(changed_results) is None
    assert {row["fragility"] for row in changed_results.rows(STOPS)} == {None}
