"""What a split reads its inputs from when they are decoded as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from trainables.datasets.decoders import CHUNK, Decoders, Request, View
from trainables.datasets.stored_images import StoredImages
from trainables.datasets.streaming import Copier, sent


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

    @property
    def random(self) -> bool:
        """Whether training takes a seed for each sample."""
        return self.changed is not None

    def part(self, rows: slice) -> ImageStream:
        """Return consecutive images."""
        return replace(self, rows=self.rows[rows])

    def read(self, places: Tensor) -> Tensor:
        """Return the pixels of the samples at `places`, unchanged, uint8 [n, 3, H, W] on the host."""
        (found,) = self.batches([places], None, torch.device("cpu"))
        return found

    def batches(
        self,
        places: Sequence[Tensor],
        seeds: Sequence[Tensor] | None,
        device: torch.device,
        copier: Copier | None = None,
    ) -> Iterator[Tensor]:
        """Yield the pixels of batches, uint8 [B, 3, H, W] on `device`, decoded and sent ahead of their use.

        Args:
            places: of each batch's samples in the split, int64 [B].
            seeds: of each batch's samples, int64 [B], to change them; `None` for the images as they are.
            device: where the batches are needed.
            copier: how they get there; see `trainables.datasets.streaming`.
        """
        yield from sent(self._decoded(places, seeds), len(places), device, copier)

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
