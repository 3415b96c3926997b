"""A space to search, and histories of sweeps that search it, for tests of searchers."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sweeper.journal.records import Body, Record
from sweeper.search.base import Searcher, Suggestion, suggested_body
from sweeper.space.loading import build_spec
from sweeper.space.spec import SweepSpec
from tests.sweeper.records import made_body
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

SPACE: dict[str, Any] = {
    "loss": {
        "one_of": [
            "cross_entropy",
            {"name": "focal", "gamma": {"uniform": [0.5, 10]}},
            {
                "name": "selective_risk",
                "coverage": {"quniform": [0.1, 0.9, 0.1]},
                "nu": {"loguniform": [0.01, 0.3]},
                "score": {"choice": ["msp", "margin"]},
            },
        ]
    },
    "architecture": {"choice": [{"name": "mlp", "width": {"randint": [8, 64]}}, "resnet8"]},
    "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "momentum": {"uniform": [0.5, 0.99]}},
}


def searched_spec(samples: int = 14, *, startup: int = 4, **changes: Any) -> SweepSpec:
    """Return a search space that optuna searches."""
    searcher = {"name": "optuna", "startup": startup}
    scheduler = {"max_epochs": 27, "grace_epochs": 3}
    values = {**MINIMAL, "scheduler": scheduler, "samples": samples, "searcher": searcher, "space": SPACE, **changes}
    return build_spec(values, REGISTRIES)


def objective(values: Mapping[str, Any]) -> float:
    """Return how bad a configuration is: best is focal loss at γ = 3 with lr = 0.1; never a tie."""
    loss, lr = values["loss"], values["optimizer"]["lr"]
    branch = {"cross_entropy": 1.0, "focal": 0.0, "selective_risk": 2.0}[loss["name"]]
    return float(branch + abs(loss.get("gamma", 3.0) - 3.0) / 7 + abs(np.log10(lr) + 1))


class Journaled:
    """Writes records as a driver would, and lets a searcher hear of each."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher, self.records = searcher, list[Record]()

    def add(self, kind: str, body: Mapping[str, Any]) -> None:
        """Write one record."""
        self._add(made_body(kind, body))

    def _add(self, body: Body) -> None:
        self.records.append(Record(len(self.records), 0.0, body))
        self.searcher.apply(self.records[-1])

    def suggest(self, index: int) -> Suggestion:
        """Have configuration `index` suggested."""
        suggestion = self.searcher.suggest(index)
        self._add(suggested_body(index, suggestion, self.searcher.maker))
        return suggestion

    def report(self, index: int, status: str, rung: int, value: float | None, kind: str = "continue") -> None:
        """Report a trial's arrival at a rung."""
        decision = {"rung": rung, "kind": kind, "metric": value}
        self.add("report", {"configuration": index, "status": status, "epoch": rung, "decision": decision})

    def stop(self, index: int, value: float, rung: int = 3) -> None:
        """Have a trial stopped early."""
        self.report(index, "early_stopped", rung, value, "stop")

    def complete(self, index: int, value: float) -> None:
        """Have a trial pass its rungs and end."""
        self.report(index, "running", 3, value + 1)
        self.report(index, "running", 9, value + 0.5)
        self.report(index, "completed", 27, value, "complete")


def random_history(journaled: Journaled, rng: np.random.Generator, count: int, at_once: int) -> Iterator[int]:
    """Run `count` trials with random ends, up to `at_once` at a time; yield before each suggestion."""
    running: list[int] = []
    suggested = 0
    while suggested < count or running:
        if suggested < count and len(running) < at_once and (not running or rng.random() < 0.6):
            yield suggested
            journaled.suggest(suggested)
            running.append(suggested)
            suggested += 1
            continue
        index = running.pop(int(rng.integers(len(running))))
        end = rng.random()
        if end < 0.1:
            journaled.add("failed", {"configuration": index, "final": True})
        elif end < 0.2:
            journaled.report(index, "failed", 3, None, "fail")
        elif end < 0.7:
            journaled.stop(index, float(rng.random()), int(rng.choice([3, 9])))
        else:
            journaled.complete(index, float(rng.random()))
