"""What γ does layer by layer: factors from tables that hold known ones, by seeds that are common or not."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sweeper.reporting.figures.curvature_by_layer import PARTS, WHOLE, changes_of, draw, factor, readings
from sweeper.results import Results
from tests.sweeper.reporting.figures.drawn import marks
from trainables.worker.trial_tables import BLOCKS_SCHEMA

SCALE, NETWORK = 0.2, {"0 first": 1.5, "1 last": 4.0}


def rows_of(common: bool, seeds: int = 5) -> list[dict[str, object]]:
    """Return rows as the figure's query gives them: each seed has a level of its own."""
    rng, rows = np.random.default_rng(0), []
    for number, gamma in enumerate((0.0, 3.0, 10.0)):
        for replicate in range(seeds):
            level = 10.0 ** (replicate if common else 0) * (1 if common else rng.uniform(0.9, 1.1))
            for layer, (block, grown) in enumerate(NETWORK.items()):
                plain = level * grown ** (gamma / 10)
                key = {
                    "trial": f"c{number:05d}", "replicate": replicate, "gamma": gamma, "layer": layer, "block": block,
                    "seed": replicate if common else 100 * number + replicate,
                }  # fmt: skip
                for loss, trace in (("cross_entropy", plain), ("training", plain * SCALE ** (gamma / 10))):
                    rows.append({**key, "loss": loss, "trace": trace, "lambda_max": trace / 2})
    return rows


@pytest.mark.parametrize("common", [True, False])
def test_factors_are_those_in_the_rows(common: bool) -> None:
    found = changes_of(rows_of(common))
    for layer, grown in NETWORK.items():
        for gamma in (3.0, 10.0):
            changes = {part: found[part][layer][gamma] for part in found}
            wanted = {"total": SCALE * grown, "scale": SCALE, "network": grown, "lambda_max": grown}
            for part, value in wanted.items():
                near = 1e-9 if common or part == "scale" else 0.15
                assert math.exp(changes[part].value) == pytest.approx(value ** (gamma / 10), rel=near), (layer, part)
            parts = changes["scale"].value + changes["network"].value
            assert changes["total"].value == pytest.approx(parts, abs=1e-9)
    whole = math.exp(found["network"][WHOLE][10.0].value)
    assert min(NETWORK.values()) < whole < max(NETWORK.values())
    assert WHOLE not in found["lambda_max"]


def test_common_seeds_leave_their_own_levels_out_of_the_error() -> None:
    rows = rows_of(common=True)
    alone = changes_of([{**row, "seed": hash((row["trial"], row["replicate"]))} for row in rows])
    known, wide = (found["network"]["1 last"][10.0].limits for found in (changes_of(rows), alone))
    assert known[1] - known[0] < (wide[1] - wide[0]) / 4


def test_what_is_not_above_zero_is_left_out() -> None:
    rows = [{**row, "trace": -1.0} if row["block"] == "0 first" else row for row in rows_of(common=True)]
    assert "0 first" not in {layer for layer, _ in readings(rows, "training", "trace")}
    assert "×" in factor(changes_of(rows)["total"]["1 last"][10.0])


def test_the_report_draws_it_from_the_tables(gamma_folder: Path, tmp_path: Path) -> None:
    assert draw(Results(gamma_folder)) is None, "no blocks were measured"
    folder = tmp_path / gamma_folder.name
    shutil.copytree(gamma_folder, folder, symlinks=True)
    keys = Results(folder).rows(
        "SELECT trial, replicate, epoch, coalesce(config_loss_gamma, 0) AS gamma FROM final "
        "WHERE split = 'val' AND stage = 'end'"
    )
    lines = [
        {**{k: key[k] for k in ("trial", "replicate", "epoch")}, "loss": loss, "layer": 0, "block": "0 only",
         "trace": SCALE ** key["gamma"] if loss == "training" else 2.0 ** key["gamma"], "lambda_max": 1.0}
        for key in keys for loss in ("cross_entropy", "training")
    ]  # fmt: skip
    part = next((folder / "tables" / "blocks").glob("*.parquet"))
    pq.write_table(pa.Table.from_pylist(lines, BLOCKS_SCHEMA), part)
    figure = draw(Results(folder))
    assert figure is not None and len(figure.panels) % 4 == 0
    cells = {(row["layer"], float(row["gamma"])): row["ratio"] for row in marks(figure.panels[1], "rect")}
    assert {layer for layer, _ in cells} == {"0 only", WHOLE}
    gamma = max(gamma for _, gamma in cells)
    assert cells["0 only", gamma] == pytest.approx(gamma * (math.log(SCALE) - math.log(2)), rel=1e-2)
    assert any(words in panel.heading for panel in figure.panels for words in PARTS.values())
    assert "the loss’s scale ×" in figure.findings[0] and "the network × " in figure.findings[0]
