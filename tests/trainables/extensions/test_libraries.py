import subprocess
import sys
import types

import pytest
import torch

from trainables.extensions import libraries


@pytest.mark.integration
def test_torchvision_and_timm_import_and_build():
    program = (
        "from trainables.extensions.libraries import register_missing_operators as r; r(); r();"
        "import torch, torchvision, timm;"
        "m = torchvision.models.resnet18(num_classes=3);"
        "assert m(torch.zeros(1, 3, 64, 64)).shape == (1, 3)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '0.28.0+cu130'\ngit_version = 'abc'\n", "130"),
        ("__version__ = '0.28.0+cpu'\n", None),
        ("__version__ = '0.28.0'\n", None),
    ],
)
def test_the_cuda_version_is_read_from_the_file(tmp_path, monkeypatch, text, expected):
    (tmp_path / "version.py").write_text(text)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec)
    assert libraries.torchvision_cuda_version() == expected


def test_matching_pairs_are_left_alone(monkeypatch):
    monkeypatch.setattr(libraries, "_library", None)
    monkeypatch.setattr(libraries, "torchvision_cuda_version", lambda: None)
    assert libraries.register_missing_operators() is False


def test_a_missing_torchvision_is_named(monkeypatch):
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install torchvision"):
        libraries.torchvision_cuda_version()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
        (torch.optim.Adam, {"weight_decay": 1e-2}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_an_optimiser_without_compiler_takes_the_same_steps(kind, options):
    ends = []
    for made in (kind, libraries.without_compiler(kind)):
        torch.manual_seed(0)
        network, inputs = torch.nn.Linear(5, 3), torch.randn(8, 5)
        optimizer = made(network.parameters(), lr=0.1, **options)
        for step in range(6):
            if step == 3:
                saved = optimizer.state_dict()
                optimizer = made(network.parameters(), lr=7.0)
                optimizer.load_state_dict(saved)
            network(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert all(weights.grad is None for weights in network.parameters())
        ends.append([*network.parameters(), *(state for kept in optimizer.state.values() for state in kept.values())])
    assert len(ends[0]) > 2 or not options
    for one, other in zip(*ends, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_products_with_the_jacobian_are_those_of_torch():
    torch.manual_seed(0)
    parameters = [torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)]
    unused = torch.zeros(2, requires_grad=True)
    outputs = [torch.tanh(torch.randn(5, 3) @ parameters[0]) * parameters[1], parameters[1].sin()]
    vectors = [torch.randn(5, 4), torch.randn(4)]
    expected = torch.autograd.grad(outputs, parameters, vectors, create_graph=True)
    found = libraries.vector_jacobian(outputs, [*parameters, unused], vectors, create_graph=True, allow_unused=True)
    assert found[2] is None
    assert all(map(torch.equal, found[:2], expected))
    twice = [
        torch.autograd.grad(first.square().sum(), parameters[1], retain_graph=True)[0]
        for first in (found[0], expected[0])
    ]
    assert torch.equal(*twice)
    # torch maps a batch of vectors by an argument of `grad`; this function is mapped by torch.func.
    batch = torch.randn(6, 4)
    many = torch.func.vmap(lambda row: libraries.vector_jacobian(outputs[1], parameters[1], row, retain_graph=True)[0])
    (rows,) = torch.autograd.grad(outputs[1], parameters[1], batch, retain_graph=True, is_grads_batched=True)
    assert torch.equal(many(batch), rows)
    with pytest.raises(RuntimeError, match="shape"):
        libraries.vector_jacobian(outputs[1], parameters[1], torch.ones(3))
