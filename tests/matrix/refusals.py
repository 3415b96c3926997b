"""The refusals of the matrix: why each is true, and that its remedy works.

`test_matrix.py` has seen that it is one sentence with a remedy. A check here compares the claim with the sweep's
files, and follows the remedy where it is a command or a call.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

import sweeper
from sweeper.core.errors import SweeperError
from sweeper.results import load
from tests.matrix import own_code
from tests.matrix.commands import Case, exported, retrain

Refusal = Callable[[Case, SweeperError], None]
REFUSALS: dict[str, Refusal] = {}


def refusal(check: Refusal) -> Refusal:
    """Register a refusal under its function's name."""
    REFUSALS[check.__name__] = check
    return check


@refusal
def weights_gone(case: Case, error: SweeperError) -> None:
    """The sweep kept the weights of its best trial alone; `--retrain` works, and the named trial has them."""
    assert case.trial.name in error.message and case.trial.name != case.best.name
    assert not (Path(case.made.output) / case.made.name / "checkpoints" / case.trial.name).exists()
    assert "--retrain" in error.remedy
    retrain(case)
    for named in re.findall(r"--trial (c\d+)", error.remedy):  # none where the checkpoints are in a store
        assert exported(case, trial=named).trial == case.best.name


@refusal
def imported(case: Case, error: SweeperError) -> None:
    """Imported predictions have no network; nothing that a command could do."""
    results = load(case.made.name, case.made.output)
    assert case.made.name in error.message and "imported" in results.manifest and not results.paths.checkpoints.exists()


@refusal
def own_loop(case: Case, error: SweeperError) -> None:
    """A loop of the user's own has its networks; the remedy's call gives its state, which the loop loads."""
    results = load(case.made.name, case.made.output)
    loop = results.specification["loop"]
    assert loop in error.message and "weights_only=True" in error.remedy
    (folder,) = results.paths.checkpoints.iterdir()
    (file,) = folder.glob("*.pt")
    state = torch.load(file, weights_only=True)["replicates"][0]["loop"]
    if loop == "own_loops:Loop":
        code: dict[str, object] = {}
        exec(own_code.LOOPS, code)
        made = code["Loop"]({"predicts": "logits"}, seed=0)  # type: ignore[operator]
        made.load_state_dict(state)
        outputs, targets = made.predict("test")
        assert (outputs.argmax(1) == targets).double().mean() == case.best.value("accuracy", "test", 0)


@refusal
def no_predictions(case: Case, error: SweeperError) -> None:
    """The loop has no `predict`, so nothing is stored; the kind `own loop, logits` has one and is right."""
    assert case.made.name in error.message and "`predict`" in error.remedy and not case.trial.has_predictions
    with zipfile.ZipFile(Path(case.made.output, case.made.name, "extensions.zip")) as code:
        (text,) = (code.read(name).decode() for name in code.namelist() if name.endswith("own_loops.py"))
    assert "def predict" not in text.partition("class Measures")[2]


@refusal
def not_finished(case: Case, error: SweeperError) -> None:
    """Only finished trials are compared; the losses that the remedy names have some."""
    assert case.trial.name in error.message and case.trial.status != "completed"
    losses = error.remedy.partition(": ")[2].split(", ")
    rows = case.once(sweeper.results_, everything=True).value.rows
    assert {*losses} == {row["loss"] for row in rows if row["status"] == "completed"}


@refusal
def in_a_store(case: Case, error: SweeperError) -> None:
    """A store's objects are moved and packed with the store's own tools."""
    assert "://" in case.made.output and "store" in error.message
