"""What cannot be trained as asked is refused before any trial starts, with every reason."""

from __future__ import annotations

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import build_spec

SPACE = {
    "dataset": "digits",
    "scheduler": {"name": "none", "max_epochs": 1},
    "samples": 8,
    "space": {
        "loss": {"grid": ["focal", {"name": "selective_risk", "history": "epoch"}, "hessian_trace", "adafocal"]},
        "architecture": {"name": "mlp", "width": 8},
        "optimizer": {"name": "sgd", "batch_size": 64},
    },
}


def test_more_bins_than_samples_are_refused_before_the_first_trial():
    assert len(prepare_dataset(build_spec({**SPACE, "evaluation": {"bins": 359}})).val) == 359
    with pytest.raises(InvalidSearchSpace) as caught:
        prepare_dataset(build_spec({**SPACE, "evaluation": {"bins": 360}}))
    assert [(fault.path, fault.rule) for fault in caught.value.faults] == [
        ("evaluation.bins", "359 samples are fewer than 360 bins: use at most 359 bins or more samples")
    ]
