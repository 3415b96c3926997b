"""Streamed images are divided, named and fingerprinted without a pixel being read, and train as others do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import load_spec
from tests.trainables.stream_files import write_tree
from trainables.datasets import load_dataset
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.sharing import content_key, shared_dataset
from trainables.models import fit_fault
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.packing import few_batches
from trainables.training.loop import Replicate
from trainables.worker.trial_settings import TrialSettings

NAMES = ["ant", "bee", "cat"]


def _load(folder, **options):
    return load_dataset("streamed_images", folder=str(folder), **{"image_size": 16, "workers": 0, **options})


def test_folders_of_classes_are_divided_as_in_memory(tmp_path):
    folder = write_tree(tmp_path / "photos", NAMES, 20, "png")
    found, other = _load(folder), load_dataset("image_folder", folder=str(folder), image_size=16)
    assert found.class_names == other.class_names == tuple(NAMES)
    for name, split in found.splits.items():
        assert torch.equal(split.targets, other.splits[name].targets)


def sizes(name, folder):
    data = load_dataset(name, folder=str(folder), image_size=16)
    return {part: len(split) for part, split in data.splits.items()}, data.class_names


@pytest.mark.parametrize("name", ["image_folder", "streamed_images"])
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"train": 10, "val": 4, "test": 3}, {"train": 30, "val": 12, "test": 9}),
        ({"train": 10, "val": 4}, {"train": 24, "val": 12, "test": 6}),
        ({"Train": 10, "valid": 4, "testing": 3}, {"train": 30, "val": 12, "test": 9}),
        ({"train": 10, "test": 3}, {"train": 27, "val": 3, "test": 9}),
    ],
)
def test_the_folders_of_splits_are_splits_and_not_classes(tmp_path, name, parts, expected):
    for part, count in parts.items():
        write_tree(tmp_path / "photos" / part, NAMES, count)
    (tmp_path / "photos" / "train" / ".ipynb_checkpoints").mkdir(parents=True)
    assert sizes(name, tmp_path / "photos") == (expected, tuple(NAMES))
    write_tree(tmp_path / "flat", ["train", "val"], 10)
    assert sizes(name, tmp_path / "flat") == ({"train": 14, "val": 2, "test": 4}, ("train", "val"))


def test_the_users_validation_images_are_those_measured_on(tmp_path):
    for part, side in (("train", 0), ("val", 1)):
        for label, own in enumerate(NAMES):
            (tmp_path / part / own).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((16, 16, 3), 100 * side + 10 * label + number, np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / own / f"{number}.png")
    data = load_dataset("image_folder", folder=str(tmp_path), image_size=16)
    assert data.val.inputs[:, 0, 0, 0].tolist() == [100 + 10 * label + n for label in range(3) for n in range(4)]
    assert data.val.targets.tolist() == [label for label in range(3) for _ in range(4)]
    assert data.train.inputs.max() < 100 and data.test.inputs.max() < 100


@pytest.mark.parametrize("name", ["image_folder", "streamed_images"])
@pytest.mark.parametrize(
    ("folders", "rule"),
    [
        (["train", "val/extra"], "has other classes than the training images: extra"),
        (["val", "test"], "has val and test, and no train"),
        (["train", "valid", "val"], "has val and valid, one split"),
        (["train", "more"], "has images in more beside the splits train"),
    ],
)
def test_folders_that_are_neither_splits_nor_classes_are_named(tmp_path, name, folders, rule):
    for folder in folders:
        write_tree(tmp_path / folder.split("/")[0], NAMES, 2)
        (tmp_path / folder).mkdir(exist_ok=True)
    with pytest.raises(DataSetUnavailableError, match=rule):
        sizes(name, tmp_path)


def test_the_name_of_the_contents_knows_views_and_not_workers(tmp_path):
    folder = write_tree(tmp_path / "photos", ["a", "b"], 20)
    key = content_key(_load(folder))
    assert content_key(_load(folder, workers=3)) == key
    others = [{"image_size": 20}, {"randaugment": 1}, {"augment": False}, {"validation_fraction": 0.2}, {"area": 0.5}]
    assert len({key, *(content_key(_load(folder, **each)) for each in others)}) == 6
    assert content_key(shared_dataset(key, lambda: _load(folder))) == key
    with pytest.raises(DataSetUnavailableError, match="other data than the sweep was started with"):
        shared_dataset(key, lambda: _load(folder, image_size=20))


def test_it_takes_no_memory_and_trains_evaluates_and_continues_to_the_bit(tmp_path):
    folder = write_tree(tmp_path / "photos", ["a", "b"], 40)
    settings = TrialSettings(
        {"name": "streamed_images", "folder": str(folder), "image_size": 16, "workers": 2}, 2, (2,), "val_nll",
        EvaluationSettings(bootstrap=0),
    )  # fmt: skip
    data = settings.load_dataset()
    assert data.nbytes == 80 * 8 and data.train.inputs.is_meta
    assert fit_fault(data, {"name": "resnet8", "width": 0.25}) is None
    configuration = {
        "loss": {"name": "cross_entropy"},
        "architecture": {"name": "resnet8", "width": 0.25},
        "optimizer": {"name": "sgd", "lr": 0.05, "batch_size": 16},
    }
    whole, first, second = (Replicate(configuration, seed=1, dataset=data, max_epochs=2) for _ in range(3))
    rows = [whole.train_epoch() for _ in range(2)]
    assert rows[1]["train_loss"] < rows[0]["train_loss"]
    saved = []

    def after_step():
        if first._progress.batches == 2:
            saved.append(first.state_dict() | {"model": {k: v.clone() for k, v in first.model.state_dict().items()}})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.train_epoch(after_step)
    second.load_state_dict(saved[0])
    assert [{**second.train_epoch(), "seconds": 0} for _ in range(2)] == [{**row, "seconds": 0} for row in rows]
    curvature = {"samples": 8, "lanczos_steps": 2}
    curved = EvaluationSettings.from_mapping({"bins": 5, "bootstrap": 0, "curvature": curvature})
    row = next(row for row in second.evaluate(curved, "end").rows if row["split"] == "val")
    assert np.isfinite(row["hessian_cross_entropy_lambda_max"])
    few = few_batches(data, 16, 2)
    assert len(few.train) == 32 and torch.equal(few.train.head(4), data.train.head(4))


def test_a_sweep_is_told_at_once_what_it_cannot_have(tmp_path):
    folder = write_tree(tmp_path / "photos", ["a", "b"], 40)
    space = f"""
dataset: {{name: streamed_images, folder: {folder}, image_size: 16}}
scheduler: {{name: none, max_epochs: 1}}
replicates: {{count: 2, packing: lanes}}
space:
  loss: cross_entropy
  architecture: resnet8
  optimizer: {{name: sgd, batch_size: 16, ema: 0.9}}
"""
    (tmp_path / "space.yaml").write_text(space)
    with pytest.raises(InvalidSearchSpace) as refused:
        prepare_dataset(load_spec(tmp_path / "space.yaml"))
    places = [fault.path for fault in refused.value.faults]
    assert places == ["evaluation.bins", "replicates.packing", "evaluation.curvature"]
    fine = load_spec(tmp_path / "space.yaml", ["replicates=2", "evaluation={bins: 5, curvature: {samples: 8}}"])
    assert len(prepare_dataset(fine).train) == 56
