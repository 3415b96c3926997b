import pytest
import torch

from trainables.models import build_model


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def by_hand(depth, channels=3, classes=10, projection=False):
    """Weights of the 6n+2 network, from the definition in He et al. 2016, section 4.2."""
    blocks = (depth - 2) // 6
    total = channels * 16 * 9 + 2 * 16
    before = 16
    for width in (16, 32, 64):
        for _ in range(blocks):
            total += 9 * before * width + 9 * width * width + 4 * width
            if projection and before != width:
                total += before * width + 2 * width
            before = width
    return total + 64 * classes + classes


@pytest.mark.parametrize(
    ("depth", "published"),  # He et al. 2016, Table 6, in millions
    [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)],
)
def test_counts_equal_the_published_ones(depth, published):
    with torch.device("meta"):
        model = build_model(f"resnet{depth}", (3, 32, 32), 10)
    assert count(model) == by_hand(depth)
    assert round(count(model) / 1e6, 1 if published == 1.7 else 2) == published


def test_resnet8_on_digits():
    assert count(build_model("resnet8", (1, 8, 8), 10)) == by_hand(8, channels=1) == 75_002
    projected = build_model("resnet8", (1, 8, 8), 10, shortcut="projection")
    assert count(projected) == by_hand(8, channels=1, projection=True) == 77_754


def test_width_and_depth_are_hyperparameters():
    assert count(build_model("resnet_cifar", (3, 32, 32), 10, depth=14)) == by_hand(14)
    wide = build_model("resnet8", (3, 32, 32), 10, width=2)
    assert wide.classifier.in_features == 128
    with pytest.raises(ValueError, match="6n\\+2"):
        build_model("resnet_cifar", (3, 32, 32), 10, depth=18)


@pytest.mark.parametrize("shape", [(64,), (3, 32, 3)])
def test_unsuitable_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="resnet8"):
        build_model("resnet8", shape, 10)


def test_mlp_counts_and_flattens():
    model = build_model("mlp", (1, 8, 8), 10)
    assert count(model) == 64 * 100 + 100 + 100 * 100 + 100 + 100 * 10 + 10
    assert model(torch.zeros(5, 1, 8, 8)).shape == (5, 10)
    assert count(build_model("mlp", (5,), 3, depth=0)) == 18
    assert count(build_model("mlp", (5,), 3, depth=1, width=7)) == 5 * 7 + 7 + 7 * 3 + 3
