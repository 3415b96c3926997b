"""Parameter counts: against torchvision's networks, published numbers, and counts by hand from the definition."""

import functools

import pytest
import torch

from trainables.extensions.libraries import register_missing_operators
from trainables.models import build_model


def count(name, shape=(3, 32, 32), classes=10, **hyperparameters):
    with torch.device("meta"):
        model = build_model(name, shape, classes, **hyperparameters)
    return sum(parameter.numel() for parameter in model.parameters())


@functools.lru_cache
def torchvision_count(name):
    register_missing_operators()
    import torchvision

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in torchvision.models.get_model(name, weights=None).parameters())


STEM_7X7_TO_3X3 = 64 * 3 * (3 * 3 - 7 * 7)


@pytest.mark.parametrize(
    ("name", "theirs", "stem", "features"),
    [
        *((f"resnet{depth}", f"resnet{depth}", STEM_7X7_TO_3X3, 512) for depth in (18, 34)),
        *((f"resnet{depth}", f"resnet{depth}", STEM_7X7_TO_3X3, 2048) for depth in (50, 101, 152)),
        ("densenet121", "densenet121", STEM_7X7_TO_3X3 - 2 * 64, 1024),  # no normalisation after the stem
        ("mobilenet_v2", "mobilenet_v2", 0, 1280),
    ],
)
@pytest.mark.parametrize("classes", [10, 100])
def test_a_network_is_torchvisions_with_a_small_stem(name, theirs, stem, features, classes):
    assert count(name, classes=classes) == torchvision_count(theirs) + stem + (features + 1) * (classes - 1000)


def test_vgg_is_torchvisions_with_one_linear_layer():
    head = (512 * 49 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert count("vgg19") == torchvision_count("vgg19_bn") - head + 513 * 10


def by_hand(depth, channels=3, projection=False):
    """Weights of the 6n+2 network, from the definition in He et al. 2016, section 4.2."""
    total, before = channels * 16 * 9 + 2 * 16, 16
    for width in (16, 32, 64):
        for _ in range((depth - 2) // 6):
            total += 9 * before * width + 9 * width * width + 4 * width
            total += before * width + 2 * width if projection and before != width else 0
            before = width
    return total + 64 * 10 + 10


@pytest.mark.parametrize(("depth", "published"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.73)])
def test_cifar_resnets_have_the_published_counts(depth, published):
    assert (
        count(f"resnet{depth}") == by_hand(depth) == pytest.approx(1e6 * published, abs=6e3)
    )  # He et al. 2016, Table 6
    assert count("resnet_cifar", depth=depth) == by_hand(depth)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("resnet8", {"shape": (1, 8, 8)}, by_hand(8, channels=1)),
        ("resnet8", {"shape": (1, 8, 8), "shortcut": "projection"}, by_hand(8, channels=1, projection=True)),
        ("resnet18", {"width": 2}, 44_662_922),
        ("resnet110_bottleneck", {}, 45_864_522),
        ("wrn_28_10", {}, 36_479_194),  # Zagoruyko & Komodakis 2016, Table 4: 36.5 M
        ("wrn_26_10", {}, 36_481_434),
        ("wide_resnet", {"depth": 40, "width": 4}, 8_949_210),  # as above: 8.9 M
        ("wide_resnet", {"depth": 16, "width": 8}, 10_961_370),  # as above: 11.0 M
        ("preresnet56", {}, 855_578),
        ("preresnet56_bottleneck", {}, 868_634),
        ("preresnet56_bottleneck", {"shortcut": "raw"}, 868_634),
        ("vit_small_patch16_224", {"shape": (3, 224, 224), "classes": 1000}, 22_050_664),  # Touvron et al. 2021: 22 M
        ("vit_small_32", {}, 21_342_346),
        ("vit_base_32", {}, 85_152_010),
        (
            "swin_tiny_patch4_window7_224",
            {"shape": (3, 224, 224), "classes": 1000},
            28_288_354,
        ),  # Liu et al. 2021: 28 M
        ("global_pooling_cnn", {"shape": (1000,), "classes": 20}, 20_000 * 100 + 501 * 128 + 2 * 641 * 128 + 129 * 148),
        ("text_average", {"shape": (50,), "classes": 2}, 20_000 * 100 + 101 * 100 + 101 * 2),
        ("tree_lstm", {"shape": (50, 4), "classes": 2}, 20_000 * 300 + 316_800 + 151 * 2),  # Tai et al. 2015, Table 1
        ("mlp", {"shape": (1, 8, 8)}, 65 * 100 + 101 * 100 + 101 * 10),
        ("mlp", {"shape": (5,), "classes": 3, "depth": 0}, 18),
        ("mlp", {"shape": (5,), "classes": 3, "depth": 1, "width": 7}, 6 * 7 + 8 * 3),
    ],
)
def test_counts_are_those_of_the_definition(name, options, expected):
    assert count(name, **options) == expected


@pytest.mark.parametrize(("shape", "options"), [((64,), {}), ((3, 32, 3), {}), ((3, 32, 32), {"depth": 18})])
def test_unsuitable_shapes_and_depths_are_refused(shape, options):
    with pytest.raises(ValueError, match=r"resnet8|6n\+2"):
        build_model("resnet_cifar" if options else "resnet8", shape, 10, **options)
