"""Several workers a trial: what a space may ask for, what does not go with it, and a file without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.loading import load_spec
from sweeper.space.parts import NOT_WITH_WORKERS
from tests.faults.reference import SMALL
from tests.running import write_space
from trainables.training.ranks.replicate import ranks_fault

TWO = "resources.workers=2"


def _load(folder: Path, *overrides: str) -> Any:
    return load_spec(write_space(folder, SMALL % {"samples": 2}), overrides)


def _fault(folder: Path, *overrides: str) -> Any:
    with pytest.raises(InvalidSearchSpace) as caught:
        _load(folder, *overrides)
    (fault,) = caught.value.faults
    return fault


def test_a_file_without_workers_resolves_to_what_it_always_did(tmp_path: Path) -> None:
    resolved = _load(tmp_path).resolved()
    assert "workers" not in resolved["resources"] and "sync_batch_norm" not in resolved["training"]
    asked = _load(tmp_path, "resources.workers=4", "training.sync_batch_norm=false").resolved()
    assert (asked["resources"]["workers"], asked["training"]["sync_batch_norm"]) == (4, False)
    file = tmp_path / "again.yaml"
    file.write_text(yaml.safe_dump(asked))
    assert load_spec(file).resolved() == asked


@pytest.mark.parametrize(
    ("overrides", "path", "rule", "remedy"),
    [
        (["resources.gpu=8"], "resources.gpu", "would reserve 8 cards for each process", "set gpu: 1 and workers: 8"),
        (["resources.gpu=0.25", "resources.workers=4"], "resources.gpu", "share no card", "set gpu: 1"),
        (
            ["replicates.packing=fused", "resources.workers=2"],
            "replicates.packing",
            "lanes in one process",
            "sequential",
        ),
        (["replicates.packing=cohort", "resources.workers=2"], "replicates.packing", "packing = cohort", "sequential"),
        (["replicates.packing=auto", "resources.workers=2"], "replicates.packing", "packing = auto", "sequential"),
        *(
            (
                [f"training.{name}=true", "resources.workers=2"],
                f"training.{name}",
                f"{name} = true",
                f"set {name}: false",
            )
            for name in NOT_WITH_WORKERS
        ),
        (["resources.workers=0"], "resources.workers", "greater than or equal to 1", ""),
    ],
)
def test_what_does_not_go_with_workers_is_refused_in_a_sentence(
    tmp_path: Path, overrides: list[str], path: str, rule: str, remedy: str
) -> None:
    fault = _fault(tmp_path, *overrides)
    assert fault.path == path and rule in fault.rule + fault.remedy and remedy in fault.remedy


@pytest.mark.parametrize(
    ("workers", "changes", "sentence"),
    [
        (64, {}, None),
        (65, {}, "workers = 65 cannot share batches of batch_size = 64: each needs a sample of every batch; choose at "
         "most 64 workers"),
        (1, {"space.architecture": "tree_lstm"}, None),
        (2, {"space.architecture": "tree_lstm"}, "workers = 2 cannot train tree_lstm"),
        (2, {"space.loss": "hessian_trace"}, None),
    ],
)  # fmt: skip
def test_what_a_configuration_cannot_be_trained_with_is_known_before_a_run(
    workers: int, changes: dict[str, str], sentence: str | None
) -> None:
    configuration = {
        "loss": {"name": changes.get("space.loss", "cross_entropy")},
        "architecture": {"name": changes.get("space.architecture", "mlp")},
        "optimizer": {"name": "sgd", "batch_size": 64},
    }
    found = ranks_fault(configuration, workers)
    assert found is None if sentence is None else found is not None and found.startswith(sentence)


def test_a_batch_too_small_for_the_workers_is_refused_with_the_data(tmp_path: Path) -> None:
    spec = _load(tmp_path, "resources.workers=65")
    with pytest.raises(InvalidSearchSpace, match=r"resources.workers: workers = 65 cannot share batches"):
        prepare_dataset(spec)
    prepare_dataset(_load(tmp_path, "resources.workers=64"))
