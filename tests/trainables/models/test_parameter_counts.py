"""Parameter counts: against published numbers, torchvision's networks, or a count by hand from the definition."""

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
def torchvision_count(name, **arguments):
    register_missing_operators()
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None, **arguments)
    return sum(parameter.numel() for parameter in model.parameters())


STEM_7X7_TO_3X3 = 64 * 3 * (3 * 3 - 7 * 7)


def other_head(features, classes):
    return (features + 1) * (classes - 1000)


@pytest.mark.parametrize(
    ("name", "features"),
    [("resnet18", 512), ("resnet34", 512), ("resnet50", 2048), ("resnet101", 2048), ("resnet152", 2048)],
)
@pytest.mark.parametrize("classes", [10, 100])
def test_four_stage_resnets_are_torchvisions_with_a_small_stem(name, features, classes):
    expected = torchvision_count(name) + STEM_7X7_TO_3X3 + other_head(features, classes)
    assert count(name, classes=classes) == expected


def test_densenet_is_torchvisions_with_a_small_stem():
    normalisation_of_the_stem = 2 * 64
    expected = torchvision_count("densenet121") + STEM_7X7_TO_3X3 - normalisation_of_the_stem + other_head(1024, 10)
    assert count("densenet121") == expected == 6_956_298


def test_mobilenet_has_the_parameters_of_torchvisions():
    # 3,504,872 on ImageNet: the published 3.4 M (Sandler et al. 2018, Table 4)
    assert torchvision_count("mobilenet_v2") == 3_504_872
    assert count("mobilenet_v2") == torchvision_count("mobilenet_v2") + other_head(1280, 10) == 2_236_682


def test_vgg_is_torchvisions_with_one_linear_layer():
    head = (512 * 49 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
    assert count("vgg19") == torchvision_count("vgg19_bn") - head + 513 * 10 == 20_040_522


def basic_blocks(blocks, stem, channels, projection):
    """Post-activation blocks of two 3x3 convolutions; `projection` counts normalised 1x1 shortcuts."""
    total, before = 0, stem
    for width in channels:
        for _ in range(blocks):
            total += 9 * before * width + 9 * width * width + 4 * width
            if projection and before != width:
                total += before * width + 2 * width
            before = width
    return total


def pre_activation(blocks, channels, bottleneck):
    total, before = 3 * 16 * 9, 16
    for width in channels:
        for _ in range(blocks):
            after = 4 * width if bottleneck else width
            total += 2 * before + 2 * width
            total += (before * width + 9 * width * width + 2 * width + width * after) if bottleneck else 0
            total += 0 if bottleneck else 9 * before * width + 9 * width * width
            total += before * after if before != after else 0
            before = after
    return total + 2 * before + (before + 1) * 10


def test_wide_resnets():
    # Zagoruyko & Komodakis 2016, Table 4: 36.5 M
    assert count("wrn_28_10") == pre_activation(4, (160, 320, 640), bottleneck=False) == 36_479_194
    by_hand = 3 * 16 * 9 + 32 + basic_blocks(4, 16, (160, 320, 640), projection=True) + 641 * 10
    assert count("wrn_26_10") == by_hand == 36_481_434


def test_wide_resnets_of_other_depths_and_widths():
    # Zagoruyko & Komodakis 2016, Table 4: WRN-40-4 8.9 M, WRN-16-8 11.0 M
    assert round(count("wide_resnet", depth=40, width=4) / 1e6, 1) == 8.9
    assert round(count("wide_resnet", depth=16, width=8) / 1e6, 1) == 11.0


def test_pre_activation_resnets():
    assert count("preresnet56") == pre_activation(9, (16, 32, 64), bottleneck=False) == 855_578
    assert count("preresnet56_bottleneck") == pre_activation(9, (16, 32, 64), bottleneck=True) == 868_634


def test_the_bottleneck_resnet_110():
    total, before = 3 * 64 * 9 + 128, 64
    for width, blocks in zip((64, 128, 256, 512), (3, 4, 26, 3), strict=True):
        for _ in range(blocks):
            total += before * width + 9 * width * width + 4 * width * width + 4 * width + 8 * width
            total += (before * 4 * width + 8 * width) if before != 4 * width else 0
            before = 4 * width
    assert count("resnet110_bottleneck") == total + 2049 * 10 == 45_864_522


def test_resnet18_at_double_width():
    blocks = basic_blocks(2, 128, (128, 256, 512, 1024), projection=True)
    assert count("resnet18", width=2) == 3 * 128 * 9 + 2 * 128 + blocks + 1025 * 10 == 44_662_922
    assert count("resnet50", classes=200, pool=2) - count("resnet50", classes=200) == 3 * 2048 * 200


def transformer(width, classes, patch, tokens, depth=12):
    block = 2 * 2 * width + (width + 1) * 3 * width + (width + 1) * width + 8 * width * width + 5 * width
    return (3 * patch**2 + 1) * width + width + (tokens + 1) * width + depth * block + 2 * width + (width + 1) * classes


def test_vision_transformers():
    # 22 M and 86 M at 16-pixel patches (Touvron et al. 2021, Table 1)
    assert count("vit_small_patch16_224", (3, 224, 224), 1000) == transformer(384, 1000, 16, 196) == 22_050_664
    assert count("vit_small_32") == transformer(384, 10, 4, 64)
    assert count("vit_base_32") == transformer(768, 10, 4, 64)
    assert transformer(768, 1000, 16, 196) == 86_567_656


def test_swin_tiny():
    # 28 M (Liu et al. 2021, Table 1)
    assert count("swin_tiny_patch4_window7_224", (3, 224, 224), 1000) == 28_288_354


def test_text_networks():
    embedding = 20_000 * 100
    convolutions = (100 * 5 + 1) * 128 + 2 * (128 * 5 + 1) * 128
    assert count("global_pooling_cnn", (1000,), 20) == embedding + convolutions + 129 * 128 + 129 * 20
    assert count("text_average", (50,), 2) == embedding + 101 * 100 + 101 * 2


def test_the_tree_lstm_has_the_published_parameters():
    # Tai et al. 2015, Table 1: 316,800 in the composition function at d = 150, apart from vectors and classifier
    assert count("tree_lstm", (50, 4), 2) == 20_000 * 300 + 316_800 + 151 * 2


def test_a_raw_shortcut_has_as_many_parameters():
    assert count("preresnet56_bottleneck", shortcut="raw") == count("preresnet56_bottleneck")
