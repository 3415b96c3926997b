"""Where import paths are looked up, and that the module search path is left as it was found."""

import importlib
import io
import sys
import tempfile
import zipfile

import numpy as np
import pytest
import torch
from torch.nn import functional

from trainables.extensions.code import take_up
from trainables.extensions.targets import import_target, look_first_in, look_in
from trainables.losses import LOSSES, build_loss
from trainables.losses.base import Loss
from trainables.metrics.base import METRICS, further_metric_columns
from trainables.models import build_model
from trainables.posthoc import POSTHOC, PosthocUnavailable, fit
from trainables.posthoc.base import parameter_names
from trainables.registry import Component, ExtensionError, column_label, importing_nothing


@pytest.fixture
def two(tmp_path, monkeypatch):
    """Two folders: the first on the module search path already, the second not."""
    folders = [tmp_path / name for name in ("there_before", "new")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / f"place_{number}.py").write_text(f"found = {number}\n")
    monkeypatch.syspath_prepend(folders[0])
    yield folders
    look_in([])


def test_only_what_was_added_is_taken_back(two):
    """A program's own folder stays importable after a space that names it was read."""
    before = list(sys.path)
    look_in(two)
    assert [import_target(f"place_{number}:found") for number in (0, 1)] == [0, 1]
    assert sys.path == [*before, str(two[1])]
    look_in([])
    assert sys.path == before


def test_a_folder_looked_in_first_is_taken_back_once(two):
    before = list(sys.path)
    look_first_in(two[0], ["place_1"], [two[1]])
    assert import_target("place_1:found") == 1
    look_in([])
    assert sys.path == before


def _begun(folder):
    (folder / "journal").mkdir(parents=True)
    (folder / "sweep.yaml").write_text("samples: 1\n")
    return folder


def test_a_results_folder_is_never_looked_in(tmp_path):
    """Whoever resumes a folder from somebody else may stand inside it."""
    received = _begun(tmp_path / "received")
    (received / "deeper").mkdir()
    for folder in (received, received / "deeper"):
        (folder / "payload.py").write_text("found = 1\n")
        look_in([folder])
        with pytest.raises(ExtensionError, match="no module 'payload'"):
            import_target("payload:found")
    look_in([])


def test_a_module_inside_a_results_folder_is_refused_unseen(tmp_path):
    received = _begun(tmp_path / "results" / "received")
    (received / "payload.py").write_text("import pathlib\npathlib.Path(__file__).with_name('caught').touch()\n")
    look_in([tmp_path])
    with pytest.raises(ExtensionError, match="lies in a results folder, from which nothing is imported"):
        import_target("results.received.payload:load")
    assert not (received / "caught").exists()
    look_in([])


@pytest.mark.parametrize(
    ("missing", "extra"), [("transformers", "transformers"), ("h5py", "hdf5"), ("nothing_of_ours", None)]
)
def test_a_module_that_needs_an_extra_names_it(tmp_path, monkeypatch, missing, extra):
    (tmp_path / "needing.py").write_text(f"import {missing}\n")
    monkeypatch.setitem(sys.modules, missing, None)
    look_in([tmp_path])
    try:
        with pytest.raises(ExtensionError) as refused:
            import_target("needing:Loop")
    finally:
        look_in([])
    assert (f"[{extra}]'" in str(refused.value)) == (extra is not None) and missing in str(refused.value)
    assert ("pip install" in str(refused.value)) == (extra is not None)


def test_a_file_called_as_an_installed_package_takes_nothings_place(tmp_path):
    """Of an archive, components and their helpers come first, and no `torch.py` beside them."""
    for name in ("mine", "helper", "yaml", "colorsys"):
        (tmp_path / f"{name}.py").write_text(
            "import helper\nfound = 'planted'\n" if name == "mine" else "planted = 1\n"
        )
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path in tmp_path.glob("*.py"):
            archive.write(path, path.name)
    for name in ("yaml", "colorsys"):
        sys.modules.pop(name, None)
    take_up(held.getvalue(), ["mine:found"])
    assert import_target("mine:found") == "planted"
    assert not hasattr(importlib.import_module("yaml"), "planted")
    assert not hasattr(importlib.import_module("colorsys"), "planted")
    look_in([])
    assert not any(str(path).startswith(tempfile.gettempdir() + "/sweeper-ext") for path in sys.path)


LOSSES_SOURCE = '''
"""Losses."""
import torch
from torch import nn
from torch.nn import functional
from trainables.losses import Loss
from trainables.losses.focal import Focal
from trainables.registry import Component, Hyperparameter

def scaled(logits, targets, scale: float = 2.0):
    """Cross-entropy, scaled."""
    return scale * functional.cross_entropy(logits, targets, reduction="none")

def ranked(logits, targets):
    values = functional.cross_entropy(logits, targets, reduction="none")
    return values * (1 + values.argsort().argsort() / len(values))

def whole(logits, targets):
    return functional.cross_entropy(logits, targets) ** 2

def matrix(logits, targets):
    return logits

class Module(nn.Module):
    def __init__(self, weight: float = 0.5):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.weight = weight
    def forward(self, logits, targets):
        self.seen += 1
        return self.weight * functional.cross_entropy(logits, targets)

class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, logits, targets):
        return self.scale * functional.cross_entropy(logits, targets)

class Mine(Focal):
    """A focal loss of my own."""
    def __init__(self, gamma: float = 1.0):
        super().__init__(gamma)

READY = Component("ready", lambda slope: scaled, (Hyperparameter("slope", minimum=0, required=True),), "ready made")
number = 3
'''


def _batch(samples: int = 5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 4, generator=generator), torch.arange(samples) % 4


def test_a_function_is_a_loss_of_independent_values_only_where_it_is_one(own):
    own("own_losses", LOSSES_SOURCE)
    logits, targets = _batch()
    loss = build_loss("own_losses:scaled", scale=3.0)
    expected = functional.cross_entropy(logits, targets)
    assert torch.isclose(loss(logits, targets), 3 * expected) and not loss.batch_coupled
    assert loss.per_sample(logits, targets).shape == (5,)
    for name in ("ranked", "whole"):
        assert build_loss(f"own_losses:{name}").batch_coupled, name
    assert torch.isclose(build_loss("own_losses:whole")(logits, targets), expected**2)
    with pytest.raises(ValueError, match=r"a tensor of shape \(5, 4\) for 5 samples"):
        build_loss("own_losses:matrix")(logits, targets)


def test_a_module_keeps_its_buffers_as_state_and_may_not_learn(own):
    own("own_losses", LOSSES_SOURCE)
    logits, targets = _batch()
    loss = build_loss("own_losses:Module")
    assert torch.isclose(loss(logits, targets), 0.5 * functional.cross_entropy(logits, targets)) and loss.stateful
    other = build_loss("own_losses:Module")
    other.load_state_dict(loss.state_dict())
    assert other.state_dict()["seen"] == 1
    with pytest.raises(ExtensionError, match=r"has parameters \(scale\)"):
        build_loss("own_losses:Learned")


def test_a_subclass_of_ours_is_not_ours_and_a_component_is_taken_as_it_is(own):
    own("own_losses", LOSSES_SOURCE)
    loss = build_loss("own_losses:Mine", gamma=2.0)
    assert isinstance(loss, Loss) and loss.name == "own_losses:Mine"
    assert [h.name for h in LOSSES["own_losses:Mine"].hyperparameters] == ["gamma"]
    ready = LOSSES["own_losses:READY"]
    assert isinstance(ready, Component) and ready.name == "own_losses:READY" and ready.summary == "ready made"
    assert ready.faults({"slope": -1}) == ["slope = -1 is outside [0, inf)"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_losses:Scaled", "own_losses has no 'Scaled'; did you mean 'scaled'?"),
        ("own_losses:number", "is a int; a loss is a subclass of trainables.losses.Loss"),
        ("own_loses:scaled", "there is no module 'own_loses' in "),
        ("own_losses.py:scaled", "there is no module 'own_losses.py'"),
        ("own_losses:", "is not an import path"),
        ("own losses:scaled", "is not an import path"),
        ("broken:Loss", "broken.py:2: ZeroDivisionError: division by zero"),
        ("missing:Loss", "missing.py:1: ModuleNotFoundError: No module named 'nowhere'"),
        ("untidy:Loss", "untidy.py:1: SyntaxError"),
        ("leaves:Loss", "leaves.py:1: SystemExit: 3"),
        ("json:Loss", "json has no 'Loss' (it is the one in "),
    ],
)
def test_what_cannot_be_used_is_one_sentence_with_the_users_line(own, name, said):
    for module, source in (("broken", "x = 1\n1 / 0\n"), ("missing", "import nowhere\n"), ("untidy", "def f(:\n"),
                           ("leaves", "raise SystemExit(3)\n"), ("json", "Loss = 1\n")):  # fmt: skip
        own(module, source)
    own("own_losses", LOSSES_SOURCE)
    fault = LOSSES.fault(name)
    assert fault is not None and said in fault and "\n" not in fault
    assert name not in LOSSES


def test_a_file_that_is_reopened_imports_nothing(own):
    own("loud", "raise RuntimeError('imported')\n")
    with importing_nothing():
        assert LOSSES.trusts("loud:Loss") and not LOSSES.trusts("focal")
        assert "has not been approved" in (LOSSES.fault("loud:Loss") or "")
    assert not LOSSES.trusts("loud:Loss")
    assert "RuntimeError: imported" in (LOSSES.fault("loud:Loss") or "")


def test_an_edited_file_counts_as_it_is_now(own):
    own("edited", "def loss(logits, targets, a: float = 1.0):\n    return a * logits.sum(1)\n")
    assert [h.default for h in LOSSES["edited:loss"].hyperparameters] == [1.0]
    own("edited", "def loss(logits, targets, a: float = 25.0):\n    return a * logits.sum(1)\n")
    assert [h.default for h in LOSSES["edited:loss"].hyperparameters] == [25.0]


def test_a_network_gets_shape_and_classes(own):
    own("nets", "from torch import nn\ndef flat(input_shape, classes, bias: bool = True):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], classes, bias=bias))\n")  # fmt: skip
    model = build_model("nets:flat", (7,), 3, bias=False)
    assert model(torch.zeros(2, 7)).shape == (2, 3) and len(list(model.parameters())) == 1


def test_a_metric_gives_a_number_or_its_reason(own):
    own("metrics", "def top(probabilities, targets, k: int = 1):\n    return (probabilities.max(1) > 1 / k).mean()\n"
        "def never(probabilities, targets):\n    raise ValueError('too few')\n")  # fmt: skip
    probabilities, targets = np.full((4, 2), 0.5), np.zeros(4, dtype=np.int64)
    assert METRICS.build("metrics:top", probabilities, targets, k=4) == 1.0
    row = further_metric_columns((("metrics:top", {"k": 4}), ("metrics:never", {})), probabilities, targets, "p_")
    assert row["p_top"] == 1.0 and "p_never" not in row
    assert row["p_metrics_unavailable"].startswith("p_never: ") and "metrics.py:4: ValueError: too few" in str(row)


METHODS = '''
import numpy as np
class Flat:
    """Uniform probabilities."""
    PARAMETERS = ("share",)
    def __init__(self, logits, targets, share: float = 1.0):
        self.parameters = {"share": share}
    def __call__(self, logits):
        return np.full(logits.shape, self.parameters["share"] / logits.shape[1])

def undeclared(logits, targets):
    flat = Flat(logits, targets)
    flat.parameters = {"share": 1.0, "more": 2.0}
    return flat

undeclared.PARAMETERS = ("share",)

def failing(logits, targets):
    return lambda values: values[0, 99]
'''


def test_a_method_maps_to_probabilities_and_names_its_parameters(own):
    own("methods", METHODS)
    logits, targets = 2.0 * np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1])
    calibrator = fit("methods:Flat", logits, targets)
    assert np.allclose(calibrator(logits), 1 / 3) and calibrator.parameters == {"share": 1.0}
    assert parameter_names("methods:Flat") == ("share",)
    assert POSTHOC["methods:Flat"].summary == "Uniform probabilities."
    with pytest.raises(PosthocUnavailable, match=r"its probabilities of sample 0 sum to 0\.5"):
        fit("methods:Flat", logits, targets, share=0.5)(logits)
    with pytest.raises(PosthocUnavailable, match="declare PARAMETERS"):
        fit("methods:undeclared", logits, targets)
    with pytest.raises(PosthocUnavailable, match=r"methods\.py:\d+: IndexError"):
        fit("methods:failing", logits, targets)(logits)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("temperature", "temperature"),
        ("my_package.methods:ShiftScale", "shift_scale"),
        ("m:worst_class", "worst_class"),
        ("m:Outer.Inner", "outer_inner"),
        ("m:ECE2", "ece2"),
    ],
)
def test_a_column_is_called_after_what_stands_behind_the_colon(name, label):
    assert column_label(name) == label
