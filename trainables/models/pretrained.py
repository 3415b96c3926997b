"""Networks of timm and torchvision by their own names, with optional pretrained weights.

`vit_small_patch16_224` and `swin_tiny_patch4_window7_224` are the selective paper's Tiny-ImageNet networks; `timm`
and `torchvision` build any other model of these packages. A package is imported when a network of it is built.

Vision transformers for 32x32 images: ViT-Small and ViT-Base.

Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021, Table 1 (Base: 12 layers, width 768, 12 heads) and Touvron
et al. 2021, Table 1 (Small: width 384, 6 heads), built from timm's `VisionTransformer` with smaller patches. The
curvature paper trains both on CIFAR-100 and does not print the patch size. Our choice is 4, which gives 64 patches.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

from trainables.extensions.libraries import register_missing_operators
from trainables.models.base import ARCHITECTURES, require_image
from trainables.registry.names import nearest

# errors of the packages for sizes and weights that do not fit, broken weight files, and failed downloads
UNBUILDABLE = (
    OSError,
    RuntimeError,
    KeyError,
    AssertionError,
    TypeError,
    ValueError,
    AttributeError,
    pickle.UnpicklingError,
)


@ARCHITECTURES.add("timm")
def timm_network(
    input_shape: tuple[int, ...], classes: int, model: str, pretrained: bool = False, weights_file: str | None = None
) -> nn.Module:
    """Any timm model by its name.

    Build timm's `model` for the image size and channels of the data set, with a new head of `classes` logits.

    Args:
        input_shape: (channels, height, width).
        classes: number of classes K.
        model: name in timm.
        pretrained: load the published weights from timm's cache or the hub; the head is new if K differs
            [selective fine-tunes pretrained weights].
        weights_file: local weights file (`.safetensors`, `.pth`) that is loaded instead.

    Raises:
        ValueError: unknown model, or weights that are missing, cannot be fetched or do not fit.
    """
    channels, height, width = require_image(input_shape, minimum_side=1, network=model)
    # before timm imports torchvision, which fails if its compiled operators cannot be loaded
    register_missing_operators()
    import timm
    from safetensors import SafetensorError

    if not timm.is_model(model):
        raise ValueError(f"timm has no model {model!r}{nearest(model, timm.list_models())}")
    arguments: dict[str, int | tuple[int, int]] = {"in_chans": channels}
    configuration = timm.get_pretrained_cfg(model)
    # other networks have no `img_size` and raise TypeError for it
    if configuration is not None and configuration.fixed_input_size:
        arguments["img_size"] = (height, width)
    try:
        if weights_file is not None:
            return _timm_from_file(model, classes, str(_existing(weights_file)), arguments)
        network: nn.Module = timm.create_model(model, pretrained=pretrained, num_classes=classes, **arguments)
        return network
    except (*UNBUILDABLE, SafetensorError) as error:
        raise ValueError(_refusal(f"timm's {model}", input_shape, pretrained, weights_file, error)) from error


def _timm_from_file(model: str, classes: int, path: str, arguments: Mapping[str, int | tuple[int, int]]) -> nn.Module:
    """Load local weights strictly.

    If they do not fit a head of `classes`, load them with their own head and replace it.
    """
    # If the number of classes differs from that of the weights, timm loads only the keys that fit, possibly none.
    import timm

    create = partial(timm.create_model, model, pretrained=True, **arguments)
    try:
        network = create(num_classes=classes, pretrained_cfg_overlay={"file": path, "num_classes": classes})
    except RuntimeError:  # the head has another shape, or the weights belong to another network
        head = timm.get_pretrained_cfg_value(model, "classifier")
        # the bias has one entry per class of the file
        published = len(timm.models.load_state_dict(path).get(f"{head}.bias", ())) or None
        overlay = {"file": path} if published is None else {"file": path, "num_classes": published}
        network = create(num_classes=published, pretrained_cfg_overlay=overlay)
        network.reset_classifier(classes)
    loaded: nn.Module = network
    return loaded


@ARCHITECTURES.add("torchvision")
def torchvision_network(
    input_shape: tuple[int, ...], classes: int, model: str, pretrained: bool = False, weights_file: str | None = None
) -> nn.Module:
    """Any torchvision classification model by its name.

    Build torchvision's classification `model` with a new head; its stem takes three channels.

    Args:
        input_shape: (3, height, width).
        classes: number of classes K.
        model: name in torchvision.
        pretrained: load torchvision's default weights, then draw a new head [selective fine-tunes pretrained weights].
        weights_file: local state dict in any form that timm reads: `.safetensors`, a checkpoint that contains one, or
            names with the prefixes of DataParallel or compile. No code is unpickled. If the file's number of classes is
            not K, the head is new.

    Raises:
        ValueError: unknown model, images without three channels, or weights that are missing or do not fit.
    """
    channels, _, _ = require_image(input_shape, minimum_side=1, network=model)
    register_missing_operators()
    import torchvision
    from timm.models import load_state_dict

    # only the names of this module: other modules list detection, segmentation and video
    names = torchvision.models.list_models(module=torchvision.models)
    if model not in names:
        raise ValueError(f"torchvision has no classification model {model!r}{nearest(model, names)}")
    if channels != 3:
        raise ValueError(
            f"torchvision's {model} takes images of 3 channels, but the data set's have {channels}; "
            f"choose timm's models, which adapt to the channels, or a data set of colour images"
        )
    try:
        if weights_file is not None:
            weights = load_state_dict(str(_existing(weights_file)))
            return _torchvision_from_file(partial(torchvision.models.get_model, model, weights=None), classes, weights)
        if not pretrained:
            plain: nn.Module = torchvision.models.get_model(model, weights=None, num_classes=classes)
            return plain
        return _with_new_head(torchvision.models.get_model(model, weights="DEFAULT"), classes)
    except UNBUILDABLE as error:
        raise ValueError(_refusal(f"torchvision's {model}", input_shape, pretrained, weights_file, error)) from error


def _torchvision_from_file(build: Callable[..., nn.Module], classes: int, weights: Mapping[str, Tensor]) -> nn.Module:
    """Load local weights strictly, with their own head if it has `classes` outputs, else with a new one."""
    network = build(num_classes=classes)
    head = weights.get(f"{_head(network)[0]}.weight")
    published = classes if head is None else len(head)
    if published == classes:
        network.load_state_dict(weights)
        return network
    network = build(num_classes=published)
    network.load_state_dict(weights)
    return _with_new_head(network, classes)


def _head(network: nn.Module) -> tuple[str, nn.Linear | nn.Conv2d]:
    """Return the name of the last layer and the layer: linear, or SqueezeNet's 1x1 convolution."""
    # torchvision has no common name for it: `fc`, `classifier.6`, `heads.head`
    return [(name, layer) for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)][-1]


def _with_new_head(network: nn.Module, classes: int) -> nn.Module:
    """Replace the last layer of `network` with one of `classes` outputs."""
    name, last = _head(network)
    bias = last.bias is not None
    if isinstance(last, nn.Linear):
        new: nn.Module = nn.Linear(last.in_features, classes, bias)
    else:
        new = nn.Conv2d(last.in_channels, classes, 1, bias=bias)
    parent_name, _, attribute = name.rpartition(".")
    setattr(network.get_submodule(parent_name), attribute, new)
    return network


def _build_fixed_size(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    model: str,
    side: int,
    pretrained: bool = False,
    weights_file: str | None = None,
) -> nn.Module:
    """Build timm's `model`, which accepts only square images of one `side`.

    Args:
        pretrained: [selective fine-tunes pretrained weights].
    """
    _, height, width = require_image(input_shape, minimum_side=1, network=model)
    if (height, width) != (side, side):
        raise ValueError(
            f"{model} takes images of {side}x{side} pixels, but the data set's are {height}x{width}; "
            f"give the data set image_size: {side}"
        )
    return timm_network(input_shape, classes, model, pretrained, weights_file)


def _existing(weights_file: str) -> Path:
    path = Path(weights_file).expanduser()
    if not path.is_file():
        raise ValueError(f"there is no weights file {path}; give the path of a file that every node can read")
    return path


def _refusal(
    network: str, input_shape: tuple[int, ...], pretrained: bool, weights_file: str | None, error: Exception
) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if weights_file is not None:
        return f"{network} cannot load the weights in {weights_file} ({reason}); give weights of this network"
    if pretrained:
        return (
            f"the pretrained weights of {network} cannot be loaded ({reason}); check the connection, "
            f"or give weights_file: a local copy of them"
        )
    return (
        f"{network} cannot be built for images of shape {tuple(input_shape)} ({reason}); "
        f"choose images of a size this network takes"
    )


for _name, _summary in (
    ("vit_small_patch16_224", "ViT-Small of 16-pixel patches at 224x224 (timm)"),
    ("swin_tiny_patch4_window7_224", "Swin-Tiny at 224x224 (timm)"),
):
    _build = partial(_build_fixed_size, model=_name, side=224)
    ARCHITECTURES.add(_name, _summary, "selective")(_build)


def vision_transformer(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    name: str,
    width: int,
    heads: int,
    patch_size: Annotated[int, "[1, inf)"] = 4,
    depth: Annotated[int, "[1, inf)"] = 12,
    dropout: Annotated[float, "[0, 1)"] = 0.0,
) -> nn.Module:
    """Build a vision transformer with a class token and learned positions.

    Args:
        input_shape: (channels, height, width); sides are multiples of the patch size.
        classes: number of classes K.
        name: name in messages.
        width: embedding dimension.
        heads: attention heads.
        patch_size: side of a patch in pixels [our choice: 64 patches of a 32x32 image].
        depth: number of layers [Dosovitskiy et al. 2021, Table 1].
        dropout: rate after projections and before the head [Touvron et al. 2021].

    Raises:
        ValueError: the shape is not an image, or its sides are not multiples of the patch size.
    """
    channels, image_height, image_width = require_image(input_shape, minimum_side=patch_size, network=name)
    if image_height % patch_size or image_width % patch_size:
        raise ValueError(
            f"{name} cuts images into patches of {patch_size}x{patch_size} pixels, which does not divide the data "
            f"set's {image_height}x{image_width}; set patch_size to a divisor of both sides"
        )
    register_missing_operators()
    from timm.models.vision_transformer import VisionTransformer

    network: nn.Module = VisionTransformer(
        img_size=(image_height, image_width),
        patch_size=patch_size,
        in_chans=channels,
        num_classes=classes,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_rate=dropout,
        proj_drop_rate=dropout,
    )
    return network


for _name, _family, _width, _heads, _source in (
    ("vit_small_32", "ViT-Small", 384, 6, "Touvron et al. 2021"),
    ("vit_base_32", "ViT-Base", 768, 12, "Dosovitskiy et al. 2021"),
):
    ARCHITECTURES.add(_name, f"{_family} for 32x32 images", f"curvature; {_source}, Table 1")(
        partial(vision_transformer, name=_name, width=_width, heads=_heads)
    )
