"""Stored predictions are read by evaluation, whatever the order of a merged file's rows."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from sweeper.results.predictions import evaluations_in


def shuffled(generator: np.random.Generator) -> list[dict[str, object]]:
    """Return the rows of six evaluations with two splits each, in an order without any system."""
    evaluations = itertools.product(("c00000", "c00007", "c00012"), (0, 1), ("val", "test"))
    rows = [
        {"trial": trial, "replicate": replicate, "epoch": 3, "split": split, "target": int(generator.integers(3)),
         "logits": generator.normal(size=3).astype(np.float32)}
        for trial, replicate, split in evaluations for _ in range(int(generator.integers(1, 6)))
    ]  # fmt: skip
    return [rows[at] for at in generator.permutation(len(rows))]


@pytest.mark.parametrize("trials", [None, ["c00007", "c00012"], ["c00099"]])
def test_evaluations_equal_those_picked_row_by_row(trials: list[str] | None) -> None:
    rows = shuffled(np.random.default_rng(7))
    types = {"trial": pa.string(), "replicate": pa.int64(), "epoch": pa.int64(), "split": pa.string()}
    schema = pa.schema({**types, "target": pa.int64(), "logits": pa.list_(pa.float32(), 3)})
    read = evaluations_in(pa.Table.from_pylist(rows, schema), trials)
    wanted = [row for row in rows if trials is None or row["trial"] in trials]
    keys = dict.fromkeys((row["trial"], row["replicate"], row["epoch"]) for row in wanted)
    assert [(one.trial, one.replicate, one.epoch) for one in read] == [*keys]
    for one in read:
        own = [row for row in wanted if (row["trial"], row["replicate"]) == (one.trial, one.replicate)]
        assert one.logits.keys() == one.targets.keys() == {row["split"] for row in own}
        for split in one.logits:
            of_split = [row for row in own if row["split"] == split]
            assert np.array_equal(one.targets[split], [row["target"] for row in of_split])
            assert np.array_equal(one.logits[split], [row["logits"] for row in of_split])
            assert one.targets[split].flags.writeable
