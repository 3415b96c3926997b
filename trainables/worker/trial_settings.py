"""Inputs of a trial: the settings shared by all trials of a sweep, and its own assignment.

The driver builds and pickles settings and assignment; processes use them unchanged.
"""

from __future__ import annotations

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
    """The settings that all trials of a sweep share.

    Attributes:
        dataset: name and options of the data set.
        max_epochs: the last epoch.
        rungs: epochs at which trials are evaluated; the last one is `max_epochs`.
        objective: column that the scheduler judges, e.g. `val_nll`.
        evaluation: settings of evaluations.
        tables: folder of the tables; `None` to write none.
        checkpoints: folder of the checkpoints; `None` to keep none.
        store: address of the sweep in a store, if there is no shared folder; the two folders are then ignored.
        report_seconds: time after which a report is sent, at the end of the epoch.
        checkpoint_seconds: time between checkpoints; every rung has one. At 0 every report has one, written before the
            report is sent.
        checkpoints_kept: number of checkpoints kept per trial.
        batch_seconds: if no scheduler can stop configurations, reports of short ones are collected for this time.
        threads: number of torch threads in this process.
        device: `cpu` or `cuda`.
        gpu: GPU fraction of this process; memory beyond it is refused. 0 or whole GPUs: no limit.
        packing: how replicates share this process: `sequential`, `lanes` or `auto`; `trials` if each has its own
            process.
        lanes: number of lanes that trials share; 0 measures the best number.
        most_lanes: largest number of lanes that a measurement tries, because the sweep can fill no more.
        training: arithmetic of training steps.
        choices: folder in which the sweep's processes store the choices of `auto`; `None` if no folder is shared.
        data_key: key of the data set's contents; a node's processes share one copy with this key; `None`: no sharing.
        data_keys: such a key for every data set that configurations name; `None` if they name none.
        timeout_seconds: time limit: a trial that trains longer in one process fails after its current epoch; `None` for
            no limit.
        hang_seconds: time without any work after which a process is ended, see `trainables.worker.hang_watchdog`;
            `None` for no limit.
        extensions: archive with the user-defined code of the sweep, see `trainables.extensions.code`.
        own_names: names in the archive that may be imported, because the user has approved them; `None` for any.
        loop: import path of a user's training loop; `None` for the built-in one.
        loop_columns: columns that the loop's epochs measured before the sweep; `None` if unknown.
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
    most_lanes: int = 0
    training: TrainingSettings = PLAIN
    choices: Path | None = None
    data_key: str | None = None
    data_keys: Mapping[Configuration, str] | None = None
    timeout_seconds: float | None = None
    hang_seconds: float | None = None
    extensions: bytes | None = None
    own_names: Sequence[str] | None = None
    loop: str | None = None
    loop_columns: Sequence[str] | None = None

    def suited(self, assignment: Assignment) -> TrialSettings:
        """Return the settings for an assignment; an added replicate has different settings."""
        if not assignment.final:
            return self
        # Added seeds compare configurations, by their curvature, too. Trajectories, spectra and layers describe single
        # trials, and would take as long as training.
        curvature = self.evaluation.curvature
        if curvature is not None:
            curvature = replace(curvature, spectrum=False, blocks=False, statistics=())
        evaluation = replace(self.evaluation, curvature=curvature, trajectory=None)
        return replace(self, rungs=(self.max_epochs,), evaluation=evaluation)

    @property
    def of_replicates(self) -> dict[str, Any]:
        """Arguments of `Replicate` that do not depend on the configuration."""
        bins = self.evaluation.bins
        return {"max_epochs": self.max_epochs, "device": self.device, "training": self.training, "bins": bins}

    def load_dataset(self, named: Configuration | None = None) -> DataSet:
        """Load a data set onto the trial's device, or for streaming to it. A data set with a key is shared on the node.

        Args:
            named: name and options of the data set in a configuration; by default, those of the sweep.
        """
        if named is None and self.dataset["name"] == OWN:
            return own_data()

        def load() -> DataSet:
            options = dict(self.dataset if named is None else named)
            return load_dataset(options.pop("name"), **options)

        key = self.data_key if named is None else (self.data_keys or {}).get(named)
        dataset = load() if key is None else shared_dataset(key, load)
        place = data_place(self.training, dataset.nbytes, self.device, self.gpu)
        return dataset.to(self.device, streamed=place == HOST)


class DataSets:
    """The data sets of a process: the sweep's data set, and the last one that a configuration named."""

    def __init__(self, settings: TrialSettings) -> None:
        """Load the sweep's data set."""
        self._settings = settings
        self.own = settings.load_dataset()
        self._named: tuple[Configuration | None, DataSet] = (None, self.own)

    def named(self, named: Configuration | None) -> DataSet:
        """Return the data set with this name and these options; the sweep's for `None`."""
        if named is None:
            return self.own
        if self._named[0] != named:  # keeping more could fill the memory
            self._named = (named, self._settings.load_dataset(named))
        return self._named[1]


@dataclass(frozen=True)
class Assignment:
    """One configuration to train.

    Attributes:
        configuration: its index.
        trial: its name.
        values: its components and hyperparameters.
        seeds: the seed of each replicate.
        replicate: number of the replicate, if it has a separate process or was added later; else `None`.
        place: folder of its checkpoints, relative to that of all trials; `None` for the trial's folder.
        final: whether the replicate was added later; it is then evaluated at its last epoch only, without trajectory.
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
        """Return the folder of this assignment's checkpoints below `folder`, the folder of all trials."""
        if self.place is not None:
            return folder / self.place
        trial = folder / self.trial
        return trial if self.replicate is None else replicate_folder(trial, self.replicate)


#: GPU memory of a process outside torch's allocator: CUDA's context and its libraries' handles. An allowance; the
#: actual value is the figure of `nvidia-smi` minus `torch.cuda.max_memory_reserved()`.
CONTEXT_BYTES = 512 * 2**20


def prepare_process(settings: TrialSettings) -> None:
    """Set up this process for a trial: user-defined code, threads, arithmetic and the memory limit of its GPU share.

    A reused process is set up again, since the trial before may have changed it.

    Raises:
        ValueError: this GPU cannot compute with these settings.
    """
    if settings.extensions is not None:
        take_up(settings.extensions, settings.own_names or ())
    if settings.own_names is not None:
        permit_only(settings.own_names)
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(torch.float32)  # user-defined code may have changed it
    prepare_arithmetic(settings.training, settings.device)
    if settings.device == "cuda":
        fault = gpu_fault(settings.training)
        if fault is not None:
            raise ValueError(fault)
        torch.cuda.empty_cache()
        # Shares of a GPU do not isolate processes: without a limit, one trial could use up its neighbours' memory.
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_cap(settings.gpu, total))


def memory_cap(share: float, total_bytes: int) -> float:
    """Return the fraction of a GPU's memory that torch may allocate in a process with this share of the GPU.

    The limit applies to torch's allocator, so CUDA's context is subtracted from the share. 0 and whole GPUs have no
    limit. If the context would take most of a small share, half of the share is kept for torch.
    """
    if not 0 < share < 1:
        return 1.0
    return max(share / 2, share - CONTEXT_BYTES / total_bytes)
