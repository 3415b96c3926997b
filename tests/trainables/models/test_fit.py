"""Networks and data sets that do not go together are found before anything runs; epochs of recipes; shortcuts."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

from tests.trainables.registered import register
from trainables.datasets import DataSet, Split, load_dataset
from trainables.datasets.base import batch_fault
from trainables.models import ARCHITECTURES, build_for, build_model, fit_fault
from trainables.models.base import step_fault
from trainables.models.preresnet import PreActivationBlock


def digits(name="digits"):
    return load_dataset(name)


@pytest.mark.parametrize(
    ("dataset", "architecture"),
    [
        ("digits", {"name": "mlp"}),
        ("digits", {"name": "resnet8"}),
        ("digits_32", {"name": "resnet50"}),
        ("digits_32", {"name": "wrn_28_10"}),
        ("digits_32", {"name": "vit_base_32"}),
        ("digits_32", {"name": "timm", "model": "convnext_atto", "pretrained": True}),
        ("known_posterior_1d", {"name": "mlp", "depth": 0}),
    ],
)
def test_what_fits_has_no_fault(dataset, architecture):
    assert fit_fault(digits(dataset), architecture) is None


@pytest.mark.parametrize(
    ("dataset", "architecture", "sentence"),
    [
        ("digits", {"name": "vgg19"}, "vgg19 cannot be trained on digits: .*at least 32x32.*8x8"),
        ("known_posterior_1d", {"name": "resnet8"}, "takes images"),
        ("digits_32", {"name": "vit_small_patch16_224"}, "image_size: 224"),
        ("digits_32", {"name": "tree_lstm"}, "parse trees"),
        ("digits", {"name": "resnet_cifar", "depth": 9}, "6n\\+2"),
        ("digits", {"name": "nothing"}, "unknown architecture 'nothing'"),
    ],
)
def test_what_does_not_fit_is_named(dataset, architecture, sentence):
    import re

    assert re.search(sentence, fit_fault(digits(dataset), architecture))


@pytest.mark.parametrize(("batch_size", "tried"), [(128, [8]), (49, [8, 1])])  # of 1079 samples, 55 and 1 are left
def test_a_training_step_is_tried_once_per_size(batch_size, tried):
    sizes = []
    hook = register_module_forward_hook(
        lambda module, inputs, _: sizes.append(len(inputs[0])) if isinstance(module, torch.nn.Linear) else None
    )
    with hook:
        assert step_fault(digits(), {"name": "mlp", "depth": 0}, batch_size) is None
    assert sizes == tried


def test_a_batch_larger_than_the_split_is_named():
    assert batch_fault(digits(), 1079) is None
    assert "larger than the 1079 training samples of digits; choose at most 1079" in batch_fault(digits(), 1080)


def test_text_networks_take_vocabulary_and_vectors_from_the_data():
    tokens = Split(torch.randint(0, 40, (6, 30), dtype=torch.int32), torch.tensor([0, 1, 2] * 2))
    vectors = torch.randn(40, 12)
    data = DataSet("words", tokens, tokens, tokens, 3, (30,), "", vocabulary=40, word_vectors=vectors)
    model = build_for(data, {"name": "global_pooling_cnn"})
    assert torch.equal(model.embedding.weight[1:], vectors[1:]) and model(tokens.inputs).shape == (6, 3)
    assert build_for(data, {"name": "text_average", "vocabulary": 40}).embedding.embedding_dim == 12
    assert fit_fault(data, {"name": "text_average"}) is None


def test_the_check_does_not_import_the_compiler():
    """Drawing a weight on the meta device would, which costs every command a second."""
    script = (
        "import sys; from trainables.datasets import load_dataset; from trainables.models import fit_fault\n"
        "assert fit_fault(load_dataset('digits'), {'name': 'resnet8'}) is None\n"
        "assert fit_fault(load_dataset('digits'), {'name': 'mlp'}) is None\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_weights_are_drawn_where_a_network_is_computed(monkeypatch):
    """A network may compute with its weights when it is built, e.g. divide them by their singular values."""

    def build(input_shape, classes):
        layer = torch.nn.Linear(64, classes)
        if layer.weight.device.type != "meta":
            drawn = torch.empty(classes, 64).fill_(torch.nan).normal_()
            torch.linalg.svdvals(drawn)
        return torch.nn.Sequential(torch.nn.Flatten(), layer)

    component = replace(ARCHITECTURES["mlp"], name="normalised", build=build, hyperparameters=())
    register(monkeypatch, ARCHITECTURES, "normalised", component)
    assert fit_fault(digits(), {"name": "normalised"}) is None


def by_hand(block: PreActivationBlock, inputs: torch.Tensor, raw: bool) -> torch.Tensor:
    """A bottleneck, line by line as the selective paper's released network computes it where `raw`."""
    hidden = functional.relu(block.bn1(inputs))
    shortcut = block.shortcut(inputs if raw else hidden)
    hidden = functional.relu(block.bn2(block.conv1(hidden)))
    hidden = functional.relu(block.bn3(block.conv2(hidden)))
    return block.conv3(hidden) + shortcut


@pytest.mark.parametrize("shortcut", ["activated", "raw"])
def test_a_bottleneck_that_changes_shape_projects_what_it_says(shortcut: str) -> None:
    torch.manual_seed(0)
    block = PreActivationBlock(8, 4, 2, bottleneck=True, shortcut=shortcut).eval()
    inputs = torch.randn(3, 8, 8, 8)
    torch.testing.assert_close(block(inputs), by_hand(block, inputs, shortcut == "raw"))


def test_the_two_differ_and_the_default_is_he_et_als() -> None:
    torch.manual_seed(0)
    plain = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True).eval()
    raw = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True, shortcut="raw").eval()
    same = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True, shortcut="activated").eval()
    raw.load_state_dict(plain.state_dict())
    same.load_state_dict(plain.state_dict())
    inputs = torch.randn(2, 3, 8, 8)
    assert torch.equal(plain(inputs), same(inputs)) and not torch.allclose(plain(inputs), raw(inputs), rtol=0.05)
