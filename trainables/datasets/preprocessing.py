"""From stored pixels to what a network takes, batch by batch on the device; training batches cropped and flipped."""

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


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to `padding` pixels in both directions, then mirror half of them.

    The same distribution as padding with black, cropping at random to the old size and flipping horizontally: the
    CIFAR augmentation of all five papers (He et al. 2016, section 4.2; padding 4).

    Attributes:
        padding: largest shift in pixels.
        flip: whether to mirror (digits and house numbers are not mirrored).
        black: stored value of a black pixel: one number, or one for each channel.
    """

    padding: int = 4
    flip: bool = True
    black: float | tuple[float, ...] = 0

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """Return int64 [samples, 3]: row and column of the crop in the padded image, and whether to mirror."""
        corners = torch.randint(0, 2 * self.padding + 1, (samples, 2), generator=generator)
        mirrored = torch.randint(0, 2, (samples, 1), generator=generator) * int(self.flip)
        return torch.cat([corners, mirrored], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return images [B, C, H, W] changed as `draws` [B, 3] say; dtype and device stay."""
        batch, channels, height, width = images.shape
        rows = draws[:, 0:1] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(batch, width)
        columns = draws[:, 1:2] + torch.where(draws[:, 2:3] == 1, width - 1 - columns, columns)
        # One gather over flattened pixels; indexing rows and columns apart took seven times as long.
        pixels = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        pixels = pixels.view(batch, 1, height * width).expand(-1, channels, -1)
        return self._pad(images).flatten(2).gather(2, pixels).view(images.shape)

    def _pad(self, images: Tensor) -> Tensor:
        edges = (self.padding,) * 4
        if not isinstance(self.black, tuple):
            return functional.pad(images, edges, value=self.black)
        black = _pixel(self.black, images.dtype, images.device)
        return functional.pad(images - black, edges) + black


@functools.lru_cache(maxsize=16)  # rebuilding it would stall a GPU's queue at every batch
def _pixel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a pixel, [1, C, 1, 1]."""
    return torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1, 1)
