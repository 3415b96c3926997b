"""From stored pixels to what a network takes, batch by batch on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


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
        scale = torch.tensor([1 / (255 * s) for s in self.std], device=images.device).view(1, -1, 1, 1)
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)], device=images.device).view(
            1, -1, 1, 1
        )
        pixels = images.to(torch.float32) * scale - shift
        if self.size is None or self.size == images.shape[-1] == images.shape[-2]:
            return pixels
        return functional.interpolate(pixels, (self.size, self.size), mode="bilinear", antialias=False)
