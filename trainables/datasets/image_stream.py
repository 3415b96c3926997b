"""From stored pixels to what a network takes, on the device; and images that are decoded as they are read.

The worker processes that decode are those of a torch `DataLoader` that is kept from epoch to epoch and given lists of
requests. A request is a chunk of one split's images, so that several workers share a batch, and none holds many. What
a worker returns follows from the request alone. `fork` starts them: they share the index's pages and import nothing.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_files import StoredImages
from trainables.datasets.streaming import sent

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


#: By the mean and standard deviation of ImageNet's pixels.
IMAGENET = ImagePreprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


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


#: Images of a request: 10 MB of pixels at 224.
CHUNK = 64

#: Requests that wait for each worker, torch's own number: 300 MB for eight workers.
REQUESTS_AHEAD = 2

#: Up to so many images are decoded where they are asked for: starting workers takes longer.
FEW = 16


@dataclass(frozen=True)
class Request:
    """Images to decode.

    Attributes:
        pool: number of the stored images.
        rows: which of them, int64 [n].
        view: how they are seen.
        seeds: of each one's random changes, int64 [n]; `None` for a view without chance.
    """

    pool: int
    rows: Tensor
    view: View
    seeds: Tensor | None = None


class BusyError(RuntimeError):
    """Two networks ask for their batches in turns."""


class Decoders:
    """Decodes the images of several pools, here or in workers."""

    def __init__(self, pools: Sequence[StoredImages], workers: int | None = None) -> None:
        """Start nothing yet.

        Args:
            pools: what is decoded.
            workers: processes; `None` for as many as torch has threads in the process that asks, 0 for none.
        """
        self._decode = _Decode(pools)
        self._workers = workers
        self._requests: list[Request] = []
        self._loader: Any = None
        self._owner = (0, 0)
        self._busy = False

    def run(self, requests: Sequence[Request]) -> Iterator[Tensor]:
        """Yield the pixels of each request in order, uint8 [n, 3, size, size], decoded ahead.

        Raises:
            DataSetUnavailableError: an image is broken, or cannot be read.
            BusyError: another run has begun and not ended.
        """
        workers = torch.get_num_threads() if self._workers is None else self._workers
        if not workers or sum(len(each.rows) for each in requests) <= FEW:
            yield from map(self._decode.alone, requests)
            return
        if self._busy:
            raise BusyError(
                "images that are decoded as they are read serve one network at a time; set packing: sequential"
            )
        self._busy = True
        try:
            if self._owner != (os.getpid(), workers):
                self._loader, self._owner = self._started(workers), (os.getpid(), workers)
            self._requests[:] = requests
            yield from map(_intact, self._loader)
        finally:
            self._busy = False

    def _started(self, workers: int) -> Any:
        from torch.utils.data import DataLoader

        libraries()  # once here instead of in each worker
        return DataLoader(
            self._decode,  # type: ignore[arg-type]  # any object with __getitem__ is a data set to the loader
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=REQUESTS_AHEAD,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # else each epoch would draw from the global one
        )


def _intact(found: Tensor | DataSetUnavailableError) -> Tensor:
    """Raise what a worker returned in the place of pixels: raised there, it would lose its arguments on the way."""
    if isinstance(found, DataSetUnavailableError):
        raise found
    return found


@dataclass(frozen=True)
class _Decode:
    """What workers hold; forked, not sent."""

    pools: Sequence[StoredImages]

    def alone(self, request: Request) -> Tensor:
        """Decode a request in this process, whose random state stays as it is."""
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):  # a caller may build on the meta device
            return _intact(self[request])

    def __getitem__(self, request: Request) -> Tensor | DataSetUnavailableError:
        pool, view = self.pools[request.pool], request.view
        pixels = torch.empty((len(request.rows), 3, view.size, view.size), dtype=torch.uint8)
        seeds = [0] * len(request.rows) if request.seeds is None else request.seeds.tolist()
        for at, (row, seed) in enumerate(zip(request.rows.tolist(), seeds, strict=True)):
            try:
                pixels[at] = view.pixels(pool.read(row), seed)
            except DataSetUnavailableError as error:
                return error
            except (OSError, ValueError, SyntaxError) as error:
                path, offset, _ = pool.place(row)
                where = f"at byte {offset} " if offset else ""
                rule = f"{where}cannot be decoded as an image ({error})"
                return DataSetUnavailableError(path, rule, "replace it with an intact copy")
        return pixels


#: Sides of a random cut (Szegedy et al. 2015, section 6).
RATIO = (3 / 4, 4 / 3)


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

    def pixels(self, content: bytes, seed: int = 0) -> Tensor:
        """Return uint8 [3, size, size]; what is random follows from `seed`.

        The process's own generator is seeded, which the caller guards.

        Raises:
            OSError, ValueError, SyntaxError: the bytes are no image, as Pillow says.
        """
        from PIL import Image

        with Image.open(io.BytesIO(content)) as file:
            image = file.convert("RGB")
        if self.area is not None:
            torch.default_generator.manual_seed(seed)  # a card's generators are not asked for, which takes longer
        changed = _transform(self)(image)
        return torch.from_numpy(np.asarray(changed, np.uint8).transpose(2, 0, 1).copy())


def libraries() -> Any:
    """Import what decodes and changes images, seconds of work; return torchvision's transforms."""
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    import PIL.JpegImagePlugin  # noqa: F401  # which Pillow imports at the first image otherwise, in each worker
    from torchvision.transforms import v2

    return v2


@functools.lru_cache(maxsize=16)
def _transform(view: View) -> Callable[[Any], Any]:
    v2 = libraries()
    if view.area is None:
        return v2.Compose([v2.Resize(view.resized), v2.CenterCrop(view.size)])  # type: ignore[no-any-return]  # untyped
    steps = [v2.RandomResizedCrop(view.size, scale=(view.area, 1.0), ratio=RATIO)]
    steps += [v2.RandomHorizontalFlip()] if view.flip else []
    steps += [v2.RandAugment(view.operations, view.magnitude)] if view.operations else []
    return v2.Compose(steps)  # type: ignore[no-any-return]  # untyped


@dataclass(frozen=True, repr=False, eq=False)
class ImageStream:
    """Images of one split.

    Attributes:
        pool: number of `images` among those of `decoders`.
        images: of which the split takes some.
        rows: which, int64 [N], in the split's own order.
        view: how they are seen.
        decoders: of all splits of the data set.
        changed: how training sees them where it changes them at random; `None` elsewhere.
    """

    pool: int
    images: StoredImages
    rows: Tensor
    view: View
    decoders: Decoders
    changed: View | None = None

    def __repr__(self) -> str:
        """Name what is seen: equal names are equal images, on every node, however they are decoded."""
        return f"ImageStream({self.images.fingerprint()}, {_digest(self.rows)}, {self.view}, {self.changed})"

    def part(self, rows: slice) -> ImageStream:
        """Return consecutive images."""
        return replace(self, rows=self.rows[rows])

    def read(self, places: Tensor) -> Tensor:
        """Return the pixels of the samples at `places`, unchanged, uint8 [n, 3, H, W] on the host."""
        (found,) = self.batches([places], None, torch.device("cpu"))
        return found

    def batches(
        self, places: Sequence[Tensor], seeds: Sequence[Tensor] | None, device: torch.device
    ) -> Iterator[Tensor]:
        """Yield the pixels of batches, uint8 [B, 3, H, W] on `device`, decoded and sent ahead of their use.

        Args:
            places: of each batch's samples in the split, int64 [B].
            seeds: of each batch's samples, int64 [B], to change them; `None` for the images as they are.
            device: where the batches are needed.
        """
        decoded = self._decoded(places, seeds)
        yield from sent(lambda _: next(decoded), places, device)

    def _decoded(self, places: Sequence[Tensor], seeds: Sequence[Tensor] | None) -> Iterator[Tensor]:
        view = self.view if seeds is None or self.changed is None else self.changed
        chunks: list[Request] = []
        counts = []
        for number, batch in enumerate(places):
            rows = self.rows[batch.cpu()]
            drawn = None if seeds is None else seeds[number].cpu()
            starts = range(0, len(rows), CHUNK)
            counts.append(len(starts))
            for start in starts:
                part = slice(start, start + CHUNK)
                chunks.append(Request(self.pool, rows[part], view, None if drawn is None else drawn[part]))
        found = self.decoders.run(chunks)
        for count in counts:
            parts = [next(found) for _ in range(count)]
            yield parts[0] if count == 1 else torch.cat(parts)
        found.close()  # type: ignore[attr-defined]  # a generator: what it still reads ahead is dropped


def _digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.contiguous().numpy().data).hexdigest()[:16]
