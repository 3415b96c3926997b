"""Every kind of trial: the sweeps that have one of each, made once, and which of their trials is meant.

A sweep is a function under `@sweep`, which runs two to four tiny networks in a folder of its own. A kind is a line of
`KINDS`: its sweep, and how to find its trial in the sweep's own table `trials`.
"""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem

import sweeper
from sweeper.core.ids import SweepPaths
from tests.matrix.by_hand import Row, Trial, table
from tests.matrix.own_code import LIGHTNING, LOOPS, NETWORK
from tests.remote.services import BUCKET, s3_server
from tests.running import started, wait_for_records

T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """A sweep that has ended.

    Attributes:
        name, output: how commands name it.
        tracker: its MLflow store, if it has one.
        answers: what commands said about the whole sweep, which many cells share.
    """

    name: str
    output: str
    tracker: str = ""
    answers: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def tables(self) -> dict[str, list[Row]]:
        """Its tables, as they were when it ended: name → rows."""
        place, files = f"{self.output}/{self.name}", None
        if "://" in place:
            files = S3FileSystem(endpoint_override=os.environ["AWS_ENDPOINT_URL"], access_key="test", secret_key="test")
            place = place.partition("://")[2]
        return {name: table(place, name, files) for name in ("trials", "evaluations", "predictions", "decisions")}

    def once(self, question: str, ask: Callable[[], T]) -> T:
        """Return the answer to a question about the whole sweep; only the first call asks."""
        if question not in self.answers:
            self.answers[question] = ask()
        return cast(T, self.answers[question])


class Workshop:
    """Makes each sweep when it is first needed, in a folder of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.results = folder, str(folder / "results")
        self._stack, self._made = stack, dict[str, Made]()
        # Trials inherit the environment of the fork server, which starts with the first sweep.
        environment = {"WANDB_MODE": "offline", "SWEEPER_CACHE": str(folder / "cache"), **self.enter(s3_server(folder))}
        for name, value in environment.items():
            self.set(name, value)

    def set(self, name: str, value: str) -> None:
        """Set an environment variable until the workshop closes."""
        self._stack.enter_context(mock.patch.dict(os.environ, {name: value}))

    def enter(self, context: AbstractContextManager[Any]) -> Any:
        """Enter a context until the workshop closes."""
        return self._stack.enter_context(context)

    def made(self, name: str) -> Made:
        """Return a sweep; the first call makes it."""
        if name not in self._made:
            (self.folder / name).mkdir()
            self._made[name] = SWEEPS[name](self, self.folder / name)
        return self._made[name]

    def run(self, folder: Path, space: Mapping[str, Any] | str, *, output: str | None = None, **options: Any) -> Made:
        """Run a search space, a mapping or the text of a file."""
        text = space if isinstance(space, str) else json.dumps(space)
        file = folder / f"{folder.name}.yaml"
        file.write_text(text)
        output = output or self.results
        done = sweeper.run(file, output=output, **{"mlflow": False, "executor": "local", **options})
        return Made(done.name, output)


Maker = Callable[[Workshop, Path], Made]
SWEEPS: dict[str, Maker] = {}


def sweep(make: Maker) -> Maker:
    """Register a sweep under its function's name."""
    SWEEPS[make.__name__.rstrip("_")] = make
    return make


#: What most sweeps share. A logarithm of the learning rate spreads the trials, so that the best one is no accident.
DIGITS: dict[str, Any] = {
    "dataset": {"name": "digits"},
    "scheduler": {"name": "none", "max_epochs": 2},
    "samples": 2,
    "space": {
        "loss": {"name": "focal", "gamma": {"uniform": [0.5, 3]}},
        "architecture": {"name": "mlp", "width": 8},
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.03, 0.3]}, "batch_size": 128},
    },
    "evaluation": {"posthoc": ["temperature"], "bootstrap": 0, "curvature": False},
}
#: One trial after the other, so that the third is stopped in every run.
HALVED = {
    "objective": "val_nll",
    "scheduler": {"name": "asha", "max_epochs": 2, "grace_epochs": 1, "reduction_factor": 2},
    "samples": 3,
    "max_concurrent": 1,
}


@sweep
def halving(workshop: Workshop, folder: Path) -> Made:
    """Trials that a scheduler stops or completes, with MLflow."""
    address = f"sqlite:///{folder}/mlflow.db"
    made = workshop.run(folder, DIGITS | HALVED, mlflow=True, tracking_uri=address)
    return replace(made, tracker=address)


@sweep
def line(workshop: Workshop, folder: Path) -> Made:
    """A final stage: fresh seeds for the best trial, and a line of γ through it."""
    # With this seed, a value of the line is better than those that were drawn.
    loss = {"loss": {"name": "focal", "gamma": {"uniform": [0, 9]}}}
    own = {
        "space": DIGITS["space"] | loss,
        "replicates": {"at_most": 3, "seeds": "common"},
        "objective": "val_nll",
        "which": ["gamma"],
        "seed": 4,
    }
    return workshop.run(folder, DIGITS | own)


@sweep
def lanes(workshop: Workshop, folder: Path) -> Made:
    """Trials that train together as lanes; the best one gets another seed on request."""
    made = workshop.run(folder, DIGITS | {"replicates": {"count": 2, "packing": "lanes"}})
    sweeper.resume(made.name, set={"replicates": 3}, trials="c00001", output=made.output, mlflow=False)
    return made


@sweep
def apart(workshop: Workshop, folder: Path) -> Made:
    """A process for each replicate, weights of the classes, and a shifted split whose logits are kept."""
    shift = {"name": "other", "dataset": "digits", "split": "train", "same_classes": True, "samples": 200}
    evaluation = DIGITS["evaluation"] | {"splits": ["val", "test", shift | {"label": "shifted", "logits": True}]}
    own = {"replicates": {"count": 2, "packing": "trials"}, "training": {"class_weights": "balanced"}}
    return workshop.run(folder, DIGITS | own | {"evaluation": evaluation})


@sweep
def table_(workshop: Workshop, folder: Path) -> Made:
    """A CSV file with numbers far from 0 and 1, a text, gaps, and weights of the rows."""
    random = np.random.default_rng(0)
    with (folder / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("height", "colour", "gap", "cost", "kind"))
        for row in range(240):
            kind = row % 3
            height, colour = 170 + 9 * kind + 5 * random.normal(), ["red", "green", "blue"][(kind + (row % 5 == 0)) % 3]
            gap = "" if row % 7 == 0 else f"{1000 * kind + 400 * random.normal():.1f}"
            writer.writerow((f"{height:.2f}", colour, gap, 1 + row % 4, ["low", "mid", "top"][kind]))
    data = {"name": "table", "file": str(folder / "own.csv"), "target": "kind", "weight": "cost"}
    return workshop.run(folder, _small(DIGITS | {"dataset": data}))


@sweep
def text_table(workshop: Workshop, folder: Path) -> Made:
    """A column of texts."""
    random, words = np.random.default_rng(0), (["good", "fine", "nice"], ["bad", "poor", "sad"])
    with (folder / "own.jsonl").open("w") as file:
        for row in range(160):
            said = [*random.choice(words[row % 2], 3), *random.choice(("it", "was", "a", "film"), 4)]
            file.write(json.dumps({"review": " ".join(random.permutation(said)), "stars": row % 2 + 1}) + "\n")
    data = {"name": "text_table", "file": str(folder / "own.jsonl"), "target": "stars", "text": "review"}
    network = {"architecture": {"name": "text_average", "dimension": 8, "width": 8}}
    # Every sample is predicted right, so that no temperature is determined.
    objective = {"objective": "val_nll"}
    return workshop.run(folder, _small(DIGITS | objective | {"dataset": data, "space": DIGITS["space"] | network}))


def _small(space: dict[str, Any]) -> dict[str, Any]:
    """Return a space for a hundred training rows."""
    optimizer = space["space"]["optimizer"] | {"batch_size": 16}
    return space | {"space": space["space"] | {"optimizer": optimizer}}


def _looped(workshop: Workshop, folder: Path, loop: str, space: Mapping[str, Any]) -> Made:
    (folder / "own_loops.py").write_text(LOOPS)
    evaluation = {"evaluation": {"posthoc": ["temperature"], "bootstrap": 0}} if loop != "Measures" else {}
    common = {"loop": f"own_loops:{loop}", "scheduler": DIGITS["scheduler"], "resources": {"gpu": 0}, "samples": 1}
    return workshop.run(folder, {**common, "space": space, **evaluation})


@sweep
def loops(workshop: Workshop, folder: Path) -> Made:
    """A loop of the user's own that predicts logits or probabilities."""
    return _looped(workshop, folder, "Loop", {"predicts": {"grid": ["logits", "probabilities"]}})


@sweep
def one_logit(workshop: Workshop, folder: Path) -> Made:
    """A loop that predicts a logit a sample."""
    return _looped(workshop, folder, "OneLogit", {"lr": {"grid": [0.1, 0.3]}})


@sweep
def measures(workshop: Workshop, folder: Path) -> Made:
    """A loop that only measures."""
    return _looped(workshop, folder, "Measures", {"lr": {"grid": [0.1, 0.3]}})


@sweep
def lightning(workshop: Workshop, folder: Path) -> Made:
    """A LightningModule."""
    (folder / "own_lightning.py").write_text(LIGHTNING)
    space = {"lr": {"grid": [0.01, 0.1]}}
    common = {"loop": "own_lightning:Loop", "scheduler": DIGITS["scheduler"], "resources": {"gpu": 0}, "samples": 1}
    return workshop.run(folder, {**common, "space": space, "evaluation": {"posthoc": ["temperature"], "bootstrap": 0}})


def _predictions(seed: int, count: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [N, 3] and labels [N] of an overconfident network."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    return (4 * (np.eye(3)[labels] + random.normal(0, 0.8, (count, 3)))).astype(np.float32), labels


def _imported(workshop: Workshop, folder: Path, file: Path) -> Made:
    options = {"name": folder.name, "output": workshop.results, "mlflow": False}
    return Made(sweeper.import_(file, set={"evaluation.bootstrap": 0}, **options).name, workshop.results)


@sweep
def npz(workshop: Workshop, folder: Path) -> Made:
    """Arrays of both splits."""
    parts = {split: _predictions(seed) for seed, split in enumerate(("val", "test"))}
    arrays = {f"{split}_logits": logits for split, (logits, _) in parts.items()}
    np.savez(folder / "own.npz", **arrays, **{f"{split}_labels": labels for split, (_, labels) in parts.items()})
    return _imported(workshop, folder, folder / "own.npz")


@sweep
def csv_(workshop: Workshop, folder: Path) -> Made:
    """A column for each class, and no splits."""
    logits, labels = _predictions(2, 200)
    with (folder / "own.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("label", "logits_0", "logits_1", "logits_2"))
        writer.writerows((label, *row) for label, row in zip(labels, logits.tolist(), strict=True))
    return _imported(workshop, folder, folder / "own.csv")


@sweep
def two_runs(workshop: Workshop, folder: Path) -> Made:
    """Two runs of a network elsewhere, with a hyperparameter and two seeds."""
    rows = []
    for lr, seed in ((0.1, 1), (0.1, 2), (0.3, 1), (0.3, 2)):
        for place, split in enumerate(("val", "test")):
            _, labels = _predictions(place)
            noise = np.random.default_rng([seed, place]).normal(0, 0.8 + lr, (len(labels), 3))
            logits = (3 * (np.eye(3)[labels] + noise)).astype(np.float32)
            own = {"lr": lr, "seed": seed, "split": split}
            rows += [
                own | {"sample": at, "target": int(label), "logits": values}
                for at, (label, values) in enumerate(zip(labels, logits.tolist(), strict=True))
            ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "own.parquet")
    return _imported(workshop, folder, folder / "own.parquet")


@sweep
def retried(workshop: Workshop, folder: Path) -> Made:
    """A trial that fails, until what it needs is there, and is retried."""
    (folder / "own_network.py").write_text(NETWORK)
    missing = folder / "missing"
    missing.touch()
    network = {"name": "own_network:Fragile", "missing": str(missing), "width": {"grid": [8, 12]}}
    space = DIGITS | {"samples": 1, "retries": 0, "space": DIGITS["space"] | {"architecture": network}}
    made = workshop.run(folder, space)
    assert [row["status"] for row in table(f"{made.output}/{made.name}", "trials")].count("failed") == 1
    missing.unlink()
    sweeper.resume(made.name, failed=True, output=made.output, mlflow=False, trust=True)
    return made


@sweep
def killed(workshop: Workshop, folder: Path) -> Made:
    """A driver that is killed after the first reports, and a sweep that is resumed."""
    longer = {"samples": 3, "scheduler": {"name": "none", "max_epochs": 6}}
    (folder / "killed.yaml").write_text(json.dumps(DIGITS | longer))
    paths, options = SweepPaths(Path(workshop.results, "killed")), ("--no-mlflow", "--executor", "local")
    with started("run", "killed.yaml", *options, "--output", workshop.results, cwd=folder) as process:
        wait_for_records(paths, 4, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    made = Made("killed", workshop.results)
    sweeper.resume(made.name, output=made.output, mlflow=False)
    return made


@sweep
def wandb(workshop: Workshop, folder: Path) -> Made:
    """Weights & Biases, offline."""
    return workshop.run(folder, DIGITS, mlflow=True, tracking_uri="wandb:matrix")


@sweep
def tensorboard(workshop: Workshop, folder: Path) -> Made:
    """TensorBoard's files."""
    return workshop.run(folder, DIGITS, mlflow=True, tracking_uri="tensorboard:")


@sweep
def optuna(workshop: Workshop, folder: Path) -> Made:
    """Configurations that a searcher chooses one after the other, replicates as lanes."""
    own = {"searcher": {"name": "optuna", "startup": 2}, "samples": 3, "max_concurrent": 1}
    return workshop.run(folder, DIGITS | own | {"replicates": {"count": 2, "packing": "lanes"}})


@sweep
def store(workshop: Workshop, folder: Path) -> Made:
    """Results in an object store."""
    return workshop.run(folder, DIGITS, output=f"s3://{BUCKET}/matrix")


@dataclass(frozen=True)
class Kind:
    """A kind of trial.

    Attributes:
        sweep: the sweep that has it.
        is_one: whether a row of `trials` belongs to such a trial; the first one is taken.
        splits: the splits that it was measured on.
    """

    sweep: str
    is_one: Callable[[Row], bool] = lambda row: row["status"] == "completed"
    splits: tuple[str, ...] = ("val", "test")

    def of(self, made: Made) -> Trial:
        """Return the trial that is meant."""
        name = min(row["trial"] for row in made.tables["trials"] if self.is_one(row))
        return Trial(name, made.tables)


def _named(trial: str) -> Callable[[Row], bool]:
    return lambda row: bool(row["trial"] == trial)


#: Every kind. A tracker, searcher, packing or format that the product adds needs one (`test_matrix.py`).
KINDS = {
    "drawn": Kind("halving"),
    "stopped at its first rung": Kind("halving", lambda row: row["status"] == "early_stopped"),
    "added by a line": Kind("line", _named("c1000004")),
    "fresh seeds": Kind("line", lambda row: row["trial"] < "c1" and row["replicate"] == 2),
    "more replicates": Kind("lanes", _named("c00001")),
    "lanes": Kind("lanes", _named("c00000")),
    "packing: trials": Kind("apart"),
    "class weights": Kind("apart", _named("c00001")),
    "shifts": Kind("apart", splits=("val", "test", "other_shifted")),
    "table": Kind("table"),
    "sample weights": Kind("table", _named("c00001")),
    "text table": Kind("text_table"),
    "own loop, logits": Kind("loops", lambda row: row["config_predicts"] == "logits"),
    "own loop, probabilities": Kind("loops", lambda row: row["config_predicts"] == "probabilities"),
    "own loop, one logit": Kind("one_logit"),
    "own loop, only measures": Kind("measures"),
    "Lightning": Kind("lightning"),
    "imported npz": Kind("npz"),
    "imported CSV": Kind("csv"),
    "two imported runs": Kind("two_runs"),
    "failed and retried": Kind("retried", _named("c00001")),
    "resumed after a kill": Kind("killed"),
    "MLflow": Kind("halving"),
    "W&B": Kind("wandb"),
    "TensorBoard": Kind("tensorboard"),
    "no tracker": Kind("table"),
    "searcher": Kind("optuna", _named("c00002")),
    "store": Kind("store"),
}

#: Family of the product → member → the kind that shows it. A new member fails `test_matrix.py` until it has one.
SHOWN_BY = {
    "tracker": {"mlflow": "MLflow", "wandb": "W&B", "tensorboard": "TensorBoard"},
    "searcher": {"random": "drawn", "grid": "own loop, logits", "optuna": "searcher"},
    "packing": {
        "sequential": "drawn", "lanes": "lanes", "trials": "packing: trials",
        "auto": "lanes",  # it measures, and then is one of the others
    },
    "predictions of a loop": {"logits": "own loop, logits", "probabilities": "own loop, probabilities"},
    "file of predictions": {
        **dict.fromkeys((".npz", ".npy", ".h5", ".hdf5"), "imported npz"),  # arrays by name
        **dict.fromkeys((".csv", ".jsonl", ".json"), "imported CSV"), ".parquet": "two imported runs",
    },
    "store": dict.fromkeys(("s3", "gs", "az"), "store"),  # `tests/remote` has one of each
}  # fmt: skip
