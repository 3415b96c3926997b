"""Pictures of mukhoti's Figs. 1, 5 and 8 from the tables of sweeps, and why cells stay empty."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from search_spaces import packaged_files
from search_spaces.papers.trained_pictures import temperature_curves, trained_pictures
from search_spaces.papers.translation.tokens import TEMPERATURES
from sweeper.core.cells import grouped
from sweeper.results import Results
from sweeper.space.loading import load_spec
from tests.search_spaces.papers.ideal_sweeps import ideal_sweep, table_of
from tests.sweeper.reporting.figures.drawn import layers, marks
from trainables.datasets import load_dataset
from trainables.worker.trial_tables import write_predictions


def rehearsal(output: Path, space: str) -> Results:
    return ideal_sweep(output, space, load_spec(packaged_files()[space], rehearse=True), f"{space}-rehearsal")


def edited(results: Results, table: str, change: object) -> None:
    """Replace a table's rows by what `change` makes of them."""
    path = results.folder / "tables" / table / "part.parquet"
    held = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist([change(row) for row in held.to_pylist()], held.schema), path)  # type: ignore[operator]


def test_reliability_on_training_data_is_drawn_for_each_evaluated_epoch(tmp_path: Path) -> None:
    results = rehearsal(tmp_path, "mukhoti_figure_1")
    (picture,) = trained_pictures(results)
    epochs = [1, 2, 3, 4]
    assert [panel.heading.partition(",")[0] for panel in picture.panels] == [f"epoch {epoch}" for epoch in epochs]
    for panel in picture.panels:
        shares = [row["y"] for row in layers(panel, "line")[-1]["data"]["values"]]
        assert len(marks(panel, "rect")) == len(shares) == 25 and sum(shares) == pytest.approx(1)


@pytest.mark.parametrize(("rising", "printed"), [(True, 1.0), (False, -1.0)])
def test_the_highest_bins_share_is_ranked_by_epoch(tmp_path: Path, rising: bool, printed: float) -> None:
    results = rehearsal(tmp_path, "mukhoti_figure_1")

    def fuller(row: dict[str, object]) -> dict[str, object]:
        epoch = int(str(row["epoch"]))
        share = epoch if rising else 10 - epoch
        return {**row, "n": 10 * share if row["bin"] == 24 else 10}

    edited(results, "reliability", fuller)
    (cell,) = table_of("mukhoti-fig1", results, rehearsed=True).cells
    assert cell.ours is not None and cell.ours.mean == pytest.approx(printed)


def test_bleu_and_errors_are_drawn_against_temperature(tmp_path: Path) -> None:
    results = rehearsal(tmp_path, "mukhoti_table_3_wmt14")
    curves = temperature_curves(results)
    assert [figure.title for figure in curves] == ["test bleu", "val ece"]
    for figure in curves:
        assert set(figure.legend) == {"cross_entropy", "label_smoothing", "focal"}
        lines = grouped(marks(figure.panels[0], "line"), lambda row: row["name"])
        assert all([row["x"] for row in line] == [*TEMPERATURES] for line in lines.values()) and len(lines) == 3
    assert [picture.title for picture in trained_pictures(results)] == [figure.title for figure in curves]


def test_linear_networks_are_drawn_with_their_boundaries_and_mistakes(tmp_path: Path) -> None:
    results = rehearsal(tmp_path, "mukhoti_figures_7_8")
    assert trained_pictures(results) == [], "no predictions are stored"
    options = {key: value for key, value in results.specification["dataset"].items() if key != "name"}
    test = load_dataset("mukhoti_linear", **options).test
    inputs = test.inputs.numpy().reshape(len(test), 2)
    epoch = load_spec(packaged_files()["mukhoti_figures_7_8"], rehearse=True).scheduler.max_epochs
    wrong = {}
    for trial, weights in (("c00000", np.array([3.0, 1.0])), ("c00001", np.array([1.0, 3.0]))):
        score = inputs @ weights
        logits = dict.fromkeys(("val", "test"), np.stack([np.zeros_like(score), score], 1))
        targets = dict.fromkeys(logits, test.targets.numpy())
        write_predictions(results.folder / "tables", (trial, 0, epoch), logits, targets)
        missed = (score > 0) != (test.targets.numpy() == 1)
        wrong[trial] = int(missed.sum())
    (results.folder / "tables" / "predictions" / "part.parquet").unlink(missing_ok=True)
    histogram, boundaries = trained_pictures(results)
    assert all(any(f"n = {count}," in words for words in histogram.legend) for count in wrong.values())
    angle = np.degrees(np.arccos(6 / 10))
    assert f"boundaries {angle:.2f}° apart" in boundaries.caption
    assert all("|w| 3.16" in panel.heading and len(marks(panel, "line")) == 2 for panel in boundaries.panels)


def test_an_empty_cell_says_why(tmp_path: Path) -> None:
    results = rehearsal(tmp_path, "selective_tables_cifar10")

    def refused(row: dict[str, object]) -> dict[str, object]:
        metacal = {key for key in row if key.startswith("posthoc_metacal_acc_") and isinstance(row[key], float)}
        why = f"accuracy = 0.97 is above {np.random.default_rng(len(str(row))).random():.3f}"
        return {**row, **dict.fromkeys(metacal), "posthoc_metacal_acc_unavailable": why}

    edited(results, "evaluations", refused)
    assert table_of("mukhoti-13", results, rehearsed=True).reasons == {}, "another paper's sweep explains nothing"
    table = table_of("selective-a4", results, rehearsed=True)
    ((reason, count),) = table.reasons.items()
    assert reason.startswith("accuracy = 0.97 is above 0.") and count == 4 * 7 * 2
    assert all(not cell.reason for cell in table.cells if cell.ours)


def test_a_correlation_of_equal_values_says_why_it_is_missing(tmp_path: Path) -> None:
    results = rehearsal(tmp_path, "mukhoti_figure_1")
    edited(results, "reliability", lambda row: {**row, "n": 5})
    table = table_of("mukhoti-fig1", results, rehearsed=True)
    assert table.filled == 0
    ((reason, count),) = table.reasons.items()
    assert reason.startswith("spearman_epoch_highest_bin of train data was not measured") and count == 1
