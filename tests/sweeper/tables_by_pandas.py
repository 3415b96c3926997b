"""A results folder's tables as pandas alone reads them: no code of the project."""

from pathlib import Path

import pandas as pd


def frame(folder: Path, table: str) -> pd.DataFrame:
    """A table, read by pandas alone."""
    return pd.read_parquet(folder / "tables" / table)


def last(folder: Path, split: str) -> pd.DataFrame:
    """Each replicate's last evaluation on a split, with its trial's columns; no code of the project."""
    rows = frame(folder, "evaluations").query("split == @split").sort_values("epoch")
    rows = rows.groupby(["trial", "replicate"]).tail(1)
    trials = frame(folder, "trials")
    own = [name for name in trials if name not in rows or name in ("trial", "replicate")]
    return rows.merge(trials[own], on=["trial", "replicate"])


def means(folder: Path, split: str, columns: list[str]) -> pd.DataFrame:
    """Means over replicates by trial."""
    rows = last(folder, split)
    names = [name for name in rows if name.startswith("config_") and name != "config_hash"]
    firsts = rows.groupby("trial")[["status", *names]].first()
    return firsts.join(rows.groupby("trial")[columns].mean())
