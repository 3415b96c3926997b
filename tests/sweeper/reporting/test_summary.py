"""Leaderboard and summary against plain recomputation."""

import functools
import io
import shutil
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

import sweeper
from sweeper.core.labels import describe, label
from sweeper.reporting.summary import failure_lines, summary
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard, varying_columns
from tests.sweeper.held import held
from tests.sweeper.tables_by_pandas import frame, last


@functools.cache
def printed(folder: Path) -> str:
    """Return the summary as text."""
    console = Console(width=100, file=io.StringIO())
    console.print(summary(Results(folder)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def final_nll(folder: Path) -> pd.DataFrame:
    """Mean and standard deviation of the last validation NLL of each trial that ran to the end, best first."""
    values = last(folder, "val").query("status == 'completed'").groupby("trial").nll
    return values.agg(["mean", "std"]).sort_values("mean")


def test_only_what_varies_is_named(quickstart_folder: Path, gamma_folder: Path) -> None:
    assert varying_columns(Results(gamma_folder)) == ("config_loss_name", "config_loss_gamma")
    varying = varying_columns(held(quickstart_folder))
    assert "config_optimizer_momentum" not in varying and "config_hash" not in varying
    row = {"config_loss_name": "focal", "config_loss_gamma": 1.934, "config_optimizer_lr": 0.1, "config_loss_nu": None}
    columns = ("config_loss_name", "config_loss_gamma", "config_loss_nu", "config_optimizer_lr")
    assert describe(row, columns) == "focal (γ 1.93) · lr 0.1"
    assert describe(row, ("config_loss_gamma",)) == "γ 1.93"
    assert describe(row, ()) == "the only configuration"


def test_an_objective_that_only_epochs_hold_is_looked_up(quickstart_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "by_training_loss"
    shutil.copytree(quickstart_folder / "generations", folder / "generations")
    (folder / "tables").symlink_to((quickstart_folder / "tables").readlink())
    (folder / "sweep.yaml").write_text("objective: {metric: train_loss, mode: max}")
    board = leaderboard(Results(folder))
    losses = frame(quickstart_folder, "epochs").query("epoch == 27").groupby("trial").train_loss.mean()
    assert board.best is not None and board.best["trial"] == losses.idxmax()
    assert board.best["judged"] == pytest.approx(losses.max())


def test_the_summary_fits_a_screen_and_says_what_happened(quickstart_folder: Path) -> None:
    text = printed(quickstart_folder)
    expected = final_nll(quickstart_folder)
    assert len(text.splitlines()) <= 36 and all(len(line) <= 100 for line in text.splitlines())
    assert f"{expected['mean'].iloc[0]:.3g}" in text
    trained = frame(quickstart_folder, "trials")
    stopped = trained.query("status == 'early_stopped'").trial.nunique()
    assert f"48 trials ({len(trained)} trainings): {len(expected)} finished, {stopped} stopped early" in text
    assert text.count("early stopping saved") == 1


def test_the_summary_of_a_sweep_in_progress_and_of_an_empty_one(live_folder: Path, tmp_path: Path) -> None:
    assert "so far" in printed(live_folder).lower() and "3 waiting" in printed(live_folder)
    (tmp_path / "sweep.yaml").write_text("objective: {metric: val_nll, mode: min}")
    assert "No trial has been evaluated yet." in printed(tmp_path)


def test_the_summary_names_the_reason_of_each_failure_once(quickstart_folder: Path) -> None:
    rows = frame(quickstart_folder, "trials").query("status == 'failed'")
    failed = dict(zip(rows.trial, rows.error, strict=True))
    (line,) = failure_lines(held(quickstart_folder))
    first = min(failed)
    others = {1: "", 2: " and 1 other"}.get(len(failed), f" and {len(failed) - 1} others")
    assert line == f"failed: {first}{others}: {failed[first]}", "they differ in the epoch alone"
    assert line in " ".join(printed(quickstart_folder).split())


def test_the_ece_of_class_1_stands_on_the_first_screen_and_in_the_report(tmp_path: Path) -> None:
    settings = ["evaluation.metrics=[ece_positive]", "scheduler.max_epochs=1", "replicates=1", "space.loss=brier"]
    done = sweeper.run(
        "curvature_vs_gamma",
        set=[*settings, "evaluation.curvature=false"],
        output=tmp_path,
        mlflow=False,
        executor="local",
    )
    (row,) = done.results.rows("SELECT ece_positive FROM final WHERE split = 'test'")
    page = (tmp_path / done.name / "report.html").read_text("utf-8")
    for text in (printed(tmp_path / done.name), page):
        assert f"{label('ece_positive')} {row['ece_positive']:.3f}" in text
