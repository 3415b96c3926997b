"""Every corruption against its definition, one image at a time with plain loops and SciPy's own routines."""

import colorsys
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.corruptions import blur, constant
from trainables.datasets.corruptions.weather import PHOTOGRAPHS
from trainables.datasets.splits import corrupted as module
from trainables.datasets.splits.corrupted import KINDS, SEVERITIES, corrupted, image_fault

SIDES = (32, 72)  # the constants of CIFAR-10-C, and of ImageNet-C


def pictures(count: int = 3, side: int = 32, channels: int = 3) -> np.ndarray:
    draws = np.random.default_rng(7)
    smooth = ndimage.gaussian_filter(draws.normal(size=(count, side, side, channels)), (0, 3, 3, 0))
    scaled = np.clip(128 + 300 * smooth, 0, 255).astype(np.uint8)
    scaled[:, 4:9, 4:9] = 255
    return scaled


@pytest.fixture(autouse=True)
def photographs(data_folder: Path) -> Path:
    """Put pictures where the benchmark's photographs of frost are looked for."""
    (data_folder / "frost").mkdir(parents=True)
    draws = np.random.default_rng(3)
    for name in PHOTOGRAPHS:
        values = draws.integers(0, 256, size=(400, 450, 3)).astype(np.uint8)
        Image.fromarray(values).save(data_folder / "frost" / name)
    return data_folder / "frost"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_same_however_they_are_cut(kind: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    images = pictures(5, channels=channels)
    whole = corrupted(images, kind, 3)
    monkeypatch.setattr(module, "CHUNK_VALUES", 2 * images[0].size)
    in_parts = corrupted(images, kind, 3)
    assert whole.shape == images.shape and whole.dtype == np.uint8
    assert np.array_equal(whole, in_parts) and not np.array_equal(whole, images)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_enlargements_are_scipys(side: int, severity: int) -> None:
    small, images = side == 32, pictures(2, side)
    for image, found in zip(images, corrupted(images, "zoom_blur", severity), strict=True):
        pixels, total = image / 255, image / 255
        factors = np.arange(1, *constant("zoom_blur", severity, small))
        for factor in factors:
            kept = math.ceil(side / factor)
            first = (side - kept) // 2
            large = ndimage.zoom(pixels[first : first + kept, first : first + kept], (factor, factor, 1), order=1)
            cut = (len(large) - side) // 2 if small else 0
            total = total + large[cut : cut + side, cut : cut + side]
        assert np.abs(found - 255 * total / (len(factors) + 1)).max() < 1 + 1e-6


@pytest.mark.parametrize("severity", SEVERITIES)
def test_glass_copies_near_pixels_in_the_order_of_the_reference(severity: int) -> None:
    deviation, reach, passes = constant("glass_blur", severity, True)
    images, draws = pictures(2), np.random.RandomState(1)
    found = corrupted(images, "glass_blur", severity, np.random.RandomState(1))
    for image, wanted in zip(images, found, strict=True):
        x = (ndimage.gaussian_filter(image / 255, (deviation, deviation, 0), mode="nearest") * 255).astype(np.uint8)
        for _ in range(passes):
            for h in range(32 - reach, reach, -1):
                for w in range(32 - reach, reach, -1):
                    dx, dy = draws.randint(-reach, reach, size=2)
                    x[h, w] = x[h + dy, w + dx]
        smooth = ndimage.gaussian_filter(x / 255, (deviation, deviation, 0), mode="nearest")
        assert np.array_equal(wanted, (np.clip(smooth, 0, 1) * 255).astype(np.uint8))


@pytest.mark.parametrize("angle", [-135.0, -60.0, -3.0, 0.0, 44.0])
def test_motion_averages_shifted_images_whose_edges_repeat(angle: float) -> None:
    pixels, radius, deviation = pictures(1).astype(float), 9, 2.5
    weights = np.exp(-(np.arange(19) ** 2) / (2 * deviation**2))
    weights /= weights.sum()
    wanted = np.zeros(pixels.shape[1:])
    for step, weight in enumerate(weights):
        down = -math.ceil(step * math.sin(math.radians(angle)) - 0.5)
        right = -math.ceil(step * math.cos(math.radians(angle)) - 0.5)
        for h in range(32):
            for w in range(32):
                wanted[h, w] += weight * pixels[0, min(max(h - down, 0), 31), min(max(w - right, 0), 31)]
    assert np.allclose(blur.motion_blurred(pixels, radius, deviation, np.array([angle]))[0], wanted)


def test_the_disk_is_a_mean_and_cut_to_what_it_covers() -> None:
    for small in (True, False):
        for severity in SEVERITIES:
            radius, deviation = constant("defocus_blur", severity, small)
            kernel = blur.disk(radius, deviation)
            # From radius 8 on it reaches the border of the reference's array, which mirrors a little of it.
            assert kernel.sum() == pytest.approx(1, abs=0.02 if radius >= 8 else 1e-6)
            assert np.allclose(kernel, kernel.T)
    assert blur.disk(3, 0.1).shape == (7, 7) and blur.disk(0.3, 0.4).shape == (3, 3)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_displacements_are_scipys(side: int, severity: int) -> None:
    small, images = side == 32, pictures(2, side)
    strength, deviation, reach = constant("elastic_transform", severity, small)
    draws = np.random.RandomState(4)
    line = np.arange(side)
    for image, found in zip(
        images, corrupted(images, "elastic_transform", severity, np.random.RandomState(4)), strict=True
    ):
        pixels = image / 255
        if small:
            third = side // 3
            before = np.array([[1, 1], [1, -1], [-1, -1]]) * third + side // 2
            after = before + draws.uniform(-reach * side, reach * side, size=(3, 2))
            there = np.linalg.solve(np.c_[before, np.ones(3)], after).T  # (x, y) after the map
            back = np.linalg.inv(there[:, :2])
            rows, columns = np.meshgrid(line, line, indexing="ij")
            x, y = np.einsum("ij,jhw->ihw", back, np.stack([columns, rows]) - there[:, 2, None, None])
            pixels = np.stack(
                [ndimage.map_coordinates(p, [y, x], order=1, mode="mirror") for p in pixels.transpose(2, 0, 1)], -1
            )
        moves = [draws.uniform(-1, 1, size=(side, side)) for _ in range(2)]
        right, down = (
            ndimage.gaussian_filter(move, deviation * side, mode="reflect", truncate=3) * strength * side
            for move in moves
        )
        places = [line[:, None] + down, line[None, :] + right]
        wanted = [ndimage.map_coordinates(p, places, order=1, mode="reflect") for p in pixels.transpose(2, 0, 1)]
        assert np.abs(found - 255 * np.clip(np.stack(wanted, -1), 0, 1)).max() < 1 + 1e-6


def test_brightness_adds_to_the_value_of_hsv() -> None:
    images = pictures(1)
    images[0, 0, 0] = 0
    found = corrupted(images, "brightness", 4)
    for h, w in ((0, 0), (5, 5), (12, 20), (31, 31)):
        hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, h, w] / 255))
        wanted = np.array(colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.2))) * 255
        assert np.abs(found[0, h, w] - wanted).max() < 1 + 1e-6


def test_frost_is_a_part_of_a_photograph_and_says_what_is_missing(photographs: Path) -> None:
    images = pictures(2)
    found = corrupted(images, "frost", 1, np.random.RandomState(0)).astype(float) - images
    draws = np.random.RandomState(0)
    picture = np.asarray(Image.open(photographs / PHOTOGRAPHS[draws.randint(5)]))[2::5, 2::5]
    row, column = draws.randint(0, len(picture) - 32), draws.randint(0, picture.shape[1] - 32)
    free = images[0] < 200
    part = picture[row : row + 32, column : column + 32]
    assert np.abs(found[0] - 0.2 * part)[free].max() < 1 + 1e-6
    (photographs / PHOTOGRAPHS[1]).unlink()
    if (photographs.parent / "frost" / PHOTOGRAPHS[0]).is_file():
        with pytest.raises(DataSetUnavailableError, match="photographs of frost are missing"):
            corrupted(images, "frost", 1)


def test_what_cannot_be_corrupted_says_why() -> None:
    assert image_fault((9, 3, 32, 32), "torch.uint8") is None and image_fault((9, 1, 28, 28), "uint8") is None
    assert "uint8" in str(image_fault((9, 1, 8, 8), "torch.float32")) and "uint8" in str(image_fault((9, 5), "uint8"))
    assert "2 channels" in str(image_fault((9, 2, 32, 32), "uint8"))
    assert "28×28" in str(image_fault((9, 3, 27, 27), "uint8")) and "28×28" in str(image_fault((9, 3, 32, 40), "uint8"))
