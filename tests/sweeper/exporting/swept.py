"""Small sweeps whose networks go home, and the probabilities that their stored logits give."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer

import sweeper
from search_spaces import FOLDER
from sweeper.core.ids import SweepPaths
from sweeper.exporting.program import joint_logits
from sweeper.results.predictions import PredictionFiles
from trainables.models import build_model
from trainables.posthoc import fit

SPACE = """
dataset: {name: %s}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 2}
samples: 2
replicates: {count: 2, packing: %s}
space:
  loss: {name: focal, gamma: {uniform: [1, 3]}}
  architecture: {name: "%s"}
  optimizer: {name: sgd, lr: 0.1, momentum: 0.9, batch_size: 60, checkpoint: best_val_nll}
evaluation:
  posthoc: [temperature, {name: focal_map, label: psi}, isotonic]
  curvature: {samples: 16, lanczos_steps: 2, trace_probes: 2}
"""
SPIRALS = {"name": "own_components:spirals", "classes": 3, "noise": 0.3}
OWN = ('"own_components:spirals", classes: 3, noise: 0.3', "trials", "own_components:GatedMlp")
DIGITS = ("digits", "lanes, lanes: 4", "resnet8")
COLOURS = ((200, 60, 60), (60, 200, 60), (60, 60, 200))


def swept(folder: Path, name: str, *what: str) -> SweepPaths:
    """Run a small sweep below `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(SPACE % what)
    for own in (FOLDER / "examples").glob("own_*.py"):
        shutil.copy(own, folder)
    done = sweeper.run(folder / f"{name}.yaml", output=folder / "results", mlflow=False, executor="local")
    assert done.complete
    return SweepPaths(done.folder)


def swept_images(folder: Path) -> SweepPaths:
    """Run a small sweep of a timm network with weights from a local file on a folder of images."""
    rng, images = np.random.default_rng(0), folder / "images"
    for colour, name in zip(COLOURS, ("red", "green", "blue"), strict=True):
        (images / name).mkdir(parents=True)
        for number in range(50):
            pixels = np.clip(rng.normal(colour, 90, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(images / name / f"{number}.png")
    torch.manual_seed(1)
    network = build_model("timm", (3, 32, 32), 3, model="test_resnet")
    torch.save(network.state_dict(), folder / "weights.pth")
    data = f"image_folder, folder: {images}, validation_fraction: 0.3, test_fraction: 0.3"
    return swept(
        folder, "images", data, "sequential", f'timm", model: test_resnet, weights_file: "{folder}/weights.pth'
    )


MIXED = 'it\'s "mixed" | odd'


def odd_table(rows: int = 240) -> pd.DataFrame:
    """Return a table with missing numbers, categories, booleans, dates and odd names of columns."""
    random = np.random.RandomState(0)
    kind = np.arange(rows) % 3
    return pd.DataFrame({
        MIXED: np.where(np.arange(rows) % 7 == 0, np.nan, 1e6 * (kind + 0.3 * random.randn(rows))),
        "True": random.rand(rows) < 0.2 + 0.3 * kind,
        "colour": [None if row % 11 == 0 else ["red", "blue", "größer"][row % 7 % 3] for row in range(rows)],
        "made": np.datetime64("2026-01-01") + np.arange(rows),
        "part": np.array(["train", "val", "test"])[np.arange(rows) // 3 % 3],
        "kind": np.array(["oak", "ash", "elm"])[kind],
    })  # fmt: skip


def swept_table(folder: Path, name: str) -> tuple[SweepPaths, pd.DataFrame]:
    """Run a small sweep on `breast_cancer`, `odd` or `texts`; return it, and the test split's rows in its file."""
    folder.mkdir(exist_ok=True)
    target, given, network = "kind", "table", "mlp"
    if name == "breast_cancer":
        rows, target = load_breast_cancer(as_frame=True).frame, "target"
        rows["part"] = np.array(["train", "val", "test"])[np.arange(len(rows)) % 5 % 3]
    else:
        rows = odd_table()
    if name == "texts":
        rows["said"] = [f"the tree, {kind} {'!' * (at % 5)} is n{at}" for at, kind in enumerate(rows["kind"])]
        given, network = "text_table, text: said, length: 8, vocabulary: 60", "text_average"
    rows.to_csv(folder / "rows.csv", index=False)
    paths = swept(
        folder, name, f"{given}, file: {folder}/rows.csv, target: {target}, split: part", "sequential", network
    )
    return paths, pd.read_csv(folder / "rows.csv", parse_dates=["made"] if name == "odd" else None).query(
        "part == 'test'"
    )


def stored(paths: SweepPaths, trial: str, replicates: list[int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return joint logits and targets of a trial's last evaluation, by split."""
    found = [e for e in PredictionFiles(paths).evaluations() if e.trial == trial and e.replicate in replicates]
    chosen = [each for each in found if each.epoch == max(e.epoch for e in found)]
    assert len(chosen) == len(replicates)
    return {
        part: (joint_logits([each.logits[part] for each in chosen]), chosen[0].targets[part])
        for part in ("val", "test")
    }


def calibrated(paths: SweepPaths, trial: str, replicates: list[int]) -> np.ndarray:
    """Return the test probabilities [N, K] of the stored logits after temperature scaling on validation data."""
    parts = stored(paths, trial, replicates)
    return np.asarray(fit("temperature", *parts["val"])(parts["test"][0]))
