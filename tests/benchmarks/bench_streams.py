"""Streamed images beside a plain torch DataLoader on the same shards: images a second and memory of a rank.

Run with `make bench-streams`. Shards of JPEGs of 500 by 375 pixels, ImageNet's usual size, are written to a temporary
folder, from where they come by the page cache: what is timed is decoding and cutting, not a disk.
Each line is an epoch in a process of its own:

* `plain`: a map-style data set of this file over the same shards, `tarfile`'s offsets, Pillow, torchvision's
  transforms, torch's default sampler, collation and batches: what a training script has;
* `streamed`: the program's, through `trainables.datasets.base.batches`: chunks, seeds for each sample, and
  float32 batches that the training process itself prepares, where a card would;
* `to a card`: the same without that preparation: what a process that trains on a card waits for.

Memory is Pss of the process and its workers, read every 0.1 s: shared pages are counted once.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.trainables.stream_files import write_shard

BATCH, SIDE = 128, 224
KINDS = ("plain", "streamed", "to a card")


def write(folder: Path, shards: int, samples: int) -> int:
    """Write shards of images with the detail of photographs; return the bytes of one image."""
    from PIL import Image

    random, size = np.random.default_rng(0), 0
    for shard in range(shards):
        content = []
        for number in range(samples):
            coarse = np.kron(random.integers(0, 255, (47, 63, 3)), np.ones((8, 8, 1)))[:375, :500]
            pixels = np.clip(coarse + random.normal(0, 12, coarse.shape), 0, 255).astype(np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "JPEG", quality=90)
            size = len(file.getvalue())
            content.append({"jpg": file.getvalue(), "cls": str(number % 10).encode()})
        write_shard(folder / f"bench-train-{shard:04d}.tar", content)
    return size


class Plain(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """What a training script would write."""

    def __init__(self, folder: Path) -> None:
        from trainables.extensions.libraries import register_missing_operators

        register_missing_operators()
        from torchvision.transforms import v2

        self._items = []
        for path in sorted(folder.glob("*.tar")):
            with tarfile.open(path) as archive:
                members = archive.getmembers()
                for image, label in zip(members[::2], members[1::2], strict=True):
                    found = archive.extractfile(label)
                    assert found is not None
                    self._items.append((path, image.offset_data, image.size, int(found.read())))
        normalised = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        cut = [v2.RandomResizedCrop(SIDE), v2.RandomHorizontalFlip()]
        self._change = v2.Compose([*cut, v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), normalised])

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        path, offset, size, label = self._items[index]
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(size)
        return self._change(Image.open(io.BytesIO(content)).convert("RGB")), label


def measure(kind: str, folder: Path, workers: int) -> dict[str, float]:
    """Return an epoch's images a second, without the first batches, in which workers start, and the most memory."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    if kind == "plain":
        plain = Plain(folder)
        batches: Any = torch.utils.data.DataLoader(
            plain, BATCH, shuffle=True, num_workers=workers, persistent_workers=True
        )
    else:
        from trainables.datasets import load_dataset
        from trainables.datasets.base import batches as epoch

        data = load_dataset(
            "streamed_images", folder=str(folder), workers=workers, validation_fraction=0.01, test_fraction=0.01
        )
        train, random = data.train, torch.Generator().manual_seed(0)
        batches = epoch(train, BATCH, random)
        if kind == "to a card":
            assert train.source is not None
            order, seeds = torch.randperm(len(train), generator=random), torch.arange(len(train))
            read = train.source.batches(order.split(BATCH), seeds.split(BATCH), torch.device("cpu"))
            batches = ((pixels, None) for pixels in read)
    ready, done, started, most = time.perf_counter() - began, 0, 0.0, [0.0]
    over = threading.Event()
    watch = threading.Thread(target=_watch, args=(most, over))
    watch.start()
    warm = 2 + 2 * workers
    for number, (inputs, _) in enumerate(batches):
        if number == warm:
            started = time.perf_counter()
        done += len(inputs) if number > warm else 0
    seconds = time.perf_counter() - started
    over.set()
    watch.join()
    return {"images/s": done / seconds, "MiB": most[0] / 2**20, "ready s": ready}


def _watch(most: list[float], over: threading.Event) -> None:
    while not over.wait(0.1):
        most[0] = max(most[0], sum(_pss(pid) for pid in (os.getpid(), *_children())))


def _children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0.0)


def main() -> None:
    """Write shards, and print a line for each kind and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--samples", type=int, default=250, help="of each shard")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=3, metavar=("KIND", "FOLDER", "WORKERS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, folder, workers = given.child
        print(json.dumps(measure(kind, Path(folder), int(workers))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "shards"
        size = write(folder, given.shards, given.samples)
        print(f"{given.shards * given.samples} JPEGs of 500x375, {size / 1024:.0f} KiB each; {os.cpu_count()} cores")
        environment = {**os.environ, "SWEEPER_DATA": str(Path(temporary) / "data")}
        for workers in given.workers:
            found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for _ in range(given.rounds):  # by turns, so that a disturbance meets both
                for kind in KINDS:
                    line = [
                        sys.executable,
                        "-m",
                        "tests.benchmarks.bench_streams",
                        "--child",
                        kind,
                        str(folder),
                        str(workers),
                    ]
                    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
                    found[kind].append(json.loads(done.stdout.splitlines()[-1]))
            for kind, runs in found.items():
                columns = {
                    name: f"{statistics.median(r[name] for r in runs):8.1f} ({min(r[name] for r in runs):.1f} to "
                    f"{max(r[name] for r in runs):.1f})"
                    for name in runs[0]
                }
                print(f"{workers} workers  {kind:9}", "  ".join(f"{name} {text}" for name, text in columns.items()))


if __name__ == "__main__":
    main()
