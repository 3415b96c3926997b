"""What MLflow is told of a data set: the same digest for the same data, another for other options or contents."""

from __future__ import annotations

import json

from sweeper.tracking.mlflow.client import used_dataset

RECORDED = {
    "name": "digits", "label_noise": 0.0, "samples": {"train": 6, "val": 4, "test": 2}, "classes": 10,
    "split_hash": "ab",
}  # fmt: skip


def test_the_sweeps_own_data_set_has_sizes_and_the_hash_of_its_splits():
    used = used_dataset({"name": "digits", "label_noise": 0.0}, RECORDED)
    profile = json.loads(used.profile)
    assert profile == {
        "num_rows": 12, "train": 6, "val": 4, "test": 2, "classes": 10, "split_hash": "ab", "label_noise": 0.0
    }  # fmt: skip
    assert used.name == "digits" and len(used.digest) == 16
    assert (used.source_type, json.loads(used.source)["tags"]["mlflow.source.name"]) == (
        "code", "trainables.datasets: digits"
    )  # fmt: skip


def test_digests_tell_data_sets_apart():
    own = {"name": "digits", "label_noise": 0.0}
    digests = [
        used_dataset(own, RECORDED).digest,
        used_dataset(own, {**RECORDED, "split_hash": "cd"}).digest,
        used_dataset({**own, "label_noise": 0.1}, RECORDED).digest,
        used_dataset({"name": "svhn"}, RECORDED).digest,
    ]
    assert len(set(digests)) == 4 and used_dataset(dict(reversed(own.items())), RECORDED).digest == digests[0]
    assert "num_rows" not in json.loads(used_dataset({**own, "label_noise": 0.1}, RECORDED).profile)


def test_a_folder_is_its_own_source(tmp_path):
    used = used_dataset({"name": "image_folder", "folder": str(tmp_path)}, {})
    assert (used.source_type, json.loads(used.source)) == ("local", {"uri": tmp_path.as_uri()})
    own = used_dataset({"name": "own_components:spirals"}, {})
    assert json.loads(own.source)["tags"]["mlflow.source.name"] == "own_components:spirals"
