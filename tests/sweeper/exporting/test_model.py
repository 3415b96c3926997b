"""An exported model takes tensors, pixels, images and files, and says which it cannot take."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sweeper
from sweeper.exporting.folder import DESCRIPTION, FORMAT, PROGRAM, write_program
from sweeper.exporting.model import ExportedModel
from sweeper.exporting.program import CalibratedNetworks, exported_program
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.models import build_model
from trainables.posthoc import fit

SHAPE = (3, 12, 12)
EXAMPLE = torch.zeros(3, *SHAPE)
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
IMAGES = {"stored_shape": [3, 10, 10], "mean": MEAN, "std": STD, "size": 12}


def exported(folder: Path, module: torch.nn.Module, example: torch.Tensor, images: dict | None = None) -> ExportedModel:
    """Write a module as an export does, and load it."""
    digest = write_program(exported_program(module, example), folder / PROGRAM)
    description = {
        "format": FORMAT, "input": {"shape": example.shape[1:], "dtype": str(example.dtype).removeprefix("torch.")},
        "output": {"classes": 4}, "program_sha256": digest,
        "class_names": list("abcd"), "preprocessing": images, "source": {"sweep": "made", "trial": "c00000"},
    }  # fmt: skip
    (folder / DESCRIPTION).write_text(json.dumps(description))
    return sweeper.load_model(folder)


@pytest.fixture(scope="module")
def module() -> CalibratedNetworks:
    """An untrained network with a temperature."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    calibrator = fit("temperature", rng.normal(size=(50, 4)), rng.integers(0, 4, 50))
    return CalibratedNetworks([build_model("mlp", SHAPE, 4).eval()], calibrator).eval()


def test_images_files_pixels_and_tensors_give_the_same_probabilities(module, tmp_path):
    model = exported(tmp_path, module, EXAMPLE, IMAGES)
    pixels = np.random.default_rng(1).integers(0, 256, (3, 10, 10, 3), dtype=np.uint8)
    pictures = [Image.fromarray(each) for each in pixels]
    for at, picture in enumerate(pictures):
        picture.save(tmp_path / f"{at}.png")
    stored = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())
    prepared = ImagePreprocessing(MEAN, STD, 12)(stored)
    with torch.no_grad():
        expected = module(prepared)
    for given in (
        prepared,
        prepared.numpy(),
        prepared.double(),
        stored,
        pictures,
        [tmp_path / f"{n}.png" for n in range(3)],
    ):
        assert torch.allclose(model.predict(given), expected, atol=1e-6)
    assert torch.allclose(model.predict(str(tmp_path / "1.png")), expected[1:2], atol=1e-6)
    assert torch.allclose(model.predict(stored[2]), expected[2:], atol=1e-6)
    assert torch.allclose(expected.sum(dim=1), torch.ones(3))


def test_what_a_model_cannot_take_is_said_in_a_sentence(module, tmp_path):
    model = exported(tmp_path, module, EXAMPLE)
    with pytest.raises(sweeper.SweeperError, match=r"cannot take float32 \[2, 3, 10, 10\]"):
        model.predict(torch.zeros(2, 3, 10, 10))
    with pytest.raises(sweeper.SweeperError, match="cannot take uint8"):
        model.predict(torch.zeros(2, *SHAPE, dtype=torch.uint8))
    with pytest.raises(sweeper.SweeperError, match="cannot take images"):
        model.predict(Image.new("RGB", (10, 10)))


def test_a_network_that_cannot_be_translated_is_named():
    class Follows(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs if inputs.sum() > 0 else -inputs

    with pytest.raises(sweeper.SweeperError, match=r"torch\.export cannot translate the network"):
        exported_program(CalibratedNetworks([Follows()], None), torch.ones(3, 4))


def test_a_network_of_trees_is_refused_without_a_page_of_graphs(capfd):
    """Its loop runs as often as the highest tree is high."""
    trees = torch.zeros(3, 3, 4, dtype=torch.int64)
    trees[:, 2] = torch.tensor([0, 0, 1, 1])
    network = build_model("tree_lstm", (3, 4), 2, vocabulary=5).eval()
    with pytest.raises(
        sweeper.SweeperError, match=r"torch\.export cannot translate the network \(GuardOnDataDep"
    ) as said:
        exported_program(CalibratedNetworks([network], None), trees)
    assert len(str(said.value)) < 400 and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["global_pooling_cnn", "text_average"])
def test_networks_of_token_ids_are_exported(name, tmp_path):
    torch.manual_seed(0)
    tokens = torch.randint(0, 50, (9, 30))
    module = CalibratedNetworks([build_model(name, (30,), 4, vocabulary=50).eval()], None).eval()
    model = exported(tmp_path, module, tokens[:3])
    with torch.no_grad():
        assert torch.equal(model.predict(tokens), module(tokens))
    assert model.predict(tokens.numpy().astype("int32")[0]).shape == (1, 4)
    with pytest.raises(sweeper.SweeperError, match=r"cannot take float32 \[9, 30\]"):
        model.predict(tokens.float())
