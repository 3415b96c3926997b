"""Every network: two training steps on its data's shape, finite and, in evaluation mode, deterministic."""

import pytest
import torch
from torch import nn

from trainables.models import ARCHITECTURES, build_model

IMAGE = (3, 32, 32)
HEAVY = {
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet110_bottleneck",
    "wrn_28_10",
    "wrn_26_10",
    "wide_resnet",
    "vit_base_32",
    "vit_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "densenet121",
    "resnet34",
    "vgg19",
    "resnet110",
    "preresnet56_bottleneck",
}
OPTIONS = {
    "timm": {"model": "resnet10t"},
    "torchvision": {"model": "squeezenet1_1"},
    "vit_small_32": {"depth": 2},
    "vit_base_32": {"depth": 2},
}


def trees(samples, generator):
    """Random right-branching trees of 2 to 5 words, padded to 9 nodes."""
    rows = torch.zeros(samples, 9, 4, dtype=torch.int64)
    rows[:, :, 3] = -1
    for sample in rows:
        words = int(torch.randint(2, 6, (1,), generator=generator))
        sample[:words, 0] = torch.randint(1, 100, (words,), generator=generator)
        sample[:words, 3] = 0
        root = words - 1
        for height in range(1, words):
            place = words - 1 + height
            sample[place] = torch.tensor([0, words - 1 - height, root, height])
            root = place
    return rows


def inputs_for(name, samples):
    generator = torch.Generator().manual_seed(0)
    if name == "tree_lstm":
        return trees(samples, generator)
    if name in ("global_pooling_cnn", "text_average"):
        return torch.randint(0, 100, (samples, 30), generator=generator)
    side = 224 if name.endswith("224") else 64 if name in ("timm", "torchvision") else 32 if name in HEAVY else 16
    return torch.randn(samples, 3, side, side, generator=generator)


def names(heavy):
    # A network that translates takes pairs of sentences and gives logits of tokens: test_transformer.py; one of
    # transformers is read from a folder: test_hugging_face.py.
    elsewhere = {"transformers"}
    return [name for name in ARCHITECTURES if (name in HEAVY) == heavy and name not in elsewhere]


def train_two_steps(name):
    torch.manual_seed(0)
    inputs, targets = inputs_for(name, 4), torch.tensor([0, 1, 2, 1])
    model = build_model(name, tuple(inputs.shape[1:]), 3, **OPTIONS.get(name, {}))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    model.train()
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
        assert any(p.grad.abs().max() > 0 for p in model.parameters() if p.grad is not None)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        first, second = model(inputs), model(inputs)
        alone = model(inputs[:1])
    assert first.shape == (4, 3) and first.isfinite().all() and torch.equal(first, second)
    torch.testing.assert_close(alone, first[:1], rtol=1e-3, atol=1e-3)  # a sample's logits are its own


@pytest.mark.parametrize("name", names(heavy=False))
def test_a_network_trains_two_steps(name):
    train_two_steps(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", names(heavy=True))
def test_a_heavy_network_trains_two_steps(name):
    train_two_steps(name)


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "densenet121", "mobilenet_v2", "preresnet56"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_stem_takes_the_channels_of_the_data(name, channels):
    with torch.device("meta"):
        model = build_model(name, (channels, 32, 32), 7)
        assert model(torch.zeros(2, channels, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "hyperparameters", "sentence"),
    [
        ("resnet19", IMAGE, {}, "did you mean 'resnet1"),
        ("mlp", IMAGE, {"hidden": 3}, "takes no hyperparameter 'hidden'"),
        ("vgg19", (3, 8, 8), {}, "at least 32x32"),
        ("resnet18", (64,), {}, "takes images"),
        ("wide_resnet", IMAGE, {"depth": 26}, "6n\\+4"),
        ("preresnet", IMAGE, {"depth": 57}, "6n\\+2"),
        ("vit_small_32", (3, 30, 30), {}, "patch_size to a divisor"),
        ("vit_small_patch16_224", IMAGE, {}, "image_size: 224"),
        ("timm", IMAGE, {"model": "resnet5"}, "did you mean 'resnet"),
        ("timm", IMAGE, {}, "needs model"),
        ("timm", IMAGE, {"model": "resnet10t", "weights_file": "/nowhere.pth"}, "/nowhere.pth"),
        ("torchvision", IMAGE, {"model": "resnet19"}, "did you mean"),
        ("torchvision", (1, 32, 32), {"model": "resnet18"}, "3 channels"),
        ("global_pooling_cnn", (20,), {}, "at least 21 tokens"),
        ("tree_lstm", (20,), {}, "parse trees"),
        ("text_average", IMAGE, {}, "choose a text data set"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(name, shape, hyperparameters, sentence):
    with pytest.raises(ValueError, match=sentence):
        build_model(name, shape, 10, **hyperparameters)


class Code:
    def __reduce__(self):
        return (print, ("code of the file was run",))


@pytest.mark.parametrize("source", ["timm", "torchvision"])
@pytest.mark.parametrize(
    "content",
    [
        {"a": torch.zeros(1)}, {"a": Code()}, b"cut", [1, 2], {"model": "resnet18"}, {"state_dict": [torch.zeros(1)]},
        torch.zeros(2),
    ],
    ids=["other", "code", "cut", "list", "text", "nested", "tensor"],
)  # fmt: skip
def test_unsuitable_weights_are_refused(tmp_path, capsys, source, content):
    torch.save({"a": torch.zeros(1)} if content == b"cut" else content, path := tmp_path / "weights.pth")
    if content == b"cut":
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"weights\.pth.*give weights of this network"):
        build_model(source, IMAGE, 5, weights_file=str(path), **OPTIONS[source])
    assert "code of the file" not in capsys.readouterr().out


def test_safetensors_are_read_and_broken_ones_refused(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "weights.safetensors"
    source = build_model("timm", IMAGE, 5, model="resnet10t")
    save_file(source.state_dict(), path)
    loaded = build_model("timm", IMAGE, 5, model="resnet10t", weights_file=str(path))
    assert torch.equal(loaded.conv1[0].weight, source.conv1[0].weight)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="give weights of this network"):
        build_model("timm", IMAGE, 5, model="resnet10t", weights_file=str(path))


def test_weights_that_cannot_be_fetched_are_explained(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="check the connection, or give weights_file"):
        build_model("timm", IMAGE, 5, model="resnet10t", pretrained=True)


def reference_tree_states(model, tree, place):
    """The Tree-LSTM one node at a time, by recursion."""
    token, left, right, height = tree[place].tolist()
    if height == 0:
        cell, gate = model.leaf(model.embedding.weight[token][None]).chunk(2, 1)
        return cell, torch.sigmoid(gate) * torch.tanh(cell)
    return model.compose(*reference_tree_states(model, tree, left), *reference_tree_states(model, tree, right))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("output_gate", [True, False])
def test_the_batched_tree_lstm_equals_recursion(seed, output_gate):
    torch.manual_seed(seed)
    model = build_model("tree_lstm", (9, 4), 2, vocabulary=100, dimension=7, width=5, output_gate=output_gate).eval()
    batch = trees(6, torch.Generator().manual_seed(seed))
    roots = [int((tree[:, 3] >= 0).sum()) - 1 for tree in batch]
    states = [reference_tree_states(model, tree, root)[1] for tree, root in zip(batch, roots, strict=True)]
    torch.testing.assert_close(model(batch), model.classifier(torch.cat(states)))


def test_word_vectors_start_the_embedding():
    vectors = torch.randn(50, 8)
    fixed = build_model("global_pooling_cnn", (30,), 3, vocabulary=50, word_vectors=vectors)
    tuned = build_model("tree_lstm", (9, 4), 3, vocabulary=50, word_vectors=vectors)
    assert not fixed.embedding.weight.requires_grad and tuned.embedding.weight.requires_grad
    assert torch.equal(fixed.embedding.weight[1:], vectors[1:])
    with pytest.raises(ValueError, match="set the architecture's vocabulary"):
        build_model("text_average", (30,), 3, word_vectors=vectors)


@pytest.mark.parametrize(("source", "model"), [("torchvision", "resnet18"), ("timm", "resnet10t")])
def test_a_head_of_any_other_classes_is_replaced(tmp_path, source, model):
    published = build_model(source, IMAGE, 7, model=model)
    path = tmp_path / "weights.pth"
    torch.save(published.state_dict(), path)
    weights = build_model(source, IMAGE, 5, model=model, weights_file=str(path)).state_dict()
    assert weights["fc.weight"].shape == (5, 512)
    assert all(torch.equal(v, weights[k]) for k, v in published.state_dict().items() if not k.startswith("fc."))
    same = build_model(source, IMAGE, 7, model=model, weights_file=str(path)).state_dict()
    assert all(torch.equal(v, same[k]) for k, v in published.state_dict().items())


@pytest.mark.parametrize("classes", [5, 7])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {f"module.{key}": value for key, value in state.items()},
        lambda state: {f"_orig_mod.module.{key}": value for key, value in state.items()},
        lambda state: {"model": state, "epoch": 3},
        lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    ],
)
@pytest.mark.parametrize("model", ["squeezenet1_1", "resnet18"])
def test_torchvision_takes_weights_as_training_scripts_save_them(tmp_path, model, wrap, classes):
    published = build_model("torchvision", IMAGE, 7, model=model).state_dict()
    torch.save(wrap(published), path := tmp_path / "weights.pth")
    network = build_model("torchvision", IMAGE, classes, model=model, weights_file=str(path))
    weights = network.state_dict()
    head = "fc." if model == "resnet18" else "classifier.1."
    new = {key for key, value in published.items() if not torch.equal(value, weights[key])}
    assert new == (set() if classes == 7 else {f"{head}weight", f"{head}bias"})
    assert network.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, classes)
