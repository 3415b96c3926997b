import subprocess
import sys
import types

import pytest

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
