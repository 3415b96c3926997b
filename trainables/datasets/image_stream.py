"""Preprocessing of pixels on the device, images that are decoded as they are read, and batches sent ahead of use.

Decoding runs in the worker processes of a torch `DataLoader`, which is kept from epoch to epoch and receives lists of
requests. A request is a chunk of one split's images, so several workers share a batch and none holds many images. The
result of a worker depends on the request alone. Workers are forked: they share the pages of the index and import
nothing.

On a GPU three things run at once. A thread gathers batch i + 2 into page-locked memory, a separate stream copies batch
i + 1, and the network's stream computes on batch i. Two rules make this safe. torch reuses page-locked memory only
after the copies from it are done. `sent` makes the network's stream wait for the copy of the batch that it reads.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.image_files import StoredImages
from trainables.extensions.libraries import register_missing_operators

if TYPE_CHECKING:
    from PIL.Image import Image as OpenedImage

PIXEL_MAXIMUM = 255


@dataclass(frozen=True)
class ImagePreprocessing:
    """Scale uint8 pixels to [0, 1], resize, and standardise each channel: (pixel / 255 - mean) / std.

    Attributes:
        mean, std: mean and standard deviation of each channel, for pixels in [0, 1].
        size: side of the network's square input, resized bilinearly; `None` keeps the stored size.

    Example:
        >>> ImagePreprocessing((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None = None

    def __call__(self, images: Tensor) -> Tensor:
        """Map uint8 [B, C, H, W] to float32 [B, C, size or H, size or W]."""
        # an exporter's tensors are no real ones, and must not stay in the cache
        constants = _constants.__wrapped__ if torch.compiler.is_compiling() else _constants
        scale, shift = constants(self.mean, self.std, images.device)
        pixels = images.to(torch.float32) * scale - shift
        if self.size is None or self.size == images.shape[-1] == images.shape[-2]:
            return pixels
        # without antialiasing, which matters for shrinking only: images are enlarged here
        return functional.interpolate(pixels, (self.size, self.size), mode="bilinear", antialias=False)


#: The mean and standard deviation of ImageNet's pixels, as torchvision's references use them.
IMAGENET = ImagePreprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@functools.lru_cache(maxsize=16)  # copying these constants to the GPU for every batch would stall its queue
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the factor and offset, [1, C, 1, 1] each, that standardise pixels from 0 to 255."""
    scale = torch.tensor([1 / (PIXEL_MAXIMUM * s) for s in std], device=device)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=device)
    return scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)


@dataclass(frozen=True)
class CropAndFlip:
    """Shift each image by up to `padding` pixels in both directions, then mirror half of them.

    The result has the same distribution as padding with black, random crops of the original size and horizontal flips.
    This is the CIFAR augmentation of all five papers (He et al. 2016, section 4.2; padding 4).

    Attributes:
        padding: largest shift in pixels.
        flip: whether to mirror (digits and house numbers are not mirrored).
        black: stored value of a black pixel: one number, or one per channel.
    """

    padding: int = 4
    flip: bool = True
    black: float | tuple[float, ...] = 0

    def draw(self, samples: int, generator: torch.Generator) -> Tensor:
        """Return int64 [samples, 3]: row and column of the crop in the padded image, and whether to mirror."""
        corners = torch.randint(0, 2 * self.padding + 1, (samples, 2), generator=generator)
        # drawn in any case: `flip` does not change the crops
        mirrored = torch.randint(0, 2, (samples, 1), generator=generator) * int(self.flip)
        return torch.cat([corners, mirrored], 1)

    def __call__(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return images [B, C, H, W] changed by `draws` [B, 3], with the same dtype and device."""
        batch, channels, height, width = images.shape
        rows = draws[:, 0:1] + torch.arange(height, device=images.device)
        columns = torch.arange(width, device=images.device).expand(batch, width)
        columns = draws[:, 1:2] + torch.where(draws[:, 2:3] == 1, width - 1 - columns, columns)
        # One gather over flattened pixels; indexing rows and columns separately took seven times as long.
        pixels = rows[:, :, None] * (width + 2 * self.padding) + columns[:, None, :]
        pixels = pixels.view(batch, 1, height * width).expand(-1, channels, -1)
        return self._pad(images).flatten(2).gather(2, pixels).view(images.shape)

    def _pad(self, images: Tensor) -> Tensor:
        edges = (self.padding,) * 4
        if not isinstance(self.black, tuple):
            return functional.pad(images, edges, value=self.black)
        black = _pixel(self.black, images.dtype, images.device)
        return functional.pad(images - black, edges) + black


@functools.lru_cache(maxsize=16)  # as `_constants`
def _pixel(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a pixel, [1, C, 1, 1]."""
    return torch.tensor(values, dtype=dtype, device=device).view(1, -1, 1, 1)


#: Images per request: 10 MB of pixels at 224.
CHUNK = 64

#: Requests that wait for each worker, torch's default: 300 MB for eight workers.
REQUESTS_AHEAD = 2

#: Up to this many images are decoded in the calling process, because starting workers takes longer.
FEW = 16


@dataclass(frozen=True)
class Request:
    """Images to decode.

    Attributes:
        pool: number of the pool of stored images.
        rows: indices in the pool, int64 [n].
        view: transformation of the images.
        seeds: seeds of the images' random changes, int64 [n]; `None` for a view without randomness.
    """

    pool: int
    rows: Tensor
    view: View
    seeds: Tensor | None = None


class BusyError(RuntimeError):
    """Raised if two networks request batches alternately."""


class Decoders:
    """Decode the images of several pools, in this process or in workers."""

    def __init__(self, pools: Sequence[StoredImages], workers: int | None = None) -> None:
        """Keep the pools; workers start with the first run.

        Args:
            pools: pools of stored images.
            workers: number of processes; `None` for the number of torch's threads in the calling process, 0 for none.
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
        if not workers or sum(len(request.rows) for request in requests) <= FEW:
            yield from map(self._decode.alone, requests)
            return
        if self._busy:
            raise BusyError(
                "images that are decoded as they are read serve one network at a time; set packing: sequential"
            )
        self._busy = True
        try:
            # a forked copy of this object must not use its parent's workers
            if self._owner != (os.getpid(), workers):
                self._loader, self._owner = self._started(workers), (os.getpid(), workers)
            # in place: the loader keeps this list as its sampler
            self._requests[:] = requests
            yield from map(_intact, self._loader)
        finally:
            self._busy = False

    def _started(self, workers: int) -> Any:
        from torch.utils.data import DataLoader

        libraries()  # once before the fork instead of in every worker
        return DataLoader(
            self._decode,  # type: ignore[arg-type]  # any object with __getitem__ is a data set to the loader
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=REQUESTS_AHEAD,
            multiprocessing_context="fork",
            generator=torch.Generator(),  # otherwise every epoch would draw from the global generator
        )


def _intact(result: Tensor | DataSetUnavailableError) -> Tensor:
    """Return the pixels of a worker's result, or raise the error in it."""
    # The worker returns the error, and it is raised here: the loader rebuilds a raised error from its message alone.
    if isinstance(result, DataSetUnavailableError):
        raise result
    return result


@dataclass(frozen=True)
class _Decode:
    """The state of a worker, forked instead of pickled."""

    pools: Sequence[StoredImages]

    def alone(self, request: Request) -> Tensor:
        """Decode a request in this process without changing its random state."""
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
                rule = f"cannot be decoded as an image ({error})"
                return DataSetUnavailableError(pool.path(row), rule, "replace it with an intact copy")
        return pixels


#: Sides of a random cut (Szegedy et al. 2015, section 6).
RATIO = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class View:
    """Transformation of a decoded image.

    Attributes:
        size: side in pixels.
        resized: shorter side of an image before its central square is cut out.
        area: smallest share of an image's area that a random crop takes; `None` for the centre, without randomness.
        flip: whether half of the crops are mirrored.
        operations: number of RandAugment operations per crop (Cubuk et al. 2020, arXiv:1909.13719); 0 for none.
        magnitude: magnitude of these operations, out of 30.
    """

    size: int
    resized: int
    area: float | None = None
    flip: bool = True
    operations: int = 0
    magnitude: int = 9

    def pixels(self, content: bytes, seed: int = 0) -> Tensor:
        """Return uint8 [3, size, size]; random changes depend on `seed` alone.

        It seeds the global generator of the process; the caller restores its state.

        Raises:
            OSError, ValueError, SyntaxError: Pillow cannot decode the bytes.
        """
        from PIL import Image

        with Image.open(io.BytesIO(content)) as file:
            return self.image_pixels(file, seed)

    def image_pixels(self, opened: OpenedImage, seed: int = 0) -> Tensor:
        """Return an opened Pillow image as `pixels` returns its bytes."""
        image = opened.convert("RGB")
        if self.area is not None:
            torch.default_generator.manual_seed(
                seed
            )  # `torch.manual_seed` would seed the GPUs' generators, too: slower
        changed = _transform(self)(image)
        return torch.from_numpy(np.asarray(changed, np.uint8).transpose(2, 0, 1).copy())


def libraries() -> Any:
    """Import the libraries that decode and change images, which takes seconds, and return torchvision's transforms."""
    register_missing_operators()
    import PIL.JpegImagePlugin  # noqa: F401  # otherwise Pillow imports it at the first image, in every worker
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
    """The images of one split, read and decoded on demand.

    Attributes:
        pool: number of `images` among the pools of `decoders`.
        images: stored images; the split consists of `rows` of them.
        rows: indices in `images`, int64 [N], in the order of the split.
        view: transformation for evaluations.
        decoders: decoders that all splits of the data set share.
        changed: random transformation for training; `None` for other splits.
    """

    pool: int
    images: StoredImages
    rows: Tensor
    view: View
    decoders: Decoders
    changed: View | None = None

    def __repr__(self) -> str:
        """Return a name of the transformed images: equal names mean equal images, on every node."""
        return f"ImageStream({self.images.fingerprint()}, {_digest(self.rows)}, {self.view}, {self.changed})"

    def part(self, rows: slice) -> ImageStream:
        """Return a stream of the images at `rows`."""
        return replace(self, rows=self.rows[rows])

    def read(self, places: Tensor) -> Tensor:
        """Return the pixels of the samples at `places`, unchanged, uint8 [n, 3, H, W] on the host."""
        (pixels,) = self.batches([places], None, torch.device("cpu"))
        return pixels

    def batches(
        self, places: Sequence[Tensor], seeds: Sequence[Tensor] | None, device: torch.device
    ) -> Iterator[Tensor]:
        """Yield the pixels of batches, uint8 [B, 3, H, W] on `device`, decoded and sent ahead of their use.

        Args:
            places: indices of each batch's samples in the split, int64 [B].
            seeds: seeds of their random changes, int64 [B]; `None` for no changes.
            device: device of the batches.
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
        decoded = self.decoders.run(chunks)
        for count in counts:
            parts = [next(decoded) for _ in range(count)]
            yield parts[0] if count == 1 else torch.cat(parts)
        decoded.close()  # type: ignore[attr-defined]  # a generator: closing drops what it has read ahead


def _digest(rows: Tensor) -> str:
    return hashlib.sha256(rows.contiguous().numpy().data).hexdigest()[:16]


Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 2  # batches in flight: one waiting and one being gathered


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `work(item)` in order, computed in another thread up to `AHEAD` items early; errors are raised here.

    Example:
        >>> list(ahead(str.upper, ["a", "b", "c"]))
        ['A', 'B', 'C']
    """
    # A thread, not a process whose memory would have to be shared: torch gathers without the interpreter's lock.
    waiting = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
        running: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(waiting, AHEAD))
        try:
            while running:
                done = running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
                yield done
        finally:
            # the caller stopped early: without this, closing the pool would wait for all jobs
            for job in running:
                job.cancel()


@functools.lru_cache(maxsize=8)  # the allocator has separate memory per stream: new streams would waste it
def copying_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the CUDA stream on which this process copies batches."""
    return torch.cuda.Stream(device)


def sent(take: Callable[[Item], Tensor], items: Iterable[Item], device: torch.device) -> Iterator[Tensor]:
    """Yield `take(item)` on `device` for each item. For a GPU, `take` runs and tensors are sent ahead of their use.

    Args:
        take: function that returns a tensor on the host, which nothing else writes to.
        items: arguments of `take`. Calls are made in order, in one thread.
        device: device of the tensors.
    """
    if device.type != "cuda":
        for item in items:
            yield take(item).to(device)
        return
    stream = copying_stream(device)

    def send(item: Item) -> tuple[Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return take(item).pin_memory().to(device, non_blocking=True), stream.record_event()

    for tensor, arrived in ahead(send, items):
        current = torch.cuda.current_stream(device)
        current.wait_event(arrived)
        tensor.record_stream(current)  # otherwise the allocator could reuse it while the network's stream reads it
        yield tensor
