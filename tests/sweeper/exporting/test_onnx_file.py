"""The ONNX file gives the program's probabilities without torch; what ONNX cannot express is said in a sentence."""

import numpy as np
import onnxruntime
import pytest
import torch

import sweeper
from sweeper.core.errors import SweeperError
from sweeper.exporting import program
from sweeper.exporting.program import CalibratedNetworks, exported_program, write_onnx
from tests.sweeper.exporting.test_program import LAYERS, LOGITS, TARGETS
from trainables.models import build_model
from trainables.posthoc import fit


def written(folder, networks, calibrator, shape):
    """Write networks as ONNX; return the file's and the program's probabilities of samples of two sizes."""
    module = CalibratedNetworks(networks, calibrator).eval()
    samples = 3 * torch.randn(40, *shape, generator=torch.Generator().manual_seed(0))
    program = exported_program(module, samples[:3])
    with torch.no_grad():
        expected = module(samples).double().numpy()
    worst = write_onnx(program, folder / "m.onnx", samples.split(30), expected)
    session = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["batch", *shape]
    halves = (samples[:1].numpy(), samples[1:].numpy())
    found = np.concatenate([session.run(None, {"inputs": half})[0] for half in halves])
    assert np.abs(found - expected).max() <= worst + 1e-7
    return found, expected


def test_an_ensemble_with_the_focal_map_is_the_same_in_onnx(tmp_path):
    torch.manual_seed(0)
    networks = [build_model("mlp", (1, 4, 4), 5).eval() for _ in range(2)]
    found, expected = written(tmp_path, networks, fit("focal_map", LOGITS, TARGETS, gamma=3.0), (1, 4, 4))
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("method", LAYERS)
def test_every_method_is_the_same_in_onnx(method, tmp_path):
    torch.manual_seed(0)
    network = build_model("resnet8", (1, 8, 8), 5).eval()
    options = {"gamma": -0.999} if method == "focal_map" else {}
    found, expected = written(tmp_path, [network], fit(method, LOGITS, TARGETS, **options), (1, 8, 8))
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("timm", {"model": "test_vit"}),
        ("torchvision", {"model": "squeezenet1_1"}),
        ("densenet121", {}),
        ("wide_resnet", {"depth": 16, "width": 2}),
    ],
)
def test_networks_are_the_same_in_onnx(name, options, tmp_path):
    torch.manual_seed(0)
    shape = (3, 160, 160) if name == "timm" else (3, 32, 32)
    found, expected = written(tmp_path, [build_model(name, shape, 5, **options).eval()], None, shape)
    assert np.abs(found - expected).max() < 1e-5


class Bessel(torch.nn.Module):
    """A network with an operator that ONNX has not."""

    def forward(self, inputs):
        return torch.special.bessel_j0(inputs)


def test_an_operator_that_onnx_lacks_is_named(tmp_path):
    with pytest.raises(SweeperError, match=r"ONNX cannot express the network: it lacks the operator \w+\.bessel_j0"):
        written(tmp_path, [Bessel()], None, (5,))


def test_another_result_is_refused(tmp_path):
    program = exported_program(CalibratedNetworks([torch.nn.Identity()], None).eval(), torch.zeros(3, 5))
    with pytest.raises(SweeperError, match=r"differ from the program's by 0\.1"):
        write_onnx(program, tmp_path / "m.onnx", [torch.zeros(4, 5)], np.full((4, 5), 0.3))


def test_missing_packages_are_named_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "PACKAGES", ("onnx", "no_such_package"))
    with pytest.raises(SweeperError, match="not installed: no_such_package"):
        sweeper.export("no-such-sweep", tmp_path / "model", onnx=True, output=tmp_path)
