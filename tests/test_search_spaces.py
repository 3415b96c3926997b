"""Every search space that ships can be read and planned, and the families of losses all train."""

from __future__ import annotations

import math

import pytest

from search_spaces import packaged_files
from sweeper.plan import plan
from sweeper.space import configurations
from sweeper.spec import load_spec
from trainables.losses import LOSSES
from trainables.trial import Assignment, Trial, TrialSettings


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_it_has_a_header_and_a_plan(name: str) -> None:
    spec = load_spec(packaged_files()[name])
    assert spec.header.question and spec.header.source and spec.header.cost and spec.header.command
    assert plan(spec).to_dict()


def test_loss_families_names_every_loss_and_all_of_them_train() -> None:
    spec = load_spec("loss_families", ["scheduler.max_epochs=2", "evaluation.curvature.lanczos_steps=2"])
    drawn = configurations(spec)
    assert {values["loss"]["name"] for values in drawn} == set(LOSSES)
    settings = TrialSettings.from_mapping(
        {
            "dataset": spec.dataset,
            "max_epochs": 2,
            "rungs": [2],
            "objective": "val_nll",
            "evaluation": spec.evaluation.model_dump(mode="json"),
        }
    )
    dataset = settings.load_dataset()
    for index in range(len(LOSSES)):
        report = Trial(Assignment(index, f"c{index:05d}", drawn[index], [index]), settings, dataset).advance()
        assert report["failure"] is None, drawn[index]
        assert math.isfinite(report["objective"])
        assert report["evaluations"][0].get("hessian_unavailable") is None, drawn[index]
