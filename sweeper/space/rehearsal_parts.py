"""Which data set and which network stand in for another in a rehearsal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.datasets import digits_stand_in

KEPT_DATASETS = ("digits", "known_posterior_1d", "mukhoti_linear", digits_stand_in.NAME)
"""They are generated or packaged, and small: a rehearsal trains on them as they are."""

STAND_INS: dict[str, dict[str, Any]] = {
    "digits_32": {"channels": 3, "size": 32, "classes": 10},
    "cifar10": {"channels": 3, "size": 32, "classes": 10},
    "cifar100": {"channels": 3, "size": 32, "classes": 10},
    "svhn": {"channels": 3, "size": 32, "classes": 10},
    "tiny_imagenet": {"channels": 3, "size": 32, "classes": 10},
    "fashion_mnist": {"channels": 1, "size": 28, "classes": 10},
    "image_folder": {"channels": 3, "size": 32, "classes": 10},
    "arrays": {"channels": 1, "size": 8, "classes": 10},
    "newsgroups20": {"form": "tokens", "classes": 10},
    "sst2": {"form": "trees", "classes": 2},
}
"""Options of `digits_stand_in` that give it the data set's shape; no class beyond ten, no side beyond 32.
One that is not named is taken for images like CIFAR's."""

SMALL_RESNET = {"name": "resnet8", "width": 0.25}
SMALL_TRANSFORMER = {"name": "vit_small_32", "patch_size": 8, "depth": 1}
SMALL_WORDS = {"vocabulary": digits_stand_in.VOCABULARY, "dimension": 16}

SMALL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"), SMALL_RESNET),
    **dict.fromkeys(("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"), SMALL_RESNET),
    "resnet110_bottleneck": SMALL_RESNET,
    "resnet_cifar": {"name": "resnet_cifar", "depth": 8, "width": 0.25},
    "preresnet": {"name": "preresnet", "depth": 8, "width": 0.25},
    "preresnet56": {"name": "preresnet", "depth": 8, "width": 0.25},
    "preresnet56_bottleneck": {"name": "preresnet", "depth": 8, "width": 0.25},
    "wrn_28_10": {"name": "wide_resnet", "depth": 10, "width": 0.25},
    "wrn_26_10": {"name": "wide_resnet", "depth": 10, "width": 0.25},
    "wide_resnet": {"name": "wide_resnet", "depth": 10, "width": 0.25},
    "densenet121": {"name": "densenet", "layers": 1, "growth": 4},
    "densenet": {"name": "densenet", "layers": 1, "growth": 4},
    "vgg19": {"name": "vgg19", "width": 0.0625},
    "mobilenet_v2": {"name": "mobilenet_v2", "width": 0.125},
    "vit_small_32": SMALL_TRANSFORMER,
    "vit_base_32": SMALL_TRANSFORMER,
    "vit_small_patch16_224": SMALL_TRANSFORMER,
    "swin_tiny_patch4_window7_224": SMALL_TRANSFORMER,
    "timm": SMALL_TRANSFORMER,
    "torchvision": SMALL_RESNET,
    "global_pooling_cnn": {"name": "global_pooling_cnn", **SMALL_WORDS, "channels": 16},
    "text_average": {"name": "text_average", **SMALL_WORDS, "width": 16},
    "tree_lstm": {"name": "tree_lstm", **SMALL_WORDS, "width": 16},
}
"""The network that stands in for one too large for two cores; a network that is not named stays as it is."""

SHARED = ("dropout", "shortcut", "output_gate", "train_embedding")
"""Hyperparameters that a stand-in takes over where it has them."""


def rehearsed_dataset(dataset: Mapping[str, Any], said: list[str]) -> dict[str, Any]:
    """Return the data set of a rehearsal; what was replaced is added to `said`."""
    name = dataset["name"]
    if name in KEPT_DATASETS:
        return dict(dataset)
    options = dict(STAND_INS.get(name, STAND_INS["cifar10"]))
    if name == "sst2" and dataset.get("form") == "words":
        options["form"] = "tokens"
    elif "augment" in dataset:
        options["augment"] = dataset["augment"]
    shape = (
        f"{options['form']} of {options['classes']} classes"
        if "form" in options
        else f"{options['channels']}×{options['size']}×{options['size']} images of {options['classes']} classes"
    )
    said.append(f"{name} → handwritten digits as {shape}")
    return {"name": digits_stand_in.NAME, **options}


def rehearsed_architecture(
    architecture: Mapping[str, Any], dataset: Mapping[str, Any], said: list[str]
) -> dict[str, Any]:
    """Return the network of a rehearsal on `dataset` of its own; what was replaced is added to `said`."""
    name = architecture["name"]
    kept = dataset["name"] != digits_stand_in.NAME and name in ("mlp", "resnet8")
    if kept or name not in SMALL:
        return dict(architecture)
    small = dict(SMALL[name])
    defaults = _defaults(small["name"])
    small |= {key: architecture[key] for key in SHARED if key in defaults and _differs(architecture, key, defaults)}
    options = ", ".join(f"{key} {value}" for key, value in small.items() if key not in ("name", *SHARED))
    said.append(f"{name} → {small['name']} ({options})")
    return small


def _differs(architecture: Mapping[str, Any], key: str, defaults: Mapping[str, Any]) -> bool:
    """Tell whether a hyperparameter is given and not the stand-in's default: two names of one network are one."""
    return key in architecture and architecture[key] != defaults[key]


def _defaults(name: str) -> dict[str, Any]:
    from trainables.models import ARCHITECTURES

    return {hyperparameter.name: hyperparameter.default for hyperparameter in ARCHITECTURES[name].hyperparameters}
