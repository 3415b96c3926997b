"""Random sweeps as a driver journals them, with crashes, repeated reports and resumes, and naive expectations."""

import datetime
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from sweeper.core.ids import ReplicateSeeds, SweepPaths, trial_name
from sweeper.core.schemas import table_schemas
from sweeper.journal.journal import Journal
from sweeper.journal.records import Record
from sweeper.space.configurations import configurations
from sweeper.space.spec import SweepSpec
from sweeper.tables.writer import ParquetSink
from tests.sweeper.records import fields
from trainables.registry.configuration import Configuration
from trainables.worker.trial_tables import write_predictions, write_rows

CLASSES = 3
SAMPLES = 7
RUNGS = (1, 3, 9)
METRICS = ("nll", "ece", "posthoc_temperature_temperature", "posthoc_temperature_unavailable", "hessian_training_trace",
           "hessian_training_samples")  # fmt: skip
TYPES = {"config_loss_name": str, "config_loss_gamma": float, "config_optimizer_lr": float, "config_flag": bool}


def configuration(index: int) -> Configuration:
    loss = {"name": "focal", "gamma": index / 2} if index % 3 else {"name": "cross_entropy"}
    return Configuration({"loss": loss, "optimizer": {"lr": 0.1 / (index + 1)}, "flag": bool(index % 2)})


@dataclass
class RandomSweep:
    """A sweep whose driver, trials and crashes are drawn from a seed. `events` yields what to journal next."""

    root: Path
    seed: int = 0
    count: int = 8
    replicates: int = 2
    rng: np.random.Generator = field(init=False)
    attempt: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    time: float = 1.7e9

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        # A sweep's identifier comes of when it began, its runs' identifiers in MLflow of that, and a client remembers
        # by these, for as long as its process lasts, where a run's artifacts are: no two tests' sweeps begin together.
        self.time += zlib.crc32(f"{self.root.parent.name}/{self.root.name}".encode()) % 2**24
        self.spectra = self.seed % 2 == 0
        self.paths = SweepPaths(self.root)
        self.paths.root.mkdir(parents=True, exist_ok=True)
        self.configurations = [configuration(index) for index in range(self.count)]
        self.schemas = table_schemas(TYPES, CLASSES, METRICS)

    def journal(self) -> Journal:
        return Journal(self.paths.journal, clock=self.clock, durable=False)

    def clock(self) -> float:
        self.time += 0.25
        return self.time

    def sink(self, **options: Any) -> ParquetSink:
        return ParquetSink(
            self.paths, self.schemas, self.configurations, ReplicateSeeds(self.seed, self.replicates), **options
        )

    def write_spec(self) -> None:
        """Write `sweep.yaml`, and take the configurations that it stands for."""
        values = {
            "dataset": {"name": "digits"}, "samples": self.count, "seed": self.seed,
            "objective": {"metric": "val_nll", "mode": "min"},
            "scheduler": {"name": "asha", "max_epochs": 9, "grace_epochs": 1},
            "replicates": {"count": self.replicates},
            "space": {
                "loss": {"one_of": [{"name": "cross_entropy"}, {"name": "focal", "gamma": {"uniform": [0.5, 10]}}]},
                "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "momentum": 0.9},
            },
        }  # fmt: skip
        spec = SweepSpec.model_validate(values)
        self.paths.sweep_file.write_text(yaml.safe_dump(spec.resolved()))
        manifest = {
            "command": ["sweeper", "run", "space.yaml"], "submitter": "somebody@here", "git": {"commit": "c0ffee"},
            "dataset": {**spec.dataset, "samples": {"train": 6, "val": 4, "test": 2}, "split_hash": "ab"},
        }  # fmt: skip
        self.paths.manifest.write_text(json.dumps(manifest))
        self.configurations = list(configurations(spec))
        self.schemas = table_schemas(spec.space.column_types, CLASSES, METRICS)

    def events(self, incoming: Path | None, steps: int = 10_000) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (kind, body) until all have ended or `steps` are made; trials write their files into `incoming`."""
        self.attempt += 1
        yield "attempt", {"attempt": self.attempt, "host": "here", "pid": 1}
        for step in range(steps):
            left = [index for index in range(self.count) if index not in self.ended]
            if not left:
                yield "ended", {"attempt": self.attempt, "outcome": "finished"}
                return
            index = int(self.rng.choice(left))
            yield "started", {"configuration": index, "attempt": self.attempt}
            if self.rng.random() < 0.05:
                yield "failed", self.failure(index)
                continue
            yield "report", self.report(index, incoming)
            if step == steps - 1 and self.rng.random() < 0.5:
                yield "ended", {"attempt": self.attempt, "outcome": "interrupted", "reason": {"kind": "asked"}}

    def failure(self, index: int) -> dict[str, Any]:
        body = {"configuration": index, "attempt": self.attempt, "epoch": self.epochs.get(index, 0)}
        return {**body, "failure": {"kind": "crash"}, "final": False}

    def report(self, index: int, incoming: Path | None) -> dict[str, Any]:
        """Report up to the next rung, sometimes beginning at epochs that were reported before."""
        before = self.epochs.get(index, 0)
        epoch = next((rung for rung in RUNGS if rung > before), RUNGS[-1])
        if self.rng.random() < 0.3 and epoch - before > 1:
            epoch -= 1
        first = max(1, before + 1 - int(self.rng.integers(0, 3)))
        self.epochs[index] = epoch
        evaluations = self.evaluations(index, epoch) if epoch in RUNGS else []
        if evaluations and incoming is not None:
            for replicate in range(self.replicates):
                write_trial_files(incoming, trial_name(index), replicate, epoch)
                if self.spectra:
                    rows = spectrum_rows(index)
                    write_rows(incoming, (trial_name(index), replicate, epoch), "spectra", rows)
        decision, status = None, "running"
        if epoch in RUNGS:
            kind = "complete" if epoch == RUNGS[-1] else "stop" if self.rng.random() < 0.3 else "continue"
            status = {"complete": "completed", "stop": "early_stopped", "continue": "running"}[kind]
            decision = {"kind": kind, "rule": "cutoff", "rung": epoch, "metric": 0.5, "count": 3}
        if status != "running":
            self.ended.add(index)
        return {
            "configuration": index, "attempt": self.attempt, "epoch": epoch, "status": status, "objective": 0.5,
            "device": "cpu", "wall_seconds": float(epoch), "packing": "sequential",
            "epochs": [self.epoch_row(index, r, e) for e in range(first, epoch + 1) for r in range(self.replicates)],
            "evaluations": evaluations, "decision": decision,
        }  # fmt: skip

    def epoch_row(self, index: int, replicate: int, epoch: int) -> dict[str, Any]:
        value = measured(index, replicate, epoch)
        nll = math.nan if index == 1 and epoch == 2 else value
        return {"replicate": replicate, "epoch": epoch, "train_loss": value, "val_nll": nll, "val_accuracy": 1 - value,
                "val_ece": value / 9, "lr": 0.1, "seconds": 1.5}  # fmt: skip

    def evaluations(self, index: int, epoch: int) -> list[dict[str, Any]]:
        rows = []
        for replicate in range(self.replicates):
            for split in ("val", "test"):
                value = measured(index, replicate, epoch)
                row = {"replicate": replicate, "epoch": epoch, "split": split, "nll": value, "ece": value / 9,
                       "stage": "end" if epoch == RUNGS[-1] else "rung"}  # fmt: skip
                if split == "val":
                    row |= {"hessian_training_trace": value * 100, "hessian_training_samples": 128.0}
                rows.append(row)
        return rows


def measured(index: int, replicate: int, epoch: int) -> float:
    return (index * 7 + replicate * 3 + epoch) % 11 / 11


def write_trial_files(folder: Path, trial: str, replicate: int, epoch: int) -> None:
    rng = np.random.default_rng([int(trial[1:]), replicate, epoch])
    logits = {split: rng.normal(size=(SAMPLES, CLASSES)) for split in ("val", "test")}
    targets = {split: rng.integers(0, CLASSES, SAMPLES) for split in ("val", "test")}
    write_predictions(folder, (trial, replicate, epoch), logits, targets)
    bins = [
        {"split": split, "bin": b, "lower": b / 2, "upper": (b + 1) / 2, "n": 3 * b, "confidence": 0.7 if b else None,
         "accuracy": 0.5 if b else None}
        for split in ("val", "test") for b in range(2)
    ]  # fmt: skip
    write_rows(folder, (trial, replicate, epoch), "reliability", bins)


def spectrum_rows(index: int) -> list[dict[str, Any]]:
    """Return three points of a density; none for every third configuration, as where a spectrum was unavailable."""
    points = range(3 if index % 3 else 0)
    return [{"loss": "training", "samples": 9, "eigenvalue": float(x), "density": 0.5, "weight": 1 / 3} for x in points]


def expected_rows(records: Sequence[Record]) -> dict[str, dict[tuple[Any, ...], dict[str, Any]]]:
    """Return table → key → row, written as plainly as can be: the first row of a key counts."""
    tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {"epochs": {}, "evaluations": {}, "decisions": {}}
    for record in records:
        if record.kind != "report":
            continue
        trial = trial_name(fields(record)["configuration"])
        for table in ("epochs", "evaluations"):
            for row in fields(record)[table]:
                key = (trial, row["replicate"], row["epoch"], row.get("split"))
                tables[table].setdefault(key, {"trial": trial, **row})
        decision = fields(record)["decision"]
        if decision:
            decided_at = datetime.datetime.fromtimestamp(record.time, datetime.UTC).replace(tzinfo=None)
            stage = "end" if decision["kind"] == "complete" else "rung"
            row = {"trial": trial, "epoch": fields(record)["epoch"], **decision}
            row |= {"stage": stage, "decided_at": decided_at}
            tables["decisions"].setdefault((trial, row["epoch"], row["kind"]), row)
    return tables
