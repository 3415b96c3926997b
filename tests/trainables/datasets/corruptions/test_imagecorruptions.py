"""Every corruption at every severity against the package imagecorruptions 1.1, with the draws in common.

It is of 2019, wants another scikit-image and NumPy and brings OpenCV: install it apart and name the folder.

    pip install --no-deps --target DIR imagecorruptions scikit-image opencv-python-headless lazy_loader
    PYTHONPATH=$PWD:DIR pytest -m slow tests/trainables/datasets/corruptions
"""

from __future__ import annotations

import functools
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from trainables.datasets.corruptions import KINDS, SEVERITIES, corrupted

pytestmark = pytest.mark.slow

SIDE = 72  # above 64, so that the constants are those of ImageNet-C, which imagecorruptions has
SEED = 5


@pytest.fixture(scope="module")
def oracle() -> types.ModuleType:
    """Return the package, with what it uses of older releases put back for it."""
    for name in ("cv2", "skimage", "imagecorruptions"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"needs {name}; see above")
    import scipy.ndimage
    import skimage
    import skimage.filters

    folder = Path(importlib.util.find_spec("imagecorruptions").origin).parent
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
        noise = functools.partial(skimage.util.random_noise, rng=np.random.default_rng(SEED))
        patch.setattr(skimage.util, "random_noise", noise)
        package = importlib.import_module("imagecorruptions")
        yield package


def photographs(count: int) -> np.ndarray:
    """Return smooth random images with edges and flat parts, uint8 [N, SIDE, SIDE, 3]."""
    draws = np.random.default_rng(0)
    coarse = draws.integers(0, 256, size=(count, SIDE // 8, SIDE // 8, 3)).astype(np.uint8)
    images = coarse.repeat(8, axis=1).repeat(8, axis=2)
    images[:, 10:30, 10:30] = draws.integers(0, 256, size=(count, 20, 20, 3))
    images[:, 40:50] = 0
    return images


@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_is_that_of_imagecorruptions(oracle: types.ModuleType, kind: str) -> None:
    images, worst, other = photographs(6), 0, []
    for severity in SEVERITIES:
        np.random.seed(SEED)
        present = sys.modules["skimage"].util.random_noise  # draws from a generator of its own
        present.keywords["rng"] = np.random.default_rng(SEED)
        wanted = np.stack([oracle.corrupt(each.copy(), severity, kind) for each in images])
        draws = np.random.default_rng(SEED) if kind == "impulse_noise" else np.random.RandomState(SEED)
        found = corrupted(images, kind, severity, draws)
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        off = np.abs(found.astype(int) - wanted.astype(int))
        worst, other = max(worst, int(off.max())), [*other, float((off > 0).mean())]
    # One level: values are cut to whole numbers, and float32 of the oracle ends on the other side of some.
    print(f"{kind}: worst difference {worst} of 255, {max(other):.2%} of the values differ")
    assert worst <= 1 and max(other) < 0.15
