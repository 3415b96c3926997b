"""Every corruption at every severity against the package imagecorruptions 1.1, with the draws in common.

It is of 2019, wants another scikit-image and NumPy and brings OpenCV: install it apart and name the folder.

    pip install --no-deps --target DIR imagecorruptions scikit-image opencv-python-headless lazy_loader
    PYTHONPATH=$PWD:DIR pytest -m slow tests/trainables/datasets/corruptions
"""

import functools
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from trainables.datasets.splits.corrupted import KINDS, SEVERITIES, corrupted

pytestmark = pytest.mark.slow

SIDE = 72  # above 64, so that the constants are those of ImageNet-C, which imagecorruptions has


@contextmanager
def loaded() -> Iterator[types.ModuleType]:
    """Give the package, with what it uses of older releases put back for it; ImportError where it is not installed."""
    import cv2  # noqa: F401
    import scipy.ndimage
    import skimage
    import skimage.filters

    package = importlib.util.find_spec("imagecorruptions")
    if package is None or package.origin is None:
        raise ImportError("No module named 'imagecorruptions'")
    folder = Path(package.origin).parent
    resources = types.ModuleType("pkg_resources")
    resources.resource_filename = lambda _, name: str(folder / name)
    moved = types.ModuleType("scipy.ndimage.interpolation")
    moved.map_coordinates = scipy.ndimage.map_coordinates
    present = skimage.filters.gaussian

    def gaussian(image, sigma, multichannel=False, **more):
        return present(image, sigma, channel_axis=-1 if multichannel else None, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pkg_resources", resources)
        patch.setitem(sys.modules, "scipy.ndimage.interpolation", moved)
        patch.setattr(skimage.filters, "gaussian", gaussian)
        patch.setattr(np, "float_", np.float64, raising=False)
        patch.setattr(skimage.util, "random_noise", functools.partial(skimage.util.random_noise, rng=None))
        yield importlib.import_module("imagecorruptions")


def photographs(count: int) -> np.ndarray:
    """Return random images with edges and flat parts, uint8 [N, SIDE, SIDE, 3]."""
    draws = np.random.default_rng(0)
    coarse = draws.integers(0, 256, size=(count, SIDE // 8, SIDE // 8, 3)).astype(np.uint8)
    images = coarse.repeat(8, axis=1).repeat(8, axis=2)
    images[:, 10:30, 10:30] = draws.integers(0, 256, size=(count, 20, 20, 3))
    images[:, 40:50] = 0
    return images


def differences(oracle: types.ModuleType, seed: int, kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, int]]:
    """Yield every kind and severity's largest difference of a value, with the draws in common."""
    images = photographs(6)
    for kind in kinds:
        for severity in SEVERITIES:
            np.random.seed(seed)
            # scikit-image's noise draws from a generator of its own
            sys.modules["skimage"].util.random_noise.keywords["rng"] = np.random.default_rng(seed)
            wanted = np.stack([oracle.corrupt(each.copy(), severity, kind) for each in images])
            draws = np.random.default_rng(seed) if kind == "impulse_noise" else np.random.RandomState(seed)
            found = corrupted(images, kind, severity, draws)
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            yield kind, int(np.abs(found.astype(int) - wanted.astype(int)).max())


@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_is_that_of_imagecorruptions(kind: str) -> None:
    """To one level: values are cut to whole numbers, and the oracle's float32 ends on the other side of some."""
    try:
        with loaded() as oracle:
            assert max(worst for _, worst in differences(oracle, 5, [kind])) <= 1
    except ImportError as error:
        pytest.skip(f"{error}; see above")
