"""One epoch of a paper's recipe on images of CIFAR's shape."""

import pytest
import torch

from trainables.datasets import DataSet, Split
from trainables.datasets.base import batches, evaluation_batches
from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing
from trainables.models import build_for
from trainables.training.recipe import build_optimizer, learning_rate, prepare_gradients, set_learning_rate

RECIPE = {
    "name": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 32,
    "schedule": "step",
    "milestones": [150, 250],
    "recipe_epochs": 350,
    "gradient_clip": 2.0,
    "reduction": "sum",
}


def cifar_shaped(samples):
    """Ten classes of random images, each with its own brightness, stored as uint8."""
    targets = torch.arange(samples) % 10
    images = torch.randint(0, 100, (samples, 3, 32, 32)) + 15 * targets.view(-1, 1, 1, 1)
    preprocessing = ImagePreprocessing((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    train = Split(images.to(torch.uint8), targets, preprocessing, CropAndFlip())
    held = Split(train.inputs[:20], targets[:20], preprocessing)
    return DataSet("cifar_shaped", train, held, held, 10, (3, 32, 32), "")


@pytest.mark.parametrize("architecture", ["resnet8", pytest.param("resnet50", marks=pytest.mark.slow)])
def test_an_epoch_runs_through(architecture):
    torch.manual_seed(0)
    data = cifar_shaped(128)
    model = build_for(data, {"name": architecture})
    optimizer = build_optimizer(model, RECIPE)
    generator = torch.Generator().manual_seed(0)
    set_learning_rate(optimizer, learning_rate(RECIPE, 0, 7))
    seen = 0
    for inputs, targets in batches(data.train, RECIPE["batch_size"], generator):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        prepare_gradients(model.parameters(), RECIPE, len(targets))
        optimizer.step()
        seen += len(targets)
        assert loss.isfinite()
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(inputs) for inputs, _ in evaluation_batches(data.val, 8)])
    assert seen == 128 and logits.shape == (20, 10) and logits.isfinite().all()
