"""From stored pixels to what a network takes, batch by batch on the device."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

PIXEL_MAXIMUM = 255


@dataclass(frozen=True)
class ImagePreprocessing:
    """Scale uint8 pixels to [0, 1], resize, and standardise each channel: (pixel / 255 - mean) / std.

    Attributes:
        mean, std: one number for each channel, of pixels in [0, 1].
        size: side of the network's square input, resized bilinearly; `None` keeps the stored size.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [B, C, H, W] to float32 [B, C, size or H, size or W]."""
        scale, shift = _constants(self.mean, self.std, images.device)
        pixels = images.to(torch.float32) * scale - shift
        if self.size is None or self.size == images.shape[-1] == images.shape[-2]:
            return pixels
        return functional.interpolate(pixels, (self.size, self.size), mode="bilinear", antialias=False)


@functools.lru_cache(maxsize=16)  # rebuilding them would stall a GPU's queue at every batch
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return factor and offset, [1, C, 1, 1] each, that turn 0..255 into standardised pixels."""
    scale = torch.tensor([1 / (PIXEL_MAXIMUM * s) for s in std], device=device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)
