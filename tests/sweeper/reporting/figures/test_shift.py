"""The figure off the training distribution: its numbers, recomputed with pandas, and what it says of them."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sweeper.judging.means import means
from sweeper.judging.question import BETTER, NOT_COMPARED, WORSE, Data, Question
from sweeper.reporting.figures import shift
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from tests.sweeper.reporting.figures.drawn import layers, marks

KINDS, SEVERITIES = ("fog", "gaussian_noise"), (1, 5)


def with_shifts(source: Path, folder: Path, replicates: int = 9, helps: float = 0.7) -> Path:
    """Copy a sweep and add corrupted rows: errors grow with severity, and temperature takes a part of them away."""
    shutil.copytree(source, folder, symlinks=True)
    (part, *rest) = sorted((folder / "tables" / "evaluations").rglob("*.parquet"))
    table = pd.concat([pd.read_parquet(each) for each in (part, *rest)])
    clean = table.query("split == 'test' and stage == 'end'")
    clean = clean[clean["replicate"] < replicates]
    rng, rows = np.random.default_rng(0), [table[table["replicate"] < replicates]]
    for severity in SEVERITIES:
        for at, kind in enumerate(KINDS):
            more = clean.assign(split=f"corrupted_{kind}_{severity}")
            for metric in ("ece", "nll"):
                worse = more[metric] * (1 + severity * (1 + at)) * rng.uniform(0.9, 1.1, len(more))
                more = more.assign(**{metric: worse, f"posthoc_temperature_{metric}": worse * helps})
            rows.append(more)
    schema = pq.read_schema(part)
    for each in rest:
        each.unlink()
    pd.concat(rows).to_parquet(part, schema=schema, index=False)
    return folder


@pytest.fixture(scope="module")
def folder(losses_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_shifts(losses_folder, tmp_path_factory.mktemp("shift") / "sweep")


@functools.cache
def corrupted(folder: Path) -> tuple[str, pd.DataFrame]:
    """The winner, and the finished replicates' rows with their seeds."""
    best = leaderboard(Results(folder)).best
    assert best is not None
    rows = pd.read_parquet(folder / "tables" / "evaluations").query("stage == 'end'")
    trials = pd.read_parquet(folder / "tables" / "trials").query("status == 'completed'")
    return str(best["trial"]), rows.merge(trials[["trial", "replicate", "seed"]], on=["trial", "replicate"])


def winners(folder: Path, column: str, severity: int) -> tuple[str, pd.DataFrame]:
    """The winner, and each finished trial's and seed's mean over kinds."""
    winner, rows = corrupted(folder)
    names = [f"corrupted_{kind}_{severity}" for kind in KINDS] if severity else ["test"]
    return winner, rows[rows["split"].isin(names)].groupby(["trial", "seed"])[column].mean().reset_index()


def test_lines_are_means_over_kinds_with_the_intervals_of_moderated_spreads(folder: Path) -> None:
    figure = shift.draw(Results(folder))
    assert figure is not None and [panel.heading for panel in figure.panels][:2] == ["Test ECE", "Test NLL"]
    for panel, metric in zip(figure.panels[:2], ("ece", "nll"), strict=True):
        for name, column in zip(figure.legend, (metric, f"posthoc_temperature_{metric}"), strict=True):
            line = [row for row in marks(panel, "rule") if row["line"] == name]
            for at, severity in enumerate((0, *SEVERITIES)):
                winner, each = winners(folder, column, severity)
                groups = {trial: dict(zip(g["seed"], g[column], strict=True)) for trial, g in each.groupby("trial")}
                mean = float(np.mean([*groups[winner].values()]))
                question = Question([*groups], metric, relative=True, level=0.95)
                assert line[at]["high"] == pytest.approx(means(question, Data(groups))[winner].high)
                assert [row["value"] for row in marks(panel, "line") if row["line"] == name][at] == pytest.approx(mean)
        assert len(layers(panel, "point")[0]["data"]["values"]) == 2 * len(KINDS) * len(SEVERITIES)


def test_it_says_whether_the_winner_stays_calibrated_and_temperature_helps(
    folder: Path, losses_folder: Path, tmp_path: Path
) -> None:
    figure = shift.draw(Results(folder))
    assert figure is not None
    ece, nll = figure.findings
    assert "winner's ECE goes from" in ece and "at severity 5: worse, " in ece and " times (95 % " in ece
    assert "Temperature fitted on clean validation data still helps there" in ece and "NLL" in nll
    harm = shift.draw(Results(with_shifts(losses_folder, tmp_path / "harm", helps=1.6)))
    assert harm is not None and "validation data harms there" in harm.findings[0]
    alone = shift.draw(Results(with_shifts(losses_folder, tmp_path / "alone", replicates=1)))
    assert alone is not None and "too few replicates for an interval" in alone.findings[0]
    assert marks(alone.panels[0], "rule") == []


def mixed(losses_folder: Path, folder: Path) -> Path:
    """Temperature helps under fog, and harms under noise."""
    helped, harmed = (with_shifts(losses_folder, folder / str(helps), helps=helps) for helps in (0.6, 1.5))
    (part,) = (helped / "tables" / "evaluations").rglob("*.parquet")
    (other,) = (harmed / "tables" / "evaluations").rglob("*.parquet")
    noisy = pd.read_parquet(other).query("split.str.contains('gaussian_noise')")
    rest = pd.read_parquet(part).query("not split.str.contains('gaussian_noise')")
    pd.concat([rest, noisy]).to_parquet(part, schema=pq.read_schema(part), index=False)
    return helped


def test_each_kind_and_severity_is_judged_by_itself_for_each_loss(losses_folder: Path, tmp_path: Path) -> None:
    """Pooled over kinds, a temperature that helps half of them and harms the others shows no clear difference."""
    folder = mixed(losses_folder, tmp_path)
    results = Results(folder)
    best = shift.best_trials(results, leaderboard(results))
    assert len(best) > 1
    rows = results.rows(shift.shifted_sql(["ece", "posthoc_temperature_ece"]))
    for trial in best.values():
        found = shift.effects(rows, "ece", trial)
        assert {(effect.kind, effect.severity) for effect in found} == {(k, s) for k in KINDS for s in SEVERITIES}
        assert {effect.kind: effect.verdict.code for effect in found} == {"fog": BETTER, "gaussian_noise": WORSE}
        table = corrupted(folder)[1]
        for effect in found:
            mine = table.query(f"trial == '{trial}' and split == 'corrupted_{effect.kind}_{effect.severity}'")
            assert effect.before == pytest.approx(mine["ece"].mean())
            assert effect.after == pytest.approx(mine["posthoc_temperature_ece"].mean())
    figure = shift.draw(results)
    assert figure is not None
    maps = [panel for panel in figure.panels if marks(panel, "rect")]
    assert len(maps) == 2 * len(best) and all(len(marks(panel, "rect")) == 4 for panel in maps)
    assert all("gaussian noise" in panel.remarks[1] for panel in maps)


def test_one_seed_judges_no_kind(losses_folder: Path, tmp_path: Path) -> None:
    results = Results(with_shifts(losses_folder, tmp_path / "alone", replicates=1))
    rows = results.rows(shift.shifted_sql(["ece", "posthoc_temperature_ece"]))
    (trial, *_) = shift.best_trials(results, leaderboard(results)).values()
    assert {effect.verdict.code for effect in shift.effects(rows, "ece", trial)} == {NOT_COMPARED}


def test_detection_of_other_data_names_the_best_score() -> None:
    rows = [
        {"split": "other_svhn", "replicate": at, "msp": 0.8, "max_logit": 0.9 + at / 50, "energy": 0.9, "entropy": 0.7}
        for at in range(2)
    ]
    (panel,) = shift.detection(rows)
    assert panel.remarks == ["svhn: best detected by largest logit, AUROC 0.91."] and len(marks(panel, "point")) == 8
    assert shift.detection([]) == []
