"""An exported model takes tensors, pixels, images and files, and says which it cannot take."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sweeper
from sweeper.exporting.folder import DESCRIPTION, FORMAT, PROGRAM, _pictures, write_program
from sweeper.exporting.model import ExportedModel
from sweeper.exporting.program import CalibratedNetworks, RawNetworks, exported_program, raw_batches, reader_for
from tests.trainables.stream_files import write_tree
from trainables.datasets import DataSet, Split, load_dataset
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.raw_inputs import Numbers, described
from trainables.models import build_model
from trainables.posthoc import fit

SHAPE, STORED = (3, 12, 12), (3, 10, 10)
PREPROCESSING = ImagePreprocessing((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), 12)


def exported(folder: Path, module: torch.nn.Module, example: torch.Tensor, reader=None, **more) -> ExportedModel:
    """Write a module as an export does, and load it."""
    digest = write_program(exported_program(module, example), folder / PROGRAM)
    reader = reader or Numbers(tuple(example.shape[1:]), str(example.dtype).removeprefix("torch."), integers=False)
    description = {
        "format": FORMAT, "input": {"shape": [], "dtype": "", "transformed": False, **described(reader)},
        "output": {"classes": len(more.get("class_names", "abcd"))}, "program_sha256": digest, "pictures": None,
        "class_names": list("abcd"), "source": {"sweep": "made", "trial": "c00000"}, **more,
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


@pytest.fixture(scope="module")
def images() -> DataSet:
    """Images that are stored at 10x10, and resized and standardised for the network."""
    pixels = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (3, *STORED), dtype=np.uint8))
    split = Split(pixels, torch.arange(3), PREPROCESSING)
    return DataSet("images", split, split, split, 4, SHAPE, "")


def test_images_files_pixels_and_arrays_give_the_same_probabilities(module, images, tmp_path):
    stored = next(raw_batches(images, 3))
    reader, pictures = reader_for(images), {"side": 10, "resized": None}
    model = exported(tmp_path, RawNetworks(images, module).eval(), stored, reader, pictures=pictures)
    opened = [Image.fromarray(each) for each in stored.numpy().transpose(0, 2, 3, 1)]
    for at, picture in enumerate(opened):
        picture.save(tmp_path / f"{at}.png")
    with torch.no_grad():
        expected = module(PREPROCESSING(stored))
    for given in (stored, stored.numpy(), stored.double(), opened, [tmp_path / f"{n}.png" for n in range(3)]):
        assert torch.allclose(model.predict(given), expected, atol=1e-6)
    assert torch.allclose(model.predict(str(tmp_path / "1.png")), expected[1:2], atol=1e-6)
    assert torch.allclose(model.predict(stored[2]), expected[2:], atol=1e-6)
    assert torch.allclose(expected.sum(dim=1), torch.ones(3))
    with pytest.raises(sweeper.SweeperError, match=r"the value \d\.\d+ in sample 0"):
        model.predict(PREPROCESSING(stored)[:, :, :10, :10].abs())


def test_images_that_are_decoded_as_they_are_read_are_files_to_a_model(tmp_path):
    """Their centre is cut out of a larger image, unlike that of images in memory."""
    folder = write_tree(tmp_path / "photos", ["ant", "bee"], 20, "png")
    data = load_dataset("streamed_images", folder=str(folder), image_size=16, workers=0)
    torch.manual_seed(0)
    networks = RawNetworks(data, CalibratedNetworks([build_model("mlp", (3, 16, 16), 2).eval()], None)).eval()
    raw = next(raw_batches(data, 8))
    model = exported(tmp_path, networks, raw, reader_for(data), pictures=_pictures(data), class_names=["ant", "bee"])
    files = [data.test.source.images.path(int(row)) for row in data.test.source.rows[:8]]
    with torch.no_grad():
        expected = networks(raw)
    assert torch.equal(model.predict(files), expected)
    assert torch.equal(model.predict([Image.open(file) for file in files]), expected)


def test_what_a_model_cannot_take_is_said_in_a_sentence(module, tmp_path):
    model = exported(tmp_path, module, torch.zeros(3, *SHAPE))
    with pytest.raises(sweeper.SweeperError, match=r"cannot take float32 \[2, 3, 10, 10\]"):
        model.predict(torch.zeros(2, 3, 10, 10))
    with pytest.raises(sweeper.SweeperError, match="cannot take uint8"):
        model.predict(torch.zeros(2, *SHAPE, dtype=torch.uint8))
    with pytest.raises(sweeper.SweeperError, match="cannot take images"):
        model.predict(Image.new("RGB", (10, 10)))


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
    model = exported(tmp_path, module, tokens[:3], Numbers((30,), "int64", 0, 49))
    with torch.no_grad():
        assert torch.equal(model.predict(tokens), module(tokens))
    assert model.predict(tokens.numpy().astype("int32")[0]).shape == (1, 4)
    with pytest.raises(sweeper.SweeperError, match=r"the value 50 in sample 0"):
        model.predict(tokens - tokens + 50)
