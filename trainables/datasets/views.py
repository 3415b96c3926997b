"""From an image's bytes to the pixels that a network sees: cut, flipped and changed at random, or its middle."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

RATIO = (3 / 4, 4 / 3)
"""Sides of a random cut (Szegedy et al. 2015, section 6)."""


@dataclass(frozen=True)
class View:
    """How an image is seen.

    Attributes:
        size: side in pixels.
        resized: shorter side of an image before its middle is cut out.
        area: least share of an image's area that a random cut takes; `None` for the middle, without any chance.
        flip: whether half of the cuts are mirrored.
        operations: of RandAugment (Cubuk et al. 2020, arXiv:1909.13719) on each cut; 0 for none.
        magnitude: of these, of 30.
    """

    size: int
    resized: int
    area: float | None = None
    flip: bool = True
    operations: int = 0
    magnitude: int = 9

    @property
    def random(self) -> bool:
        """Whether it draws."""
        return self.area is not None

    def pixels(self, content: bytes, seed: int = 0) -> Tensor:
        """Return uint8 [3, size, size]; what is random follows from `seed`.

        The process's own generator is seeded, which the caller guards.

        Raises:
            OSError, ValueError, SyntaxError: the bytes are no image, as Pillow says.
        """
        from PIL import Image

        with Image.open(io.BytesIO(content)) as file:
            image = file.convert("RGB")
        if self.random:
            torch.default_generator.manual_seed(seed)  # a card's generators are not asked for, which takes longer
        changed = _transform(self)(image)
        return torch.from_numpy(np.asarray(changed, np.uint8).transpose(2, 0, 1).copy())


def libraries() -> Any:
    """Import what decodes and changes images, seconds of work; return torchvision's transforms."""
    from trainables.extensions.torchvision_compat import register_missing_operators

    register_missing_operators()
    import PIL.JpegImagePlugin  # noqa: F401
    from torchvision.transforms import v2

    return v2


@functools.lru_cache(maxsize=16)
def _transform(view: View) -> Callable[[Any], Any]:
    v2 = libraries()
    if view.area is None:
        return v2.Compose([v2.Resize(view.resized), v2.CenterCrop(view.size)])  # type: ignore[no-any-return]
    steps = [v2.RandomResizedCrop(view.size, scale=(view.area, 1.0), ratio=RATIO)]
    steps += [v2.RandomHorizontalFlip()] if view.flip else []
    steps += [v2.RandAugment(view.operations, view.magnitude)] if view.operations else []
    return v2.Compose(steps)  # type: ignore[no-any-return]
