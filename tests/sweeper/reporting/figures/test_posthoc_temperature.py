"""The post-hoc table and figure: every number found again in the tables, marks as the caption says."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sweeper.core.cells import by_trial
from sweeper.core.ids import SweepPaths
from sweeper.reporting.figures import posthoc_temperature
from sweeper.reporting.page import write_report
from sweeper.reporting.tables import MethodCell, alike, marks_of, posthoc_tables
from sweeper.results import Results
from sweeper.results.posthoc import Variant, posthoc_measurements
from sweeper.results.recalibrating import recalibrate
from sweeper.results.recalibration import read_requests
from sweeper.space.loading import load_spec
from sweeper.storage.sweeps import Sweep
from tests.sweeper.held import held
from tests.sweeper.reporting.figures.drawn import marks
from tests.sweeper.synthetic_sweep import gamma_configuration, write_sweep
from trainables.posthoc.focal_temperature import GAMMAS, PARAMETERS
from trainables.registry.configuration import Configuration


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A small grid over γ with its own temperature scaling and three recalibrations, one of them of 4,500 cells."""
    folder = tmp_path_factory.mktemp("posthoc") / "grid"
    write_sweep(folder, space="gamma", configurations=9, replicates=2, failures=0, samples=60)
    configurations = [gamma_configuration(i) for i in range(8)] + [Configuration({"loss": {"name": "brier"}})]
    sweep = Sweep(SweepPaths(folder), load_spec("quickstart"), configurations)  # type: ignore[arg-type]
    recalibrate(sweep, read_requests(["temperature"], ["objective=ece"], [15]))
    recalibrate(sweep, read_requests(["focal_temperature", "focal_map"], ["objective=nll"], [15]))
    return held(folder)


@pytest.fixture(scope="module")
def page(results: Results) -> str:
    """The report of the grid."""
    return write_report(results.folder).read_text("utf-8")


def test_the_table_holds_means_deviations_and_temperatures(results: Results, page: str) -> None:
    ece = pd.read_html(io.StringIO(page), match="focal map")[0]
    assert [*ece] == [
        "configuration", "uncalibrated", "temperature", "temperature (objective ece)", "focal map",
        "focal temperature (objective nll)",
    ]  # fmt: skip
    assert len(ece) == 9
    sql = "SELECT ece, temperature FROM recalibrations WHERE method = 'temperature' AND split = 'test' AND trial = '{}'"
    places = set()
    for index, cell in enumerate(ece["temperature (objective ece)"]):
        found = results.rows(sql.format(f"c{index:05d}"))
        values = [row["ece"] for row in found]
        mean, deviation = re.search(r"([\d.]+) ± ([\d.]+)", cell).groups()
        places.add(len(mean.partition(".")[2]))
        assert float(mean) == pytest.approx(np.mean(values), abs=10.0 ** -max(places))
        assert float(deviation) == pytest.approx(np.std(values, ddof=1), abs=10.0 ** -max(places))
        assert f"({np.mean([row['temperature'] for row in found]):.2f}" in cell
    assert len(places) == 1
    own = results.rows(
        "SELECT avg(posthoc_temperature_temperature) AS t FROM final WHERE trial = 'c00000' AND split = 'test'"
    )
    assert f"({own[0]['t']:.2f}" in ece["temperature"][0]


def test_an_unavailable_method_is_a_dash_with_the_reason_below(results: Results, page: str) -> None:
    reasons = results.rows("SELECT DISTINCT unavailable AS reason FROM recalibrations WHERE unavailable IS NOT NULL")
    assert len(reasons) == 1
    assert str(reasons[0]["reason"]) in html.unescape(page) and re.search(r"–<sup>a</sup>", page)
    ece = pd.read_html(io.StringIO(page), match="focal map")[0]
    assert (ece["focal map"] == "–a").tolist() == [False] * 8 + [True]


def test_the_smallest_mean_is_bold_and_what_is_indistinguishable_from_it_marked() -> None:
    def cell(*values: float) -> MethodCell:
        return MethodCell(dict(enumerate(values)), None, None, None)

    clear, best, near = cell(3.0, 3.1, 3.2), cell(1.0, 1.4, 1.8), cell(1.1, 1.3, 1.9)
    missing = MethodCell({}, None, None, "no data")
    assert marks_of([clear, best, missing, near]) == ["", "best", "", "alike"]
    assert marks_of([best, missing]) == ["", ""], "a best of one says nothing"
    assert not alike(cell(2.0), cell(1.0)), "one replicate cannot tell"
    shifted = cell(1.2, 1.6, 2.0)
    assert not alike(shifted, best), "a constant difference is certain, though the spreads overlap"


def test_fig_8_draws_the_line_and_the_best_temperatures(results: Results) -> None:
    figure = posthoc_temperature.draw(results)
    assert figure is not None and len(figure.panels) == 1
    lines, dots = (by_trial(marks(figure.panels[0], kind)) for kind in ("line", "point"))
    assert len(lines) == len(dots) == posthoc_temperature.MOST_LINES
    found = results.rows(
        "SELECT parameters FROM recalibrations WHERE method = 'focal_temperature' AND split = 'val' "
        "AND trial = 'c00002'"
    )
    fits = [json.loads(row["parameters"]) for row in found]
    assert [row["gamma"] for row in dots["c00002"]] == list(GAMMAS)
    for gamma, value in ((row["gamma"], row["T"]) for row in dots["c00002"]):
        name = next(
            n for n in PARAMETERS if n.startswith("temperature_at") and posthoc_temperature.gamma_of(n) == gamma
        )
        assert value == pytest.approx(np.mean([fit[name] for fit in fits]))
    intercept, slope = (np.mean([fit[name] for fit in fits]) for name in ("line_intercept", "line_slope"))
    for row in lines["c00002"]:
        assert row["T"] == pytest.approx(intercept + slope * row["gamma"])


def test_without_any_method_there_is_neither_table_nor_figure(gamma_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    shutil.copytree(gamma_folder, folder, symlinks=True)
    text = (folder / "sweep.yaml").read_text().replace("- temperature", "[]")
    (folder / "sweep.yaml").write_text(re.sub(r"posthoc:\s*\[\]", "posthoc: []", text))
    assert posthoc_measurements(Results(folder)) is None
    assert posthoc_tables(Results(folder)) is None
    assert posthoc_temperature.draw(Results(folder)) is None


def test_variants_in_words() -> None:
    assert Variant("temperature", "{}").label == "temperature"
    assert Variant("focal_map", '{"gamma": 2.0}').label == "focal map (gamma 2.0)"
