"""The numbers of a trial, computed from the sweep's Parquet files by PyArrow, NumPy and SciPy alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.dataset as ds
from numpy.typing import NDArray
from pyarrow.fs import FileSystem
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

Row = dict[str, Any]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def table(folder: str, name: str, files: FileSystem | None = None) -> list[Row]:
    """Return the rows of a table below `folder`, a path in `files` (default: this machine's)."""
    place = f"{folder}/tables/{name}"
    return ds.dataset(place, format="parquet", filesystem=files).to_table().to_pylist()


@dataclass(frozen=True)
class Outputs:
    """One replicate's outputs on one split: logits [N, K] and classes [N]."""

    logits: Floats
    targets: Integers

    def scaled(self, temperature: float) -> Outputs:
        """Return the outputs with logits divided by a temperature."""
        return Outputs(self.logits / temperature, self.targets)

    @property
    def probabilities(self) -> Floats:
        """Softmax of the logits."""
        return np.asarray(softmax(self.logits, axis=1))

    def nll(self, weights: Floats | None = None) -> float:
        """Mean negative log-likelihood of the targets, with weights of the samples [N] or without."""
        of_target = log_softmax(self.logits, axis=1)[np.arange(len(self.targets)), self.targets]
        return float(-np.average(of_target, weights=weights))

    def accuracy(self) -> float:
        """Share of samples whose largest logit is the target's."""
        return float((self.logits.argmax(1) == self.targets).mean())

    def ece(self, bins: int = 15) -> float:
        """Expected calibration error with equal-width bins that are closed on the right (Guo et al. 2017)."""
        confidence, hit = self.probabilities.max(1), self.logits.argmax(1) == self.targets
        place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        gaps = [abs((hit[place == at] - confidence[place == at]).sum()) for at in range(bins)]
        return float(sum(gaps) / len(hit))

    def largest_interval_gap(self) -> float:
        """Largest |Σ (hit − confidence)| / N over intervals of confidences (`cutoff_error`)."""
        confidence, hit = self.probabilities.max(1), self.logits.argmax(1) == self.targets
        order = np.argsort(confidence, kind="stable")
        sums = np.concatenate([[0.0], np.cumsum((hit - confidence)[order]) / len(hit)])
        return float(sums.max() - sums.min())

    def temperature(self) -> float:
        """Return the temperature with the smallest NLL (Guo et al. 2017)."""
        how = {"bounds": (-4, 4), "method": "bounded", "options": {"xatol": 1e-9}}
        return float(np.exp(minimize_scalar(lambda t: self.scaled(np.exp(t)).nll(), **how).x))

    def cross_fitted(self) -> Outputs:
        """Return the outputs with temperature scaling, each fifth of the samples with the temperature of the others.

        The samples of each class are dealt out in turn, class after class.
        """
        scaled, dealt = self.logits.copy(), sorted(range(len(self.targets)), key=lambda at: self.targets[at])
        for fold in range(5):
            held_out = np.isin(np.arange(len(dealt)), dealt[fold::5])
            scaled[held_out] /= Outputs(self.logits[~held_out], self.targets[~held_out]).temperature()
        return Outputs(scaled, self.targets)


@dataclass(frozen=True)
class Trial:
    """A trial's rows and outputs.

    Attributes:
        name: e.g. `c00007`.
        tables: name → rows of the whole sweep.
    """

    name: str
    tables: Mapping[str, list[Row]]

    def own(self, name: str) -> list[Row]:
        """Return this trial's rows of a table."""
        return [row for row in self.tables[name] if row["trial"] == self.name]

    @cached_property
    def status(self) -> str:
        """The status of its first replicate."""
        return str(self.own("trials")[0]["status"])

    @cached_property
    def epoch(self) -> int:
        """Its last evaluation."""
        return max(row["epoch"] for row in self.own("evaluations"))

    @cached_property
    def replicates(self) -> list[int]:
        """The replicates that were measured at the last epoch."""
        return sorted({row["replicate"] for row in self.own("evaluations") if row["epoch"] == self.epoch})

    @property
    def has_fresh_seeds(self) -> bool:
        """Whether it is judged by replicates that did not select it: two or more, where another trial has none."""
        return len(self.added) > 1 and self.has_rivals_without

    @cached_property
    def fresh(self) -> list[int]:
        """The replicates by which it is judged."""
        return self.added if self.has_fresh_seeds else self.replicates

    @cached_property
    def added(self) -> list[int]:
        """The replicates that were trained after the selection."""
        return sorted({row["replicate"] for row in self.own("evaluations") if row["stage"] == "final"})

    @property
    def has_rivals_without(self) -> bool:
        """Whether a trial of the sweep has no added replicates, so that something was selected."""
        rows = self.tables["evaluations"]
        return {row["trial"] for row in rows} > {row["trial"] for row in rows if row["stage"] == "final"}

    def seed(self, replicate: int) -> int:
        """Return the seed of a replicate."""
        return next(row["seed"] for row in self.own("trials") if row["replicate"] == replicate)

    def outputs(self, replicate: int, split: str) -> Outputs:
        """Return one replicate's outputs at the last epoch."""
        key = (replicate, split, self.epoch)
        rows = [row for row in self.own("predictions") if (row["replicate"], row["split"], row["epoch"]) == key]
        rows.sort(key=lambda row: row["sample"])
        assert [row["sample"] for row in rows] == [*range(len(rows))], "samples are missing or twice there"
        logits = np.array([row["logits"] for row in rows], np.float64)
        return Outputs(logits, np.array([row["target"] for row in rows]))

    @cached_property
    def has_predictions(self) -> bool:
        """Whether it stored any."""
        return bool(self.own("predictions"))

    def value(self, metric: str, split: str, replicate: int) -> float:
        """Return `nll`, `accuracy` or `ece` of a replicate at the last epoch."""
        if not self.has_predictions:  # the loop `Measures` in `own_code` knows no others
            lr = self.own("trials")[0]["config_lr"]
            return {"nll": lr / self.epoch + (split == "test"), "accuracy": 1 - lr, "ece": lr / 2}[metric]
        return float(getattr(self.outputs(replicate, split), metric)())

    def objective(self, replicate: int) -> float:
        """Return the objective of a replicate: the NLL, after temperature scaling if the sweep fits that."""
        if self.own("evaluations")[0].get("cross_fitted_temperature_nll") is None:
            return self.value("nll", "val", replicate)
        return self.outputs(replicate, "val").cross_fitted().nll()

    @cached_property
    def judged(self) -> float:
        """The mean of the objective over the replicates by which it is judged."""
        return float(np.mean([self.objective(at) for at in self.fresh]))

    def mean(self, metric: str, split: str, replicates: list[int] | None = None) -> float:
        """Return a metric's mean over replicates (default: all)."""
        return float(np.mean([self.value(metric, split, at) for at in replicates or self.replicates]))
