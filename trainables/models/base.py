"""The base of all networks: the registry by name, building one for a data set, and shared layers.

To add a network, write a file in this folder with a function or class of (input_shape, classes, …) that returns a
`torch.nn.Module` from inputs [N, *input_shape] to logits [N, classes], under the decorator that describes it. No other
file lists networks.

    @ARCHITECTURES.add("linear", "multinomial logistic regression")
    def linear(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes, bias))

The decorator also takes the attributes of `ArchitectureComponent`. `tests/trainables/models/test_networks.py` tests
every network. Users' own networks need no file here: this module adapts the functions and classes that their import
paths name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trainables.extensions.targets import OwnFamily, described
from trainables.registry import Component, ExtensionError, HyperparameterValue, Registry, hyperparameters_of

if TYPE_CHECKING:
    from trainables.datasets.base import DataSet


@dataclass(frozen=True)
class ArchitectureComponent(Component):
    """The registry's entry of a network.

    Attributes:
        lanes: reason why it cannot be trained as lanes (replicates side by side); empty if it can.
    """

    lanes: str = ""


def _architecture(target: object, path: str, name: str) -> ArchitectureComponent:
    if not callable(target) or isinstance(target, nn.Module):
        raise ExtensionError(
            f"{path} is {described(target)}; an architecture is a class or function of (input_shape, classes)"
        )
    # a user's class declares its tags itself, e.g. `text`, because no decorator registers it
    tags = frozenset(getattr(target, "TAGS", ()))
    taken = hyperparameters_of(target, path, ["input_shape", "classes"])
    return ArchitectureComponent(name, target, taken, tags=tags)


ARCHITECTURES = Registry(
    "architecture", OwnFamily("architectures", _architecture), ArchitectureComponent, ["input_shape", "classes"]
)


def require_image(input_shape: tuple[int, ...], minimum_side: int, network: str) -> tuple[int, int, int]:
    """Return (channels, height, width) if `input_shape` is an image that `network` accepts.

    Raises:
        ValueError: `input_shape` is not three-dimensional, or a side is shorter than `minimum_side` pixels.

    Example:
        >>> require_image((3, 32, 32), minimum_side=8, network="mobilenet_v2")
        (3, 32, 32)
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"{network} takes images (channels, height, width), but the data set's samples have shape "
            f"{tuple(input_shape)}; choose an architecture for that data, e.g. mlp"
        )
    channels, height, width = input_shape
    if min(height, width) < minimum_side:
        raise ValueError(
            f"{network} needs images of at least {minimum_side}x{minimum_side} pixels, but the data set's are "
            f"{height}x{width}; choose a data set of larger images (digits_32 has 32x32) or a smaller network"
        )
    return channels, height, width


def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, **hyperparameters: HyperparameterValue | Tensor
) -> nn.Module:
    """Build architecture `name`: a module from inputs [N, *input_shape] to logits [N, classes].

    Weights are drawn from PyTorch's global generator: seed it first.

    Args:
        name: name in `ARCHITECTURES`.
        input_shape: shape of one sample, e.g. (3, 32, 32).
        classes: number of classes K.
        hyperparameters: hyperparameters of the architecture's component.

    Raises:
        ValueError: unknown name, invalid hyperparameters, or an input shape that the network does not accept.

    Example:
        >>> from trainables.models import build_model
        >>> _ = torch.manual_seed(0)
        >>> network = build_model("mlp", (1, 8, 8), 10, depth=1, width=16)
        >>> network(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """
    network: nn.Module = ARCHITECTURES.build(name, tuple(input_shape), classes, **hyperparameters)
    return network


def build_for(dataset: DataSet, architecture: Mapping[str, HyperparameterValue]) -> nn.Module:
    """Build a configuration's architecture for the shape, classes, vocabulary and word vectors of a data set.

    Args:
        dataset: data set to train on.
        architecture: `name` and hyperparameters.

    Raises:
        ValueError: as `build_model`.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> network = build_for(load_dataset("digits"), {"name": "mlp", "width": 16})
        >>> network.classifier
        Linear(in_features=16, out_features=10, bias=True)
    """
    arguments: dict[str, HyperparameterValue | Tensor] = dict(architecture)
    name = str(arguments.pop("name"))
    component = ARCHITECTURES.get(name)
    if component is not None and "text" in component.tags and dataset.vocabulary is not None:
        # values that the configuration sets take precedence
        arguments.setdefault("vocabulary", dataset.vocabulary)
        if dataset.word_vectors is not None:
            arguments.setdefault("word_vectors", dataset.word_vectors)
    return build_model(name, dataset.input_shape, dataset.classes, **arguments)


#: Networks with more parameters are checked on the meta device. Smaller ones are computed, which takes milliseconds;
#: the meta device takes a second, because it imports torch's compiler.
MOST_COMPUTED = 1_000_000


class Undrawn(TorchFunctionMode):
    """Context that skips drawing weights: on the meta device they have no values, and drawing imports the compiler."""

    _DRAWS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_})

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        arguments: Sequence[object] = (),
        options: Mapping[str, object] | None = None,
    ) -> object:
        """Call `function`, or return unchanged the tensor that it would fill."""
        return arguments[0] if function in self._DRAWS else function(*arguments, **(options or {}))


@torch.no_grad()
def fit_fault(dataset: DataSet, architecture: Mapping[str, HyperparameterValue]) -> str | None:
    """Return the reason why a configuration's architecture cannot be trained on a data set, or `None`.

    The network is built and called with two samples; large networks run on PyTorch's meta device, which has shapes
    only. It is meant to run once before a sweep starts. Pretrained weights are not loaded, and the state of the global
    generators does not change.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> fit_fault(load_dataset("digits"), {"name": "mlp"}) is None
        True
        >>> print(fit_fault(load_dataset("digits"), {"name": "vgg19"}))
        vgg19 cannot be trained on digits: vgg19 needs images of at least 32x32 pixels, but the data set's are 8x8; ...
    """
    weights = architecture.get("weights_file")
    if weights is not None and not Path(str(weights)).expanduser().is_file():
        return f"there is no weights file {weights}; give the path of one, or pretrained: true"
    try:
        # forked: building a network draws weights, and a check must not change later random numbers
        with torch.random.fork_rng(devices=[]):
            with Undrawn():
                model, data = _placed(dataset, architecture, "meta")
            if "follows_data" in ARCHITECTURES[str(architecture["name"])].tags:
                return None  # its computation depends on values of the data, which the meta device does not have
            if sum(weights.numel() for weights in model.parameters()) <= MOST_COMPUTED:
                model, data = _placed(dataset, architecture, "cpu")
            with torch.device(data.train.targets.device):
                logits = model.eval()(data.train.head(2))
    except (ValueError, RuntimeError, AssertionError) as error:
        return f"{architecture['name']} cannot be trained on {dataset.name}: {error}"
    if tuple(logits.shape) != (2, dataset.classes):
        return (
            f"{architecture['name']} gives outputs of shape {tuple(logits.shape[1:])}, but {dataset.name} has "
            f"{dataset.classes} classes; choose a classification network"
        )
    return None


#: Samples in a trial training step. Batch normalisation, the usual reason for a failure, needs two.
MOST_TRIED = 8


def step_fault(dataset: DataSet, architecture: Mapping[str, HyperparameterValue], batch_size: int) -> str | None:
    """Return the reason why a network cannot train on the first or the last batch of an epoch, or `None`.

    It runs forward and backward in training mode, large networks on the meta device. It is meant for networks accepted
    by `fit_fault`. The state of the global generators does not change.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> step_fault(load_dataset("digits"), {"name": "mlp"}, batch_size=64) is None
        True
    """
    samples, name = len(dataset.train), str(architecture["name"])
    device = "cpu" if ARCHITECTURES.is_own(name) else "meta"
    passed: set[int] = set()
    with torch.random.fork_rng(devices=[]):
        for which, size in (("first", batch_size), ("last", samples % batch_size or batch_size)):
            if (tried := min(size, MOST_TRIED)) in passed:
                continue
            rule = _step_rule(dataset, architecture, tried, device)
            # the meta device lacks some operators: only a failure on the CPU counts
            if rule is not None and device == "meta":
                rule = _step_rule(dataset, architecture, tried, "cpu")
            if rule is not None:
                batch = f"{size} of {samples} samples at batch_size = {batch_size}"
                return f"{name} cannot train on the {which} batch of an epoch, {batch}: {rule}"
            passed.add(tried)
    return None


def _step_rule(
    dataset: DataSet, architecture: Mapping[str, HyperparameterValue], samples: int, device: str
) -> str | None:
    try:
        with Undrawn() if device == "meta" else nullcontext():
            model, data = _placed(dataset, architecture, device)
            if device == "meta" and sum(weights.numel() for weights in model.parameters()) <= MOST_COMPUTED:
                return _step_rule(dataset, architecture, samples, "cpu")
            with torch.device(device):
                logits = model.train()(data.train.head(samples))
            # torchvision's Inception and GoogLeNet return named tuples in training mode
            if not isinstance(logits, Tensor):
                return f"in training it gives a {type(logits).__name__}; choose a network without auxiliary outputs"
            logits.sum().backward()
    except Exception as error:  # a network of a user or a package can raise anything
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return (
            f"{reason}; choose another batch_size{', that leaves no single sample' if samples == 1 else ' or network'}"
        )
    return None


def _placed(
    dataset: DataSet, architecture: Mapping[str, HyperparameterValue], device: str
) -> tuple[nn.Module, DataSet]:
    """Return a network without pretrained weights and the data set, both on `device`."""
    # a check before a sweep must not download weights
    architecture = {key: value for key, value in architecture.items() if key not in ("pretrained", "weights_file")}
    with torch.device(device):
        data = dataset.to(device)
        if data.word_vectors is not None:
            data = replace(data, word_vectors=data.word_vectors.to(device))
        return build_for(data, architecture), data


def conv3x3(in_channels: int, channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 3x3 convolution without bias that keeps the size at stride 1."""
    # no bias: the batch normalisation that follows (or precedes) has one
    return nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)


def conv1x1(in_channels: int, channels: int, stride: int = 1) -> nn.Conv2d:
    """Return a 1x1 convolution without bias."""
    return nn.Conv2d(in_channels, channels, 1, stride, bias=False)


def projection(in_channels: int, channels: int, stride: int) -> nn.Module:
    """Return the option B shortcut of He et al.: the identity if shapes agree, else a normalised 1x1 convolution."""
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    return nn.Sequential(conv1x1(in_channels, channels, stride), nn.BatchNorm2d(channels))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut around them (He et al. 2016, Fig. 5 left)."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: nn.Module | None = None) -> None:
        """Create a block from `in_channels` to `channels`; `shortcut` defaults to `projection`."""
        super().__init__()
        self.conv1 = conv3x3(in_channels, channels, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = conv3x3(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = projection(in_channels, channels, stride) if shortcut is None else shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [N, in_channels, H, W] to [N, channels, H / stride, W / stride]."""
        hidden = functional.relu(self.bn1(self.conv1(inputs)))
        return functional.relu(self.bn2(self.conv2(hidden)) + self.shortcut(inputs))


def staged(
    block: Callable[[int, int, int], nn.Module], features: int, stages: Iterable[tuple[int, int]], expansion: int = 1
) -> tuple[nn.Sequential, int]:
    """Return the blocks of the stages of a residual network, and the output channels of the last one.

    Args:
        block: function of input channels, inner channels and stride; the stride is 2 in the first block of every stage
            except the first.
        features: input channels of the first block.
        stages: inner channels and number of blocks of each stage.
        expansion: ratio of a block's output channels to its inner ones.
    """
    layers: list[nn.Module] = []
    for stage, (channels, count) in enumerate(stages):
        for number in range(count):
            layers.append(block(features, channels, 2 if stage > 0 and number == 0 else 1))
            features = channels * expansion
    return nn.Sequential(*layers), features


@torch.no_grad()
def initialise(network: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / fan_out) (He et al. 2015, as in torchvision); other layers stay as they are."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
