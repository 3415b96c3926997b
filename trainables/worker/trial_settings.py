"""Inputs of a trial: settings shared by all trials of a sweep, its own assignment, and a process that suits both.

The driver builds both and sends them pickled; processes take them as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from trainables.datasets import load_dataset
from trainables.datasets.base import DataSet
from trainables.datasets.sharing import shared_dataset
from trainables.extensions.code import take_up
from trainables.registry import OWN, Configuration, Options, permit_only
from trainables.training.acceleration import HOST, PLAIN, TrainingSettings, data_place, gpu_fault, prepare_arithmetic
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.packing import SEQUENTIAL
from trainables.training.own_loop import own_data
from trainables.worker.checkpoints import replicate_folder


@dataclass(frozen=True)
class TrialSettings:
    """What is the same for all trials of a sweep.

    Attributes:
        dataset: the data set's name and options.
        max_epochs: the last epoch.
        rungs: the epochs at which trials are evaluated; the last one is `max_epochs`.
        objective: the column that is judged, e.g. `val_nll`.
        evaluation: what an evaluation measures.
        tables: the folder that holds the tables, or `None` to write none.
        checkpoints: the folder of checkpoints, or `None` to keep none.
        store: the sweep's address in a store, where no folder is shared; then the folders are not looked at.
        report_seconds: a report is sent at the end of the epoch in which this much time has passed.
        checkpoint_seconds: between two checkpoints; rungs have one in any case. At 0 each report has one,
            which is written before it goes out.
        checkpoints_kept: how many checkpoints of a trial stay.
        batch_seconds: short configurations that no scheduler can stop are reported together for this long.
        threads: torch's threads in this process.
        device: `cpu` or `cuda`.
        gpu: the share of a GPU that is this process's; memory beyond it is refused. 0 or whole cards: no limit.
        packing: how replicates share this process: `sequential`, `fused` or `auto`; `trials` where each has its own;
            `cohort` where the replicates of several configurations train together.
        lanes: of a cohort; 0 measures how many are best.
        own_lanes: at least, of the cohort that a trial has of its own: convolutions round by their number.
        most_lanes: of a cohort that is measured: what the sweep could fill.
        training: how training steps are computed.
        choices: the folder in which the sweep's processes keep what `auto` found, or `None` where none is shared.
        data_key: names the data set's contents, by which a node's processes share one copy; `None`: each has its own.
        data_keys: the same of every data set that configurations name, by `variant_key`; `None` where they name none.
        timeout_seconds: a trial that trains for longer in one process fails after the epoch it is in; `None` for never.
        hang_seconds: a process that does no work for so long is ended, see `trainables.worker.hang_watchdog`; `None`
            for never.
        extensions: the archive with the code of the sweep's own components, see `trainables.extensions.code`.
        own_names: the names in it that may be imported, which the sweep's user was asked about; `None` for any.
        loop: the import path of a training loop of the user's own; `None` for ours.
        loop_columns: what its epochs measured before the sweep; `None` where that is not known.
    """

    dataset: Options
    max_epochs: int
    rungs: tuple[int, ...]
    objective: str
    evaluation: EvaluationSettings
    tables: Path | None = None
    checkpoints: Path | None = None
    store: str | None = None
    report_seconds: float = 10.0
    checkpoint_seconds: float = 0.0
    checkpoints_kept: int = 1
    batch_seconds: float = 2.0
    threads: int = 1
    device: str = "cpu"
    gpu: float = 0.0
    packing: str = SEQUENTIAL
    lanes: int = 0
    own_lanes: int = 0
    most_lanes: int = 0
    training: TrainingSettings = PLAIN
    choices: Path | None = None
    data_key: str | None = None
    data_keys: Mapping[str, str] | None = None
    timeout_seconds: float | None = None
    hang_seconds: float | None = None
    extensions: bytes | None = None
    own_names: Sequence[str] | None = None
    loop: str | None = None
    loop_columns: Sequence[str] | None = None

    def suited(self, assignment: Assignment) -> TrialSettings:
        """Return the settings for an assignment: those of all trials, or of a replicate that was added."""
        if not assignment.final:
            return self
        evaluation = replace(self.evaluation, curvature=None, trajectory=None)
        return replace(self, rungs=(self.max_epochs,), evaluation=evaluation)

    @property
    def of_replicates(self) -> dict[str, Any]:
        """What every replicate is built with, whatever its configuration."""
        bins = self.evaluation.bins
        return {"max_epochs": self.max_epochs, "device": self.device, "training": self.training, "bins": bins}

    def load_dataset(self, named: Options | None = None) -> DataSet:
        """Return a data set, on the trial's device or streamed to it: the node's one copy where it has a key.

        Args:
            named: that of a configuration; the sweep's own where it names none.
        """
        if named is None and self.dataset["name"] == OWN:
            return own_data()

        def load() -> DataSet:
            options = dict(self.dataset if named is None else named)
            return load_dataset(options.pop("name"), **options)

        key = self.data_key if named is None else (self.data_keys or {}).get(variant_key(named))
        dataset = load() if key is None else shared_dataset(key, load)
        place = data_place(self.training, dataset.nbytes, self.device, self.gpu)
        return dataset.to(self.device, streamed=place == HOST)


class DataSets:
    """The data sets of a process: the sweep's own, and the last one of those that configurations name."""

    def __init__(self, settings: TrialSettings) -> None:
        """Load the sweep's own."""
        self._settings = settings
        self.own = settings.load_dataset()
        self._named: tuple[Options | None, DataSet] = (None, self.own)

    def named(self, named: Options | None) -> DataSet:
        """Return the data set that a configuration names by name and options; the sweep's own for `None`."""
        if named is None:
            return self.own
        if self._named[0] != named:
            self._named = (named, self._settings.load_dataset(named))
        return self._named[1]


def variant_key(dataset: Options) -> str:
    """Return what a data set with its options is known by, to the driver and to trial processes."""
    return json.dumps(dict(dataset), sort_keys=True, default=str)


@dataclass(frozen=True)
class Assignment:
    """One configuration to train: its index, name, values and the seed of each replicate.

    Where there is one replicate of several, since each has a separate process or this one was added, `replicate` is its
    number. One that was added, `final`, is evaluated at its last epoch alone, without curvature and trajectory.
    `place` is the folder of its checkpoints below that of all trials, where that is not the trial's.
    """

    configuration: int
    trial: str
    values: Configuration
    seeds: Sequence[int]
    replicate: int | None = None
    place: str | None = None
    final: bool = False

    @property
    def numbers(self) -> range:
        """The replicates' numbers in their configuration, in the order of `seeds`."""
        first = self.replicate or 0
        return range(first, first + len(self.seeds))

    def checkpoints(self, folder: Path) -> Path:
        """Return the folder of this assignment's checkpoints below that of all trials."""
        if self.place is not None:
            return folder / self.place
        trial = folder / self.trial
        return trial if self.replicate is None else replicate_folder(trial, self.replicate)


#: What a process uses of a GPU in addition to torch's allocator: CUDA's context and its libraries' handles.
#: Our allowance; on a GPU the actual value is `nvidia-smi`'s figure less `torch.cuda.max_memory_reserved()`.
CONTEXT_BYTES = 512 * 2**20


def prepare_process(settings: TrialSettings) -> None:
    """Give this process the trial's threads and the user's own code; what a reused one may have changed is set again.

    Shares of a GPU isolate nothing: without a cap one trial's appetite would make its neighbours run out. The cap is
    on what torch allocates, so what CUDA takes next to it comes off the share.

    Raises:
        ValueError: this GPU cannot compute as the settings say.
    """
    if settings.extensions is not None:
        take_up(settings.extensions, settings.own_names or ())
    if settings.own_names is not None:
        permit_only(settings.own_names)
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(torch.float32)
    prepare_arithmetic(settings.training, settings.device)
    if settings.device == "cuda":
        fault = gpu_fault(settings.training)
        if fault is not None:
            raise ValueError(fault)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_cap(settings.gpu, total))


def memory_cap(share: float, total_bytes: int) -> float:
    """Return the fraction of a GPU's memory that torch may allocate in a process whose share of the GPU is `share`.

    0 and whole cards know no cap. A share so small that CUDA's context would be most of it keeps half for torch.
    """
    if not 0 < share < 1:
        return 1.0
    return max(share / 2, share - CONTEXT_BYTES / total_bytes)
