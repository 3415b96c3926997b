"""A generator of results folders as a real sweep leaves them, without training anything.

Logits are drawn from Gaussian classes, so accuracy, calibration and temperature hang together as they do in a real
run: the calibrated logits are known and each loss sharpens or flattens them. Trials are stopped by successive halving.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from sweeper.core.columns import evaluation_columns
from sweeper.core.ids import TABLES, SweepPaths, replicate_seed, trial_name
from sweeper.core.schemas import record_batch, table_schemas
from sweeper.journal.records import Decision
from sweeper.storage.metadata import FORMAT
from tests.sweeper.synthetic_metrics import BINS, CLASSES, best_temperature, bins_of, metrics, softmax, spectrum
from trainables.registry.configuration import Configuration
from trainables.worker.trial_tables import write_parquet

RUNGS = (3, 9)
MAX_EPOCHS = 27
START = datetime.datetime(2025, 6, 1, 12, tzinfo=datetime.UTC)
SHARPNESS = {"cross_entropy": 1.7, "focal": 1.25, "inverse_focal": 2.1, "selective_risk": 1.4}
LOSS_GRID: tuple[dict[str, Any], ...] = (
    {"name": "cross_entropy"},
    {"name": "focal", "gamma": 2.0},
    *({"name": "hessian_trace", "base": "cross_entropy", "weight": tau} for tau in (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)),
    *(
        {"name": "selective_risk", "coverage": coverage, "nu": nu, "score": "msp"}
        for coverage in (0.2, 0.6, 0.9)
        for nu in (0.03, 0.1, 0.3)
    ),
)
GAMMA_GRID = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)


@dataclass
class Sweep:
    """What the generator fills: the rows of every table, and the state of successive halving."""

    seed: int
    replicates: int
    samples: int
    early_stopping: bool
    keep_predictions: str
    rng: np.random.Generator
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {name: [] for name in TABLES})
    rungs: dict[int, list[float]] = field(default_factory=lambda: {rung: [] for rung in RUNGS})
    clock: datetime.datetime = START


def quickstart_configuration(rng: np.random.Generator) -> dict[str, Any]:
    """Draw from the quickstart's conditional space."""
    loss: dict[str, Any] = {"name": str(rng.choice(list(SHARPNESS)))}
    if loss["name"] == "focal":
        loss["gamma"] = float(rng.uniform(0.5, 10))
    elif loss["name"] == "inverse_focal":
        loss["gamma"] = float(rng.uniform(0.2, 3))
    elif loss["name"] == "selective_risk":
        loss["coverage"] = float(rng.uniform(0.1, 0.9))
        loss["nu"] = float(10 ** rng.uniform(-2, -0.5))
        loss["score"] = str(rng.choice(["msp", "margin", "negative_entropy"]))
    return {
        "loss": loss,
        "architecture": {"name": str(rng.choice(["mlp", "resnet8"]))},
        "optimizer": {
            "name": "sgd",
            "lr": float(10 ** rng.uniform(-2, -0.5)),
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "batch_size": 128,
            "schedule": "cosine",
        },
    }


def gamma_configuration(index: int) -> dict[str, Any]:
    """Return one point of a grid over γ and two architectures."""
    architecture = ("mlp", "resnet8")[index // len(GAMMA_GRID) % 2]
    gamma = GAMMA_GRID[index % len(GAMMA_GRID)]
    return {
        "loss": {"name": "focal", "gamma": gamma} if gamma else {"name": "cross_entropy"},
        "architecture": {"name": architecture},
        "optimizer": {"name": "sgd", "lr": 0.08, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 128},
    }


def loss_configuration(index: int) -> dict[str, Any]:
    """Return one point of a grid over losses, among them a penalty on the trace, two networks and up to four rates."""
    loss, other = LOSS_GRID[index % len(LOSS_GRID)], index // len(LOSS_GRID)
    return {
        "loss": loss,
        "architecture": {"name": ("mlp", "resnet8")[other % 2]},
        "optimizer": {"name": "sgd", "lr": (0.03, 0.1, 0.01, 0.3)[other // 2 % 4], "momentum": 0.9, "batch_size": 128},
    }


def write_sweep(
    root: Path,
    *,
    configurations: int = 48,
    replicates: int = 2,
    seed: int = 0,
    space: str = "quickstart",
    samples: int = 360,
    keep_predictions: str = "all",
    failures: int = 2,
    running: int = 0,
) -> Path:
    """Write a results folder at `root` and return it.

    Args:
        root: the folder; its name is the sweep's.
        configurations: how many trials.
        replicates: seeds a configuration.
        seed: of every draw.
        space: `quickstart` (with successive halving), or `gamma` or `losses` (grids, every trial runs to the end).
        samples: samples in each of the validation and test splits.
        keep_predictions: `all`, or `finished` for the trials that ran to the end only.
        failures: how many trials end with an error.
        running: how many of the last trials have only started; as many more are waiting.
    """
    rng = np.random.default_rng(seed)
    sweep = Sweep(seed, replicates, samples, space == "quickstart", keep_predictions, rng)
    failed = set(rng.choice(max(1, configurations - 2 * running), size=failures, replace=False).tolist())
    for index in range(configurations):
        draw = {"gamma": gamma_configuration, "losses": loss_configuration}.get(space)
        configuration = draw(index) if draw else quickstart_configuration(rng)
        state = "failed" if index in failed else "ends"
        if index >= configurations - 2 * running:
            state = "running" if index < configurations - running else "waiting"
        run_trial(sweep, index, configuration, state)
    write_folder(SweepPaths(root), sweep, configurations, space)
    return root


def run_trial(sweep: Sweep, index: int, configuration: dict[str, Any], state: str) -> None:
    """Add one trial's rows to every table."""
    quality = trial_quality(sweep.rng, configuration)
    epoch_limit = {"waiting": 0, "running": RUNGS[0], "failed": int(sweep.rng.integers(1, 9))}.get(state, MAX_EPOCHS)
    epoch, status, kind, rung = 0, "running" if state == "running" else "waiting", None, None
    seconds = float(sweep.rng.uniform(0.05, 0.2)) * (1 if configuration["architecture"]["name"] == "mlp" else 3)
    for milestone in (*RUNGS, MAX_EPOCHS):
        reached = min(milestone, epoch_limit)
        value = add_epochs(sweep, index, quality, configuration, epoch, reached, seconds)
        epoch = reached
        sweep.clock += datetime.timedelta(seconds=seconds * reached * sweep.replicates / 2)
        if reached < milestone or state == "waiting":
            break
        add_evaluations(sweep, index, configuration, quality, epoch)
        if state == "running":
            break
        status, kind, rung = decide(sweep, index, epoch, value)
        if status == "early_stopped":
            state = "ends"
        if status != "running" or epoch == epoch_limit:
            break
    error = None
    if state == "failed":
        status, kind = "failed", "non_finite"
        error = f"NonFiniteLoss: loss is nan at epoch {epoch + 1}; lower optimizer.lr or clip gradients"
        add_decision(sweep, index, epoch, Decision("fail", kind, None))
    if not sweep.early_stopping and status == "completed":
        drop_rung_evaluations(sweep, index)
    add_trial_rows(sweep, index, configuration, status, kind, rung, epoch, seconds, error)


def drop_rung_evaluations(sweep: Sweep, index: int) -> None:
    """Keep only the evaluation at the end: without early stopping there are no rungs."""
    name = trial_name(index)
    for table in ("evaluations", "reliability", "predictions"):
        sweep.rows[table] = [row for row in sweep.rows[table] if row["trial"] != name or row["epoch"] == MAX_EPOCHS]


def trial_quality(rng: np.random.Generator, configuration: dict[str, Any]) -> dict[str, float]:
    """Return how good the configuration is: separation of the classes, sharpness of its logits, curvature."""
    loss, lr = configuration["loss"], configuration["optimizer"]["lr"]
    residual = configuration["architecture"]["name"] == "resnet8"
    gamma = loss.get("gamma", 0.0)
    off_optimum = abs(np.log10(lr) + 1.1)
    sharpness = SHARPNESS.get(loss["name"], 1.7)
    if loss["name"] == "focal":
        sharpness = 1.7 * np.exp(-0.16 * gamma)
    elif loss["name"] == "inverse_focal":
        sharpness = 1.7 + 0.25 * gamma
    elif loss["name"] == "hessian_trace":
        sharpness = 1.7 - 0.1 * (np.log10(loss["weight"]) + 5)
    scale = 60.0 if residual else 18.0
    shrink = np.exp(-0.33 * gamma) if loss["name"] == "focal" else np.exp(0.25 * gamma)
    return {
        "separation": float((3.9 if residual else 3.3) - 0.9 * off_optimum + rng.normal(0, 0.15)),
        "sharpness": float(sharpness * np.exp(rng.normal(0, 0.05))),
        "lambda_training": float(scale * shrink * (1 + off_optimum) * np.exp(rng.normal(0, 0.15))),
        "lambda_cross_entropy": float(scale * np.exp(-0.05 * gamma) * (1 + off_optimum) * np.exp(rng.normal(0, 0.25))),
    }


def add_epochs(
    sweep: Sweep,
    index: int,
    quality: dict[str, float],
    configuration: dict[str, Any],
    first: int,
    last: int,
    seconds: float,
) -> float:
    """Add epoch rows first+1 … last for every replicate; return the mean validation NLL of the last."""
    values = []
    for replicate in range(sweep.replicates):
        for epoch in range(first + 1, last + 1):
            logits, targets = draw_logits(sweep, index, replicate, epoch, quality, "val")
            measured = metrics(softmax(logits), targets)
            sweep.rows["epochs"].append(
                {
                    "trial": trial_name(index), "replicate": replicate, "epoch": epoch,
                    "train_loss": measured["nll"] * 0.8, "val_nll": measured["nll"],
                    "val_accuracy": measured["accuracy"], "val_ece": measured["ece"],
                    "lr": configuration["optimizer"]["lr"] * (1 + np.cos(np.pi * epoch / MAX_EPOCHS)) / 2,
                    "seconds": seconds,
                }
            )  # fmt: skip
            if epoch == last:
                values.append(measured["nll"])
    return float(np.mean(values)) if values else float("nan")


def draw_logits(
    sweep: Sweep, index: int, replicate: int, epoch: int, quality: dict[str, float], split: str
) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits [samples, classes] float32 and targets of one replicate at one epoch."""
    rng = np.random.default_rng([sweep.seed, index, replicate, epoch, split == "test"])
    offset = np.random.default_rng([sweep.seed, index, replicate]).normal(0, 0.05)
    separation = max(0.8, (quality["separation"] + offset) * (1 - 0.55 * epoch**-0.7))
    targets = np.arange(sweep.samples) % CLASSES
    features = rng.normal(size=(sweep.samples, CLASSES)) + separation * np.eye(CLASSES)[targets]
    sharpness = 1 + (quality["sharpness"] - 1) * min(1.0, epoch / 9)
    return (sharpness * separation * features).astype(np.float32), targets


def add_evaluations(
    sweep: Sweep, index: int, configuration: dict[str, Any], quality: dict[str, float], epoch: int
) -> None:
    """Add evaluation, reliability and prediction rows of every replicate and split at `epoch`."""
    for replicate in range(sweep.replicates):
        val, targets = draw_logits(sweep, index, replicate, epoch, quality, "val")
        temperature = best_temperature(val, targets)
        for split in ("val", "test"):
            logits, targets = draw_logits(sweep, index, replicate, epoch, quality, split)
            key = {"trial": trial_name(index), "replicate": replicate, "epoch": epoch, "split": split}
            calibrated = metrics(softmax(logits / temperature), targets)
            row = {**key, "stage": "end" if epoch == MAX_EPOCHS else "rung", **metrics(softmax(logits), targets)}
            row["posthoc_temperature_temperature"] = temperature
            row |= {f"posthoc_temperature_{name}": value for name, value in calibrated.items() if name != "accuracy"}
            if split == "val":
                row |= curvature(sweep, index, replicate, quality, epoch)
                if sweep.early_stopping and epoch == MAX_EPOCHS:
                    sweep.rows["spectra"] += spectrum({**key, "samples": 128}, row)
            sweep.rows["evaluations"].append(row)
            sweep.rows["reliability"] += [{**key, **line} for line in bins_of(softmax(logits), targets)]
            if sweep.keep_predictions == "all" or epoch == MAX_EPOCHS:
                sweep.rows["predictions"].append({**key, "target": targets, "logits": logits})


def curvature(sweep: Sweep, index: int, replicate: int, quality: dict[str, float], epoch: int) -> dict[str, Any]:
    """Return the curvature columns of one evaluation."""
    rng = np.random.default_rng([sweep.seed, index, replicate, epoch, 7])
    row: dict[str, Any] = {}
    for loss in ("cross_entropy", "training"):
        top = quality[f"lambda_{loss}"] * float(np.exp(rng.normal(0, 0.08))) * (1 + 3 / epoch)
        trace = top * float(rng.uniform(3.5, 5))
        row |= {
            f"hessian_{loss}_lambda_max": top,
            f"hessian_{loss}_lambda_min": -0.02 * top,
            f"hessian_{loss}_trace": trace,
            f"hessian_{loss}_trace_se": 0.05 * trace,
            f"hessian_{loss}_gradient_norm": 0.1 * top**0.5,
            f"hessian_{loss}_matvecs": 10,
            f"hessian_{loss}_residual": 0.004,
            f"hessian_{loss}_samples": 128,
        }
    return row


def decide(sweep: Sweep, index: int, epoch: int, value: float) -> tuple[str, str | None, int | None]:
    """Judge the trial at `epoch` as successive halving does; return its status, kind of end and rung of stopping."""
    if epoch == MAX_EPOCHS:
        add_decision(sweep, index, epoch, Decision("complete", "last_epoch", None, value))
        return "completed", "complete", None
    if not sweep.early_stopping:
        return "running", None, None
    earlier = sweep.rungs[epoch]
    cutoff = float(np.percentile(earlier, 100 / 3)) if earlier else None
    stop = cutoff is not None and value > cutoff
    rule, place = "first" if cutoff is None else "cutoff", 1 + sum(other < value for other in earlier)
    compared = {"place": place, "count": len(earlier) + 1, "cutoff": cutoff}
    add_decision(sweep, index, epoch, Decision("stop" if stop else "continue", rule, epoch, value, **compared))
    earlier.append(value)
    return ("early_stopped", "stop", epoch) if stop else ("running", None, None)


def add_decision(sweep: Sweep, index: int, epoch: int, decision: Decision) -> None:
    """Add one row to the table of decisions."""
    place = {"trial": trial_name(index), "epoch": epoch, "decided_at": sweep.clock.replace(tzinfo=None)}
    sweep.rows["decisions"].append(place | decision.to_json())


def add_trial_rows(
    sweep: Sweep,
    index: int,
    configuration: dict[str, Any],
    status: str,
    kind: str | None,
    rung: int | None,
    epoch: int,
    seconds: float,
    error: str | None,
) -> None:
    """Add one row a replicate to the table of trials."""
    drawn = Configuration(configuration)
    evaluated = [row["epoch"] for row in sweep.rows["evaluations"] if row["trial"] == trial_name(index)]
    for replicate in range(sweep.replicates):
        sweep.rows["trials"].append(
            {
                "trial": trial_name(index), "replicate": replicate,
                "seed": replicate_seed(sweep.seed, index, replicate), "config_hash": drawn.digest,
                "status": status, "stop_kind": kind, "stop_rung": rung, "epochs": epoch,
                "last_evaluation_epoch": max(evaluated, default=None), "wall_seconds": seconds * epoch,
                "device": "cpu", "packing": "sequential", "attempt": 1, "error": error,
                **drawn.columns,
            }
        )  # fmt: skip


def write_folder(paths: SweepPaths, sweep: Sweep, configurations: int, space: str) -> None:
    """Write tables, link, sweep.yaml and manifest.json."""
    generation = paths.generations / "0001"
    sweep.rows["trials"] = [{"sweep": paths.name, **line} for line in sweep.rows["trials"]]
    types = {key: type(v) for row in sweep.rows["trials"] for key, v in row.items() if key.startswith("config_")}
    types.pop("config_hash")
    for name, schema in table_schemas(types, CLASSES, evaluation_columns(["temperature"])).items():
        lines = sweep.rows[name]
        parts = 3 if len(lines) >= 30 else 1
        for part in range(parts):
            target = generation / name / f"part-{part:04d}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            chunk = lines[part * len(lines) // parts : (part + 1) * len(lines) // parts]
            batch = predictions(schema, chunk) if name == "predictions" else record_batch(name, schema, chunk)
            write_parquet(target, schema, [batch])
    paths.tables.symlink_to(generation.relative_to(paths.root))
    paths.sweep_file.write_text(yaml.safe_dump(resolved(sweep, configurations, space)), encoding="utf-8")
    paths.manifest.write_text(json.dumps(manifest(paths.name, sweep.seed), indent=2), encoding="utf-8")


def predictions(schema: pa.Schema, evaluations: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return one batch of every evaluation's targets [N] and logits [N, K]."""
    parts = [pa.RecordBatch.from_pylist([], schema)]
    for row in evaluations:
        n = len(row["target"])
        logits = pa.FixedSizeListArray.from_arrays(row["logits"].ravel(), CLASSES)
        own = {"sample": np.arange(n), "target": row["target"], "logits": logits}
        arrays = [own[f.name] if f.name in own else pa.repeat(pa.scalar(row[f.name], f.type), n) for f in schema]
        parts.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.concat_batches(parts)


def resolved(sweep: Sweep, configurations: int, space: str) -> dict[str, Any]:
    """Return what sweep.yaml holds."""
    scheduler = {"name": "asha", "max_epochs": MAX_EPOCHS, "grace_epochs": RUNGS[0], "reduction_factor": 3}
    if space != "quickstart":
        scheduler = {"name": "none", "max_epochs": MAX_EPOCHS}
    return {
        "dataset": {"name": "digits"},
        "objective": {"metric": "val_nll", "mode": "min"},
        "scheduler": scheduler,
        "samples": configurations,
        "replicates": {"count": sweep.replicates, "packing": "sequential"},
        "seed": sweep.seed,
        "space": {"architecture": {"choice": ["mlp", "resnet8"]}, "optimizer": {"lr": {"loguniform": [0.01, 0.3]}}},
        "evaluation": {"bins": BINS, "posthoc": ["temperature"], "curvature": {"samples": 128}},
    }


def manifest(name: str, seed: int) -> dict[str, Any]:
    """Return what manifest.json holds."""
    return {
        "format": FORMAT,
        "created": START.isoformat(timespec="seconds"),
        "command": ["sweeper", "run", f"search_spaces/{name}.yaml"],
        "seed": seed,
        "dataset": {"name": "digits", "train": 1077, "val": 360, "test": 360, "split_hash": "ab" * 32},
        "quantities": {"config_loss_weight": {"hessian_trace": "tau"}},
        "versions": {"torch": "2.13.0", "ray": "2.60.0", "mlflow": "3.17.2", "python": "3.11.9"},
        "git": {"commit": "0123456789abcdef0123456789abcdef01234567", "changed": False},
        "hardware": {"processor": "Example CPU", "cores": 2, "memory_gib": 8.0, "gpus": [], "system": "Linux"},
    }
