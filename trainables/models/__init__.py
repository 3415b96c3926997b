"""Architectures by name. Adding one: write a file with `COMPONENTS` and list it here.

They import the registry and torch, and timm and torchvision inside the functions that build with them; neither losses
nor the training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trainables.models import (
    densenet,
    mlp,
    mobilenet,
    preresnet,
    pretrained,
    resnet,
    resnet_cifar,
    text_networks,
    transformer,
    tree_lstm,
    vgg,
    vision_transformer,
    wide_resnet,
)
from trainables.models.own import OWN_NETWORKS
from trainables.registry import HyperparameterValue, Registry

if TYPE_CHECKING:
    from trainables.datasets.base import DataSet

ARCHITECTURES = Registry("architecture", OWN_NETWORKS)

for _family in (
    mlp,
    resnet_cifar,
    resnet,
    preresnet,
    wide_resnet,
    densenet,
    vgg,
    mobilenet,
    vision_transformer,
    pretrained,
    text_networks,
    tree_lstm,
    transformer,
):
    for _component in _family.COMPONENTS:
        ARCHITECTURES.register(_component)


def build_model(
    name: str, input_shape: tuple[int, ...], classes: int, **hyperparameters: HyperparameterValue | Tensor
) -> nn.Module:
    """Build architecture `name`: a module from inputs [N, *input_shape] to logits [N, classes].

    Weights are drawn from PyTorch's global generator: seed it before.

    Args:
        name: a name of `ARCHITECTURES`.
        input_shape: shape of one sample, e.g. (3, 32, 32).
        classes: number of classes K.
        hyperparameters: what the architecture's component lists.

    Raises:
        ValueError: unknown name, invalid hyperparameters, or an input shape the network cannot take.
    """
    network: nn.Module = ARCHITECTURES.build(name, tuple(input_shape), classes, **hyperparameters)
    return network


def build_for(dataset: DataSet, architecture: Mapping[str, HyperparameterValue]) -> nn.Module:
    """Build a configuration's architecture for a data set: its shape, classes, vocabulary and word vectors.

    Args:
        dataset: what the network will be trained on.
        architecture: `name` and hyperparameters.

    Raises:
        ValueError: as `build_model`.
    """
    arguments: dict[str, HyperparameterValue | Tensor] = dict(architecture)
    name = str(arguments.pop("name"))
    component = ARCHITECTURES.get(name)
    if component is not None and "text" in component.tags and dataset.vocabulary is not None:
        arguments.setdefault("vocabulary", dataset.vocabulary)
        if dataset.word_vectors is not None:
            arguments.setdefault("word_vectors", dataset.word_vectors)
    return build_model(name, dataset.input_shape, dataset.classes, **arguments)


MOST_COMPUTED = 1_000_000
"""Networks of more parameters are checked on the meta device. Smaller ones are computed: that takes milliseconds, the
meta device a second, because it imports torch's compiler."""


class _Undrawn(TorchFunctionMode):
    """Leaves weights undrawn: on the meta device they hold nothing, and drawing them imports torch's compiler."""

    _DRAWS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_})

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Sequence[type],
        arguments: Sequence[object] = (),
        options: Mapping[str, object] | None = None,
    ) -> object:
        """Call `function`, or return the tensor that it would fill."""
        return arguments[0] if function in self._DRAWS else function(*arguments, **(options or {}))


@torch.no_grad()
def fit_fault(dataset: DataSet, architecture: Mapping[str, HyperparameterValue]) -> str | None:
    """Return why a configuration's architecture cannot be trained on a data set, or `None`.

    The network is built and called with two samples: computed where it is small, on PyTorch's meta device, which knows
    shapes only, where it is large. Meant to run once before a sweep starts. Pretrained weights are not loaded, and the
    global generators stay as they are.
    """
    described = {key: value for key, value in architecture.items() if key not in ("pretrained", "weights_file")}
    try:
        with torch.random.fork_rng(devices=[]):
            with _Undrawn():
                model, data = _placed(dataset, described, "meta")
            if "follows_data" in ARCHITECTURES[str(architecture["name"])].tags:
                return None  # what it computes is in the data, which the meta device does not hold
            if sum(weights.numel() for weights in model.parameters()) <= MOST_COMPUTED:
                model, data = _placed(dataset, described, "cpu")
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


def _placed(
    dataset: DataSet, architecture: Mapping[str, HyperparameterValue], device: str
) -> tuple[nn.Module, DataSet]:
    """Return a network and the data set, both on `device`."""
    with torch.device(device):
        data = dataset.to(device)
        if data.word_vectors is not None:
            data = replace(data, word_vectors=data.word_vectors.to(device))
        return build_for(data, architecture), data
