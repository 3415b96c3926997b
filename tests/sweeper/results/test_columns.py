"""Every column of every table is described."""

from __future__ import annotations

from pathlib import Path

from sweeper.results.listing import columns_table, meaning
from tests.sweeper.held import held


def test_every_column_of_every_table_is_described(quickstart_folder: Path) -> None:
    results = held(quickstart_folder)
    rows = columns_table(results).to_pylist()
    assert {row["table"] for row in rows} >= {"trials", "epochs", "evaluations", "decisions", "final"}
    for table in ("trials", "final"):
        assert [row["column"] for row in rows if row["table"] == table] == results.columns(table)
    assert all(row["meaning"] for row in rows)


def test_a_column_is_described_by_its_declaration() -> None:
    assert meaning("ece").endswith("in [0, 1]; smaller is better")
    assert meaning("ece_se") == "standard error of ECE"
    assert meaning("posthoc_temperature_nll").startswith("NLL after temperature: ")
    assert meaning("config_loss_gamma") == "hyperparameter gamma of the loss"
    assert meaning("status").startswith("waiting, running, completed")
