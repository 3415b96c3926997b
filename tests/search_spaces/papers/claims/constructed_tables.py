"""Rows of `final` whose answers are known, for the judges of claims."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from search_spaces.papers.claims import CLAIMS

Row = dict[str, Any]
Measure = Callable[[Mapping[str, Any], np.random.Generator], Mapping[str, float]]


def rows_of(claim: str, configurations: Iterable[Mapping[str, Any]], measure: Measure) -> list[Row]:
    """Return the rows of the table that a claim is judged from."""
    if CLAIMS[claim].table == "epochs":
        return epoch_rows(configurations, measure)
    return final_rows(configurations, measure)


def epoch_rows(
    configurations: Iterable[Mapping[str, Any]], measure: Measure, *, epochs: int = 20, replicates: int = 5
) -> list[Row]:
    """Return rows of `epochs` with their configuration, as `judging.trajectory_rows` has them."""
    random = np.random.default_rng(0)
    return [
        {
            **replicate_row(index, replicate, configuration),
            "epoch": epoch,
            "split": "",
            **measure({**configuration, "epoch": epoch}, random),
        }
        for index, configuration in enumerate(configurations)
        for replicate in range(replicates)
        for epoch in range(1, epochs + 1)
    ]


def final_rows(
    configurations: Iterable[Mapping[str, Any]], measure: Measure, *, replicates: int = 4, seed: int = 0
) -> list[Row]:
    """Return the rows of configurations, each `{"loss_name": …}` without the prefix `config_`, for both splits."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for index, configuration in enumerate(configurations):
        for replicate in range(replicates):
            measured = measure(configuration, random)
            rows += split_rows(replicate_row(index, replicate, configuration), measured)
    return rows


def replicate_row(index: int, replicate: int, configuration: Mapping[str, Any]) -> Row:
    """Return what all rows of a replicate have: configurations are given without the prefix `config_`."""
    return {
        "trial": f"c{index:05d}",
        "replicate": replicate,
        "stage": "end",
        "config_hash": f"{index:016x}",
        "config_architecture_name": "mlp",
        **{f"config_{key}": value for key, value in configuration.items()},
    }


def split_rows(common: Row, measured: Mapping[str, float]) -> list[Row]:
    """Return the row of either split."""
    return [{**common, "split": split, **_of_split(measured, split)} for split in ("val", "test")]


def _of_split(measured: Mapping[str, float], split: str) -> Row:
    """Return what belongs to a split: keys without one, and those that begin with it and a dot."""
    held = {key: value for key, value in measured.items() if "." not in key or key.startswith(f"{split}.")}
    return {key.removeprefix(f"{split}."): value for key, value in held.items()}
