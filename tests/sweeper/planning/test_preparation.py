"""What cannot be trained as asked is refused before any trial starts, with every reason."""

from pathlib import Path

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


RESNET = {"name": "timm", "model": "resnet18"}


@pytest.mark.parametrize(
    ("network", "size", "words"),
    [
        (RESNET, 49, "timm cannot train on the last batch of an epoch, 1 of 1079 samples at batch_size = 49"),
        (RESNET, 1, "timm cannot train on the first batch of an epoch, 1 of 1079 samples at batch_size = 1"),
        ({"name": "torchvision", "model": "googlenet"}, 64, "it gives a GoogLeNetOutputs; choose a network without"),
    ],
)
def test_a_network_that_cannot_train_on_a_batch_is_refused(network, size, words):
    dataset = "digits" if network == RESNET else {"name": "digits_stand_in", "size": 96, "channels": 3}
    space = {
        **SPACE["space"],
        "loss": "focal",
        "architecture": network,
        "optimizer": {"name": "sgd", "batch_size": size},
    }
    with pytest.raises(InvalidSearchSpace) as caught:
        prepare_dataset(build_spec({**SPACE, "dataset": dataset, "space": space}))
    (fault,) = caught.value.faults
    assert fault.path == "space.architecture" and words in fault.rule
    assert ("choose another batch_size" in fault.rule) == (network == RESNET)


@pytest.mark.parametrize("size", [48, 2000])
def test_a_network_that_can_train_is_accepted(size):
    space = {**SPACE["space"], "loss": "focal", "architecture": RESNET}
    spec = build_spec({**SPACE, "space": {**space, "optimizer": {"name": "sgd", "batch_size": min(size, 1079)}}})
    assert prepare_dataset(spec) is not None


def test_an_objective_that_no_fold_determines_is_refused_before_the_first_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n}.5,{n % 7},{int(n % 30 == 0)}" for n in range(120)]  # one of 24 validation samples is of class 1
    Path("rare.csv").write_text("\n".join(["a,b,y", *rows]))
    network = {"architecture": {"name": "mlp", "width": 8}, "loss": "focal"}
    space = {
        **SPACE,
        "dataset": {"name": "table", "file": "rare.csv", "target": "y"},
        "space": {**network, "optimizer": {"name": "sgd", "batch_size": 16}},
        "evaluation": {"posthoc": ["temperature"], "curvature": False},
    }
    with pytest.raises(InvalidSearchSpace) as caught:
        prepare_dataset(build_spec(space))
    (fault,) = caught.value.faults
    assert fault.path == "objective" and "val_posthoc_temperature_nll" in fault.rule and "val_nll" in fault.remedy
    assert prepare_dataset(build_spec({**space, "objective": {"metric": "val_nll"}})) is not None
