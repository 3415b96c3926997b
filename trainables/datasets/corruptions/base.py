"""What every corruption shares: its form, its constants by severity, and pixels between 0 and 1."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

#: [N, H, W, C], values 0 to 255.
Images = NDArray[np.uint8]

#: [N, H, W, C], values 0 to 255 where a corruption returns them, 0 to 1 within.
Floats = NDArray[np.float64]

#: (images, severity 1 to 5, whether they are small, draws) → corrupted images, values 0 to 255.
Corruption = Callable[[Images, int, bool, np.random.RandomState], Floats]


@functools.cache
def _severities() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return every corruption's constants, for `small` and `large` images, one or several for each severity."""
    found: Mapping[str, Mapping[str, Sequence[Any]]] = yaml.safe_load(
        Path(__file__).with_name("severities.yaml").read_text("utf-8")
    )
    return found


def constant(kind: str, severity: int, small: bool) -> Any:
    """Return the benchmark's constant, or list of them, of a corruption at severity 1 to 5 of small or large images."""
    return _severities()[kind]["small" if small else "large"][severity - 1]


def shares(images: Images) -> Floats:
    """Return pixels as shares of the largest value."""
    return images / 255.0


def levels(pixels: Floats) -> Floats:
    """Return shares, cut to 0 … 1, as values from 0 to 255."""
    return np.asarray(np.clip(pixels, 0, 1) * 255)


def grey(pixels: Floats) -> Floats:
    """Return the luma [N, H, W, 1] of shares; that of one channel is itself."""
    if pixels.shape[-1] == 1:
        return pixels
    return np.asarray(pixels @ np.array([0.299, 0.587, 0.114]))[..., None]
