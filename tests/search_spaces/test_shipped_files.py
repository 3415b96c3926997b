"""Every search space that ships can be read and planned, and the families of losses all train."""

from __future__ import annotations

import math

import pytest

from search_spaces import packaged_files
from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.published_numbers import published_tables
from sweeper.planning.plan import plan
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from trainables.losses import LOSSES
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_it_has_a_header_and_a_plan(name: str) -> None:
    spec = load_spec(packaged_files()[name])
    assert spec.header.question and spec.header.source and spec.header.cost and spec.header.command
    assert plan(spec).to_dict()


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_its_tables_are_published_and_its_claims_exist(name: str) -> None:
    header = load_spec(packaged_files()[name]).header
    assert set(header.tables) <= set(published_tables())
    assert set(header.claims) <= set(CLAIMS)
    assert header.paper or not header.tables


def test_the_sweep_over_everything_is_of_clusters_scale() -> None:
    spec = load_spec("gamma_tau_nu")
    assert len(configurations(spec)) >= 1000 and spec.replicates.count == 5
    drawn = configurations(spec)[:]
    assert len({c["architecture"]["name"] for c in drawn}) >= 8
    assert {c["loss"]["name"] for c in drawn} >= {
        "cross_entropy",
        "focal",
        "inverse_focal",
        "dual_focal",
        "selective_risk",
    }


def test_curvature_of_every_loss_names_every_family_of_constant_gamma() -> None:
    """All but `focal_lambert`, which is focal loss at one γ."""
    drawn = configurations(load_spec("curvature_of_every_loss"))[:]
    assert {c["loss"]["name"] for c in drawn} == set(LOSSES) - {"focal_lambert"}


@pytest.mark.integration
def test_loss_families_names_every_loss_and_all_of_them_train() -> None:
    spec = load_spec("loss_families", ["scheduler.max_epochs=2", "evaluation.curvature.lanczos_steps=2"])
    drawn = configurations(spec)
    assert {values["loss"]["name"] for values in drawn} == set(LOSSES)
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=2,
        rungs=(2,),
        objective="val_nll",
        evaluation=spec.evaluation.settings,
        report_seconds=math.inf,  # the first report comes with the rung, however busy the machine
    )
    dataset = settings.load_dataset()
    for index in range(len(LOSSES)):
        report = Trial(Assignment(index, f"c{index:05d}", drawn[index], [index]), settings, dataset).advance()
        assert report.failure is None, drawn[index]
        assert math.isfinite(report.objective)
        assert report.evaluations[0].get("hessian_unavailable") is None, drawn[index]
