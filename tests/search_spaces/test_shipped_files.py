"""Every search space that ships can be read and planned, and the families of losses all train."""

import math
import re

import numpy as np
import pytest
import torch
from PIL import Image

from search_spaces import packaged_files
from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.published_numbers import published_tables
from sweeper.planning.plan import plan
from sweeper.results.results import load
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from tests.release import readme
from tests.running import in_process
from trainables.losses import LOSSES
from trainables.models import build_model
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_it_has_a_header_and_a_plan(name: str) -> None:
    spec = load_spec(packaged_files()[name])
    assert spec.header.question and spec.header.source and spec.header.cost and spec.header.command
    assert set(spec.header.tables) <= set(published_tables()) and set(spec.header.claims) <= set(CLAIMS)
    assert spec.header.paper or not spec.header.tables
    # Papers' spaces are planned one each: they differ in their tables, and a plan takes half a second.
    if not spec.header.tables or name in ("mukhoti_table_3_wmt14", "curvature_figure_4", "selective_tables_cifar10"):
        assert plan(spec).to_dict()


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


#: Losses that the five papers define or compare with; a loss that is added may be in a shipped file, too.
OF_PAPERS = {name for name in LOSSES if re.search("mukhoti|selective|curvature|papers", LOSSES[name].source)}


def test_curvature_of_every_loss_names_every_family_of_constant_gamma() -> None:
    """All but `focal_lambert`, which is focal loss at one γ."""
    drawn = {c["loss"]["name"] for c in configurations(load_spec("curvature_of_every_loss"))[:]}
    assert OF_PAPERS - {"focal_lambert"} <= drawn <= set(LOSSES) and len(OF_PAPERS) >= 14


@pytest.mark.integration
def test_loss_families_names_every_loss_and_all_of_them_train() -> None:
    spec = load_spec("loss_families", ["scheduler.max_epochs=2", "evaluation.curvature.lanczos_steps=2"])
    drawn = configurations(spec)
    assert OF_PAPERS <= {values["loss"]["name"] for values in drawn} <= set(LOSSES)
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


SMALLER = [
    "samples=3",
    "scheduler={name: asha, max_epochs: 3, grace_epochs: 1}",
    "dataset.image_size=32",
    "evaluation.bootstrap=0",
    "space.optimizer.batch_size=16",
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """160 small images of two classes that differ in colour, and weights of 7 other classes."""
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    for label, tint in (("blue", (0, 0, 90)), ("red", (90, 0, 0))):
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(80):
            pixels = random.integers(0, 150, (36, 40, 3)) + np.array(tint)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / "photos" / label / f"{number}.png")
    torch.manual_seed(0)
    torch.save(build_model("timm", (3, 32, 32), 7, model="resnet10t").state_dict(), folder / "resnet10t.pth")
    return folder


@pytest.mark.slow
def test_the_commands_of_the_readme_run(photos, monkeypatch):
    (line,) = [each.line for each in readme.commands() if "examples/fine_tuning" in each.line]
    words = [word.replace("resnet18", "resnet10t") for word in readme.Command(line).parts[0][1:]]
    assert words[:2] == ["run", "examples/fine_tuning"]
    changes = [*SMALLER, "space.architecture.model=resnet10t"]
    monkeypatch.setenv("SWEEPER_DATA", str(photos / "data"))
    more = [part for change in changes for part in ("--set", change)]
    done = in_process(*words, *more, "--output", photos, "--name", "tuned", "--executor", "local", cwd=photos)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = load("tuned", photos).rows("SELECT status, config_optimizer_layer_decay AS decay FROM trials")
    assert len({row["decay"] for row in rows}) == 3
    assert all(row["status"] in ("completed", "early_stopped") for row in rows)


def test_radii_of_sharpness_are_hyperparameters_of_the_plan():
    spec = load_spec("sharpness_and_curvature")
    assert plan(spec).to_dict()["trials"] == 2 * (6 + 4)
