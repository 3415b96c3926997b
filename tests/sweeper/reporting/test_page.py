"""The report's page: complete, self-contained, and every number sampled here found again in the tables."""

import base64
import gzip
import json
import re
import shutil
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml

from sweeper.core.cells import grouped
from sweeper.core.errors import SweeperError
from sweeper.core.labels import duration
from sweeper.journal.reasons import row_text
from sweeper.reporting.figures import report_figures
from sweeper.reporting.figures.curvature_and_calibration import calibration_against_trace
from sweeper.reporting.figures.drawing import json_text
from sweeper.reporting.html import PACKED_FROM, data_script, pretty
from sweeper.reporting.page import part_of, side_by_side, write_report, write_several, write_trial_page
from sweeper.reporting.sentences import lead
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.trial_facts import trial_facts
from tests.sweeper.held import held
from tests.sweeper.reporting.figures.drawn import layers, marks
from tests.sweeper.results.test_results import rows_of
from tests.sweeper.tables_by_pandas import frame, means


class Page(HTMLParser):
    """What a page holds: data scripts by id, text by section, every address that could be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.addresses: list[tuple[str, str]] = []
        self.sections: dict[str, str] = defaultdict(str)
        self.section = ""
        self.inside = ""
        self.packed = False
        self.feed(text)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.addresses += [(name, found[key] or "") for key in ("src", "href", "srcset", "action") if key in found]
        if name == "section":
            self.section = found.get("id") or ""
        if name in ("script", "style"):
            self.inside = found.get("id") or name
            self.packed = found.get("type") == "application/gzip"

    def handle_endtag(self, name: str) -> None:
        if name in ("script", "style"):
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside and self.inside not in ("script", "style"):
            self.data[self.inside] = json.loads(gzip.decompress(base64.b64decode(data)) if self.packed else data)
        elif not self.inside:
            self.sections[self.section] += data.replace("\u00a0", " ") + " "


def squeezed(text: str) -> str:
    """Text without white space and what tags stand for, so that a page and a terminal compare."""
    return "".join(text.replace("`", "").split())


@pytest.fixture(scope="module")
def text(quickstart_folder: Path) -> str:
    """The page of the quickstart."""
    return (quickstart_folder / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    """The page of the quickstart, parsed."""
    return Page(text)


@pytest.fixture(scope="module")
def grid(gamma_folder: Path) -> Page:
    """The page of the grid over γ, parsed."""
    return Page((gamma_folder / "report.html").read_text("utf-8"))


def test_nothing_is_loaded_from_anywhere(page: Page, text: str) -> None:
    for name, address in page.addresses:
        assert address.startswith(("#", "data:", "tables/")), (name, address)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert text.count("window.vegaEmbed=") == 1 and len(text) < 2_000_000


def test_every_part_is_there(page: Page) -> None:
    figures = [
        "curvature-against-gamma", "ece-against-gamma", "calibration-against-trace", "reliability", "learning-curves",
        "parallel-coordinates", "spectral-density",
    ]  # fmt: skip
    for key in ["summary", *figures, "trials", "decisions", "failures", "manifest"]:
        assert page.sections[key].strip(), key
    for key in figures:
        assert "SQL behind the data" in page.sections[key] and "SELECT" in page.sections[key]
        assert re.search(r"\d", page.sections[key]) and f"{key}-0" in page.data


def test_the_counts_are_those_of_the_tables(page: Page, quickstart_folder: Path) -> None:
    trials, decisions = (frame(quickstart_folder, name) for name in ("trials", "decisions"))
    assert duration(trials.wall_seconds.sum()) in page.sections[""]
    saved = (27 - trials.query("status == 'early_stopped'").epochs).sum()
    counts = page.sections[""]
    assert f"{trials.epochs.sum():,} of 2,592 epochs (full-training budget); early stopping saved {saved:,}" in counts
    for rung, kinds in decisions.query("rung in (3, 9)").groupby("rung").kind:
        assert f"{sum(kinds == 'stop')} of {len(kinds)} at rung {rung:.0f}" in counts


def test_the_rank_correlations_are_scipys(grid: Page, gamma_folder: Path) -> None:
    columns = {"training": "training loss’s Hessian", "cross_entropy": "cross-entropy’s"}
    focal = means(gamma_folder, "val", [f"hessian_{loss}_lambda_max" for loss in columns])
    focal = focal.query("config_loss_name == 'focal'")
    for loss, word in columns.items():
        rho = scipy.stats.spearmanr(focal.config_loss_gamma, focal[f"hessian_{loss}_lambda_max"]).statistic
        stated = f"ρ = {rho:.2f}".replace("-", "−")
        assert re.search(rf"{stated} \([^)]*n = {len(focal)}\) for (the )?{word}", grid.sections["details"]), stated
    assert "not part of ρ" in grid.sections["curvature-against-gamma"]


def test_another_hessian_sample_size_is_left_out_and_said(quickstart_folder: Path, tmp_path: Path) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    folder = tmp_path / "mixed"
    (folder / "tables" / "evaluations").mkdir(parents=True)
    for name in ("trials", "epochs", "decisions", "reliability", "predictions"):
        shutil.copytree(quickstart_folder / "tables" / name, folder / "tables" / name)
    table = held(quickstart_folder).table("evaluations")
    at = table.column_names.index("hessian_training_samples")
    sizes = pc.if_else(pc.equal(table["trial"], "c00000"), 64, table["hessian_training_samples"])
    pq.write_table(table.set_column(at, table.schema[at].name, sizes), folder / "tables" / "evaluations" / "a.parquet")
    figure = calibration_against_trace(Results(folder))
    assert figure is not None and "1 measured on a different number of samples are left out" in figure.caption
    assert "c00000" not in {row["trial"] for row in marks(figure.panels[0], "point")}


def test_densities_are_those_of_the_best_runs(page: Page, grid: Page, quickstart_folder: Path) -> None:
    trials = re.findall(r"(Best|Best with cross-entropy), (c\d{5}): λ from", page.sections["spectral-density"])
    assert {role for role, _ in trials} == {"Best", "Best with cross-entropy"}
    spectra = frame(quickstart_folder, "spectra").query("epoch == 27").sort_values("eigenvalue")
    measured = dict(list(spectra.groupby(["trial", "loss", "replicate"])))
    for panel, loss in enumerate(("training", "cross_entropy")):
        lines = grouped(
            marks(page.data[f"spectral-density-{panel}"], "line"), lambda row: (row["run"], row["replicate"])
        )
        assert len(lines) == 4 and len({run for run, _ in lines}) == 2
        top = max(row["density"] for line in lines.values() for row in line)
        for (run, replicate), line in lines.items():
            mine = measured[re.findall(r"c\d{5}", run)[0], loss, replicate]
            assert [row["eigenvalue"] for row in line] == mine.eigenvalue.tolist()
            assert [row["density"] for row in line] == pytest.approx(mine.density.clip(lower=1e-8 * top).tolist())
    assert "spectral-density" not in grid.sections
    assert "Spectral densities: none was measured" in "".join(grid.sections.values())


def test_reliability_after_temperature_has_the_recorded_calibration_error(page: Page, quickstart_folder: Path) -> None:
    section = page.sections["reliability"]
    trial = re.findall(r"Best, (c\d{5}): after temperature scaling", section)[0]
    chosen = f"trial == '{trial}' and epoch == 27 and split == 'test'"
    tested, stored = (frame(quickstart_folder, name).query(chosen) for name in ("evaluations", "predictions"))
    stated = [float(value) for value in re.findall(r"ECE ([\d.]+) ±", section)]
    expected = [tested.ece.mean(), tested.posthoc_temperature_ece.mean()]
    assert stated[:2] == pytest.approx(expected, rel=0.05)
    shares = [row["y"] for row in marks(page.data["reliability-1"], "rect")]
    assert sum(shares) == pytest.approx(1) and 1 < len(shares) <= 15
    ideal, isotonic = layers(page.data["reliability-1"], "line")
    levels = [row["y"] for row in isotonic["data"]["values"]]
    assert len(ideal["data"]["values"]) == 2 and levels == sorted(levels)
    accuracy = float((stored.logits.map(np.argmax) == stored.target).mean())
    sentence = r"confidence ([\d.]+) = miscalibration ([-\d.e]+) − discrimination ([-\d.e]+) \+ uncertainty ([\d.]*\d)"
    score, miscalibration, discrimination, uncertainty = map(float, re.findall(sentence, section)[1])
    assert uncertainty == pytest.approx(accuracy * (1 - accuracy), rel=0.06)
    assert score == pytest.approx(miscalibration - discrimination + uncertainty, abs=0.01)


def test_the_tables_hold_every_decision_trial_and_failure(page: Page, quickstart_folder: Path) -> None:
    decisions = rows_of(quickstart_folder, "decisions")
    shown = page.data["decisions-rows"]["rows"]
    assert len(shown) == len(decisions)
    assert [row[-1] for row in shown] == sorted((row[-1] for row in shown), reverse=True)
    assert {(row[0], row[2], row[3]) for row in shown} == {(d["trial"], d["epoch"], row_text(d)) for d in decisions}
    assert len(page.data["trials-rows"]["rows"]) == len(means(quickstart_folder, "val", []))
    failed = frame(quickstart_folder, "trials").query("status == 'failed'")
    assert len(page.data["failures-rows"]["rows"]) == len(failed) > 0


def test_a_sweep_without_gamma_or_curvature_says_so(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"objective": {"metric": "val_nll", "mode": "min"}}))
    empty = Page(write_report(folder).read_text("utf-8"))
    words = squeezed(empty.sections[""])
    for figure in report_figures():
        assert squeezed(figure.absent).replace("_", "") in words.replace("_", "")
    assert "No trial has been evaluated yet." in empty.sections["summary"]


def test_a_sweep_in_progress(live_folder: Path) -> None:
    live = Page((live_folder / "report.html").read_text("utf-8"))
    assert "so far" in live.sections["summary"].lower() and "3 running, 3 waiting" in live.sections[""]
    assert not list(live_folder.glob(".report*"))


def test_text_is_escaped_and_data_cannot_end_their_script(live_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "<b>"
    shutil.copytree(live_folder, folder, symlinks=True)
    text = write_report(folder).read_text("utf-8")
    assert "<h1>&lt;b&gt;</h1>" in text and "<b>" not in text[: text.index("<script")].partition("</style>")[2]
    assert pretty("<b> = λ_max") == "&lt;b&gt;\u00a0=\u00a0λ<sub>max</sub>"
    script = data_script("x", json_text({"a": "</script><!--", "b": float("nan"), "c": [float("inf"), 1.5]}))
    assert script.count("<") == 2
    assert Page(script).data == {"x": {"a": "</script><!--", "b": None, "c": [None, 1.5]}}


def test_large_data_are_packed_and_hold_the_same() -> None:
    values = {"</script>": [at / 7 for at in range(PACKED_FROM // 10)]}
    script = data_script("x", json_text(values))
    assert 'type="application/gzip"' in script and len(script) < PACKED_FROM and script.count("<") == 2
    assert Page(script).data == {"x": values}
    assert 'type="application/json"' in data_script("x", json_text([0.1]))


def test_a_page_of_several_sweeps(gamma_folder: Path, live_folder: Path, tmp_path: Path) -> None:
    members = [held(gamma_folder), held(live_folder)]
    page = Page(write_several(members, tmp_path / "report.html").read_text("utf-8"))
    parts = [part_of(each) for each in members]
    for part in parts:
        section = " ".join(page.sections[part.name].split())
        assert all(squeezed(lead(answer)) in squeezed(section) for answer in part.first.answers)
    table = dict(side_by_side(parts))
    assert table["focal"][0] and table["focal"][1] and table["inverse_focal"][0] is None
    words = " ".join(page.sections["side-by-side"].split())
    assert all(cell is None or f"{cell.value.mean:.3g}" in words for cells in table.values() for cell in cells)
    assert all(address.startswith(("#", "data:")) or address.endswith("/report.html") for _, address in page.addresses)


def test_a_sweep_named_twice_is_refused(quickstart_folder: Path, tmp_path: Path) -> None:
    twice = [held(quickstart_folder)] * 2
    with pytest.raises(SweeperError, match="'quickstart' was named twice"):
        write_several(twice, tmp_path / "report.html")


def test_the_best_trial_on_a_page(quickstart_folder: Path, tmp_path: Path) -> None:
    results = held(quickstart_folder)
    html = write_trial_page(results, None, tmp_path / "trial.html").read_text("utf-8")
    page, facts = Page(html), trial_facts(results, None)
    assert facts.trial == leaderboard(results).best["trial"]  # type: ignore[index]
    for key, grid in (("metrics", facts.metrics), ("posthoc", facts.posthoc), ("decisions", facts.decisions)):
        assert grid is not None
        words = "".join(page.sections[key].split())
        assert all("".join(cell.replace("λ_", "λ").split()) in words for row in grid.rows for cell in row)
    epochs = frame(quickstart_folder, "epochs").query("trial == @facts.trial").sort_values(["replicate", "epoch"])
    first = json.loads(re.search(r'id="panel-0">(.*?)</script>', html)[1])  # type: ignore[index]
    drawn = grouped(marks(first, "line"), lambda row: row["replicate"])
    assert [[row["train_loss"] for row in line] for line in drawn.values()] == [
        list(mine["train_loss"]) for _, mine in epochs.groupby("replicate")
    ]
    assert "Test data" in page.sections["curves"]


def test_a_trial_that_waits_has_a_page_without_curves(live_folder: Path, tmp_path: Path) -> None:
    waiting = frame(live_folder, "trials").query("status == 'waiting'").iloc[0]["trial"]
    page = Page(write_trial_page(Results(live_folder), waiting, tmp_path / "trial.html").read_text("utf-8"))
    assert {key for key in page.sections if key} == {"configuration", "rows"}
