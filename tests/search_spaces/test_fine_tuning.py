"""The README's fine-tuning runs as it is written: a folder of images, weights in a file, one command."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sweeper.planning.plan import plan
from sweeper.results.results import load
from sweeper.space.loading import load_spec
from tests.release import readme
from tests.running import in_process
from trainables.models import build_model

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
