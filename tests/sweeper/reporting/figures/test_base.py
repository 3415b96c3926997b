"""Figures over losses, trade-offs and the scheduler: numbers recomputed from the Parquet files with pandas alone."""

from __future__ import annotations

import base64
import gzip
import html
import io
import re
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
import scipy.stats

from sweeper.reporting.figures import FIGURES, hyperparameters, loss_families
from sweeper.reporting.figures.configurations import MOST_POINTS, thin_points
from sweeper.reporting.figures.drawing import write_figure
from sweeper.results import Results
from tests.sweeper.reporting.figures.drawn import layers, marks
from tests.sweeper.reporting.test_page import Page
from tests.sweeper.synthetic_sweep import write_sweep
from tests.sweeper.tables_by_pandas import frame, means


@pytest.fixture(scope="module")
def text(losses_folder: Path) -> str:
    """The page of the grid over losses."""
    return (losses_folder / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    """That page, parsed."""
    return Page(text)


@pytest.fixture(scope="module")
def halved(quickstart_folder: Path) -> Page:
    """The page of the quickstart, with successive halving."""
    return Page((quickstart_folder / "report.html").read_text("utf-8"))


def csv_files(text: str) -> dict[str, pd.DataFrame]:
    """The rows behind every figure and table, unpacked from the links of the page."""
    found = re.findall(r'id="(data-[^"]+)" href="data:application/gzip;base64,([^"]+)"', text)
    return {
        name: pd.read_csv(io.BytesIO(gzip.decompress(base64.b64decode(packed))), keep_default_na=False, dtype=str)
        for name, packed in found
    }


def plain_connection(folder: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB over the Parquet files, with `final` written down a second time, by a correlated maximum."""
    connection = duckdb.connect()
    for table in ("trials", "epochs", "evaluations", "decisions", "reliability", "predictions", "spectra"):
        files = f"{folder}/tables/{table}/**/*.parquet"
        connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{files}')")
    shared = set(frame(folder, "evaluations")) & set(frame(folder, "trials"))
    connection.execute(
        f"CREATE VIEW final AS SELECT e.*, t.* EXCLUDE ({', '.join(sorted(shared))}) FROM evaluations e "
        "JOIN trials t ON t.trial = e.trial AND t.replicate = e.replicate WHERE e.epoch = (SELECT max(m.epoch) "
        "FROM evaluations m WHERE m.trial = e.trial AND m.replicate = e.replicate AND m.split = e.split)"
    )
    return connection


def test_every_figure_has_the_rows_that_its_sql_gives_from_the_parquet_files(text: str, losses_folder: Path) -> None:
    files = csv_files(text)
    connection = plain_connection(losses_folder)
    checked = 0
    for part in re.findall(r"<section .*?</section>", text, re.DOTALL):
        key = re.search(r'id="([a-z-]+)"', part)
        code = re.search(r"<summary>SQL behind the data</summary><pre>(.*?)</pre>", part, re.DOTALL)
        if not key or not code or "recalibrations" in code[1]:
            continue
        held = re.findall(r'<a (?:id="|href="#)(data-[^"]+)"', part)
        queries = html.unescape(code[1]).split(";\n\n")
        for name, query in zip(held, queries, strict=True):
            rows = connection.sql(query).fetchall()
            assert len(files[name]) == len(rows), key[1]
            for mine, row in list(zip(files[name].itertuples(index=False), rows, strict=True))[::7]:
                for cell, value in zip(mine, row, strict=True):
                    if isinstance(value, float) and np.isfinite(value):
                        assert float(cell) == pytest.approx(value, rel=1e-9)
            checked += 1
    assert checked >= 12


def points(plot: dict[str, Any]) -> set[tuple[str, float, float]]:
    """The (trial, x, y) of a plot's points."""
    x, y = (plot["encoding"][axis]["field"] for axis in "xy")
    return {(row["trial"], row[x], row[y]) for row in marks(plot, "point")}


def test_the_map_has_the_means_over_finished_configurations(page: Page, losses_folder: Path) -> None:
    table = means(losses_folder, "val", ["ece", "accuracy"])
    table = table[(table.status == "completed") & table.config_loss_coverage.notna()]
    for panel, (network, metric) in enumerate([("mlp", "ece"), ("mlp", "accuracy"), ("resnet8", "ece")]):
        drawn = {
            (row["nu"], row["coverage"]): row[metric] for row in marks(page.data[f"coverage-nu-map-{panel}"], "rect")
        }
        mine = table[table.config_architecture_name == network]
        cells = mine.groupby(["config_loss_nu", "config_loss_coverage"])[metric].mean().unstack()
        assert len(drawn) == cells.size == 9
        assert {(float(nu), float(coverage)): value for (nu, coverage), value in drawn.items()} == {
            (nu, coverage): pytest.approx(value) for (nu, coverage), value in cells.stack().items()
        }


def test_the_trace_penalty_has_every_tau_and_cross_entropy_at_zero(page: Page, losses_folder: Path) -> None:
    column = "hessian_cross_entropy_trace"
    table = means(losses_folder, "val", ["ece", column])
    penalised = table[table.config_loss_name == "hessian_trace"]
    for panel, metric in enumerate(["ece", column]):
        plot = page.data[f"trace-regularisation-{panel}"]
        drawn = {trial: (x, y) for trial, x, y in points(plot)}
        assert {t: drawn[t] for t in penalised.index} == {
            t: (row.config_loss_weight, pytest.approx(row[metric])) for t, row in penalised.iterrows()
        }
        plain = table[table.config_loss_name == "cross_entropy"].index
        assert set(drawn) == {*penalised.index, *plain}
        axis = plot["encoding"]["x"]["axis"]
        assert {drawn[t][0] for t in plain} == {axis["values"][0]} and "? '0'" in axis["labelExpr"]
    finished = penalised[(penalised.status == "completed") & (penalised.config_architecture_name == "mlp")]
    rho = scipy.stats.spearmanr(finished.config_loss_weight, finished.ece).statistic
    stated = f"mlp: finished ρ = {rho:.2f}".replace("-", "−")
    assert stated in page.sections["trace-regularisation"]


def test_one_measured_hessian_is_enough(losses_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "one"
    (folder / "tables" / "evaluations").mkdir(parents=True)
    for name in ("trials", "epochs", "decisions", "reliability", "predictions"):
        shutil.copytree(losses_folder / "tables" / name, folder / "tables" / name)
    shutil.copyfile(losses_folder / "manifest.json", folder / "manifest.json")
    table = frame(losses_folder, "evaluations")
    dropped = [name for name in table if name.startswith("hessian_training_")]
    assert dropped
    table.drop(columns=dropped).to_parquet(folder / "tables" / "evaluations" / "a.parquet")
    results = Results(folder)
    for name, panels in {
        "trace_regularisation": 2,
        "calibration_against_trace": 1,
        "curvature_against_gamma": 1,
    }.items():
        figure = FIGURES[name].build(results)
        assert len(figure.panels) == panels and "Hessian on 128 validation samples" in figure.caption, name


def test_the_audit_has_every_comparison_and_what_was_saved(halved: Page, quickstart_folder: Path) -> None:
    decisions, trials = (frame(quickstart_folder, name) for name in ("decisions", "trials"))
    stopped = trials[trials.status == "early_stopped"]
    saved, full = int((27 - stopped.epochs).sum()), 27 * len(trials)
    section = halved.sections["scheduler-audit"]
    assert (
        f"Early stopping saved {saved:,} of {full:,} epochs ({saved / full:.0%} of the full-training budget)" in section
    )
    for panel, rung in enumerate((3, 9)):
        judged = decisions[(decisions.rung == rung) & decisions.kind.isin(["stop", "continue"])]
        plot = halved.data[f"scheduler-audit-{panel}"]
        assert {(t, y) for t, _, y in points(plot)} == set(zip(judged.trial, judged.metric, strict=True))
        cutoffs = [row["metric"] for row in marks(plot, "line")]
        assert cutoffs == judged.sort_values(["decided_at", "trial"]).cutoff.dropna().tolist()
        mine = stopped[stopped.stop_rung == rung]
        assert f"Saved {int((27 - mine.epochs).sum()):,} epochs" in section


def test_families_are_paired_by_settings_on_test_data_within_each_network(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "losses", space="losses", configurations=128, replicates=1, failures=0, samples=20)
    table = means(folder, "test", ["ece", "nll"])
    table["judged"] = means(folder, "val", ["nll"]).nll
    figure = loss_families.draw(Results(folder))
    assert figure is not None and "Paired by equal other settings" in figure.caption
    assert [panel.heading for panel in figure.panels[:4]] == [
        "mlp: test ECE", "mlp: test NLL", "mlp: test accuracy", "resnet8: test ECE",
    ]  # fmt: skip
    for at, network in ((0, "mlp"), (3, "resnet8")):
        best: dict[str, dict[Any, float]] = defaultdict(dict)
        own = table[table.config_architecture_name == network]
        for (loss, rate), rows in own.groupby(["config_loss_name", "config_optimizer_lr"]):
            best[loss][rate] = rows.sort_values("judged").iloc[0].ece
        drawn = {row["family"]: row["mean"] for row in marks(figure.panels[at], "point")}
        assert set(drawn) == set(best) - {"cross_entropy"}
        for family, difference in drawn.items():
            pairs = [best[family][rate] - best["cross_entropy"][rate] for rate in best["cross_entropy"]]
            assert len(pairs) == 4 and difference == pytest.approx(np.mean(pairs))
        reach = [row["high"] for row in layers(figure.panels[at], "rule")[-1]["data"]["values"]]
        assert max(reach) <= 1, "no difference of two calibration errors is larger"
    write_figure(figure, tmp_path / "figure.svg")


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_many_lines_the_best_are_kept_and_the_others_thinned_evenly(mode: str) -> None:
    rng = np.random.default_rng(0)
    lines = [{"judged": float(value)} for value in rng.permutation(4000)]
    shown = hyperparameters.thin_lines(lines, mode)
    assert len(shown) == hyperparameters.MOST_LINES
    assert [row for row in lines if any(row is other for other in shown)] == list(shown), "in their order"
    ranked = sorted((row["judged"] for row in shown), reverse=mode == "max")
    ranks = [value if mode == "min" else 3999 - value for value in ranked]
    assert ranks[: hyperparameters.BEST_LINES] == list(range(hyperparameters.BEST_LINES))
    assert ranks[-1] == 3999 and set(np.diff(ranks[hyperparameters.BEST_LINES :])) == {3, 4}
    assert hyperparameters.thin_lines(lines[:1500], mode) == lines[:1500]


def test_many_points_are_thinned_evenly_finished_ones_and_others_apart() -> None:
    rows = [{"trial": at, "status": "completed" if at % 3 == 0 else "early_stopped"} for at in range(6000)]
    shown, remarks = thin_points(rows)
    assert shown == sorted(shown, key=lambda row: row["trial"]) and len(remarks) == 2
    for finished, total in ((True, 2000), (False, 4000)):
        kept = [row["trial"] for row in shown if (row["status"] == "completed") is finished]
        every = [row["trial"] for row in rows if (row["status"] == "completed") is finished]
        assert len(kept) == MOST_POINTS and (kept[0], kept[-1]) == (every[0], every[-1])
        assert max(np.diff(kept)) <= 3 * (total // MOST_POINTS) + 3
        assert any(f"{total:,}" in remark for remark in remarks)
    assert thin_points(rows[:1000]) == (rows[:1000], [])
