"""Every column of every table is described."""

from __future__ import annotations

from pathlib import Path

from sweeper.core.labels import label
from sweeper.reporting.figures.configurations import HESSIANS
from sweeper.reporting.tables import trials_table
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import columns_table, meaning
from tests.sweeper.held import held
from trainables.curvature.statistics.base import headline_columns, measured_loss, statistic_of


def test_every_column_of_every_table_is_described(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    rows = columns_table(results).to_pylist()
    assert {row["table"] for row in rows} >= {"trials", "epochs", "evaluations", "decisions", "final"}
    for table in ("trials", "final"):
        assert [row["column"] for row in rows if row["table"] == table] == results.columns(table)
    assert all(row["meaning"] for row in rows)


def test_a_hessians_columns_name_its_loss_and_the_split(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    columns = [(name, found[0]) for name in results.columns("evaluations") if (found := statistic_of(name)) is not None]
    assert {loss for _, loss in columns} >= {"training", "cross_entropy"}
    assert all(measured_loss(loss) in meaning(name) for name, loss in columns)
    headings = {column["label"]: column["meaning"] for column in trials_table(leaderboard(results)).columns}
    shown = [(name, loss) for name, loss in columns if name in headline_columns()]
    assert shown and all(measured_loss(loss) in headings[f"val {label(name)}"] for name, loss in shown)
    assert all(HESSIANS[loss].endswith(measured_loss(loss)) for loss in HESSIANS)
