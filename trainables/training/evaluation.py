"""One evaluation of one replicate: metrics, post-hoc calibration and curvature, as one record per split.

Post-hoc methods are fitted on the validation split and applied to every split; curvature is taken on the validation
split. What cannot be measured (a post-hoc method that refuses its data, a Hessian that is not finite) leaves
its columns empty and its reason in a text column; it never ends the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, spectral_density
from trainables.curvature.blocks import block_names
from trainables.curvature.failures import as_unavailable
from trainables.curvature.lanes import Curvature
from trainables.curvature.loss_of_logits import LossFunction
from trainables.curvature.measure import Tempered, measure_by_block
from trainables.curvature.statistics.base import TEMPERED, temperature_labels
from trainables.datasets.base import DataSet, Split
from trainables.losses import Loss, build_loss
from trainables.metrics import BOOTSTRAPPED, RECALIBRATED, evaluate_probabilities, reliability_bins, softmax64
from trainables.metrics.base import Metrics, further_metric_columns
from trainables.metrics.bootstrap import bootstrap_standard_error
from trainables.metrics.known_posterior import posterior_metrics
from trainables.metrics.out_of_distribution import ood_columns, other_splits
from trainables.metrics.refinement import refinement_columns
from trainables.posthoc import PosthocUnavailable, fit
from trainables.posthoc.base import cross_fitted
from trainables.posthoc.confidence_regions import region_columns
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import FITTED_ON as SPLIT_KEY, LABEL, Options, entry_label, set_within
from trainables.registry.names import CROSS_FITTED
from trainables.training.fine_tuning import layer_numbers
from trainables.training.prediction import (
    EpochRow,
    Predicting,
    State,
    TrajectorySettings,
    logits_and_norms,
    on_host,
    shifted_data,
)

#: A record of a table: column → value.
Row = dict[str, object]

#: Split → logits [N, K] and targets [N].
Measured = Mapping[str, tuple[np.ndarray, np.ndarray]]

#: The split that post-hoc methods are fitted on, curvature is taken on and objectives are judged on.
FITTED_ON = "val"

#: One subset for all trials of all sweeps on a data set, so that curvatures on `samples` can be compared.
CURVATURE_SUBSET_SEED = 0


@dataclass(frozen=True)
class EvaluationSettings:
    """What an evaluation measures.

    Attributes:
        bins: number of bins of the calibration errors (15, as METHODS of the focal-loss papers).
        posthoc: post-hoc methods, each its `name` and options, with the `label` of its columns and the split that it is
            `fitted_on` where these are not its name and `val`.
        metrics: what is measured besides, name and options: further metrics or users' own.
        curvature: what to measure of the Hessian, or `None` for nothing.
        bootstrap: repetitions of the bootstrap for standard errors; 0 for none.
        trajectory: what is measured after each epoch besides, or `None` for nothing.
        splits: the data set's splits to measure on, in the order of the rows; `val` among them.
        shifts: other splits, which finished networks are measured on besides, see `trainables.datasets.splits`.
        cross_fitted: those of `posthoc`, by label, that are cross-fitted on `val` besides: objectives need them.

    Raises:
        ValueError: `val` is missing.
    """

    bins: int = 15
    posthoc: tuple[Options, ...] = ()
    metrics: Metrics = ()
    curvature: CurvatureSettings | None = None
    bootstrap: int = 100
    trajectory: TrajectorySettings | None = None
    splits: tuple[str, ...] = (FITTED_ON, "test")
    cross_fitted: tuple[str, ...] = ()
    shifts: tuple[Options, ...] = ()

    def __post_init__(self) -> None:
        """Check the splits."""
        if FITTED_ON not in self.splits:
            raise ValueError(
                f"splits = {list(self.splits)} must hold {FITTED_ON}, which post-hoc methods are fitted on"
            )

    @staticmethod
    def from_mapping(settings: Options) -> EvaluationSettings:
        """Read settings as a resolved search space holds them. Raises ValueError on unknown curvature settings."""
        curvature, trajectory = settings.get("curvature"), settings.get("trajectory")
        bins = settings.get("bins", 15)
        splits = settings.get("splits", EvaluationSettings.splits)
        return EvaluationSettings(
            bins=bins,
            posthoc=_written_out(settings.get("posthoc", ())),
            metrics=_named(settings.get("metrics", ())),
            curvature=CurvatureSettings.from_mapping(curvature) if curvature else None,
            bootstrap=settings.get("bootstrap", 100),
            trajectory=TrajectorySettings.from_mapping(trajectory, bins) if trajectory else None,
            splits=tuple(each for each in splits if isinstance(each, str)),
            cross_fitted=tuple(settings.get("cross_fitted", ())),
            shifts=tuple(each for each in splits if not isinstance(each, str)),
        )


@dataclass
class Evaluation:
    """The result of one evaluation.

    Attributes:
        rows: one flat record a split, the scalars of the `evaluations` table.
        reliability: rows of the `reliability` table.
        logits: split → float32 logits `[N, K]`, of those that keep them.
        targets: the same splits → classes, int64 `[N]`.
        curvature: rows of the tables `spectra` and `blocks`, of those that were asked for.
    """

    rows: list[Row]
    reliability: list[Row]
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    targets: dict[str, np.ndarray] = field(default_factory=dict)
    curvature: dict[str, list[Row]] = field(default_factory=dict)


#: The stage of the last evaluation.
END = "end"


class Task(Protocol):
    """What a trial trains, one seed of a configuration: our own loop (`loop.Replicate`), or a user's."""

    @property
    def epoch(self) -> int:
        """Completed epochs."""

    def train_epoch(self, after_step: Callable[[], None] | None = None) -> EpochRow:
        """Train one epoch; return its row. `after_step` may ask for the state, where steps can be told apart."""

    def evaluate(self, settings: EvaluationSettings, stage: str) -> Evaluation:
        """Return the full measurement."""

    def trajectory_row(self, settings: TrajectorySettings) -> EpochRow:
        """Return what is measured after an epoch for curves against the epoch."""

    def state_dict(self) -> State:
        """Return everything that decides how training continues."""

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`'s result."""


def evaluate(
    model: nn.Module,
    loss: Loss,
    dataset: DataSet,
    settings: EvaluationSettings,
    *,
    stage: str,
    seed: int,
    predicting: Predicting = logits_and_norms,
) -> Evaluation:
    """Measure a network on the requested splits.

    Args:
        model: the network; its parameters, buffers and mode are left as they were found.
        loss: the training loss, whose Hessian is measured beside plain cross-entropy's.
        dataset: gives the splits.
        settings: what to measure.
        stage: `rung` or `end`, copied into the rows; shifts are measured at the end alone.
        seed: of the curvature's probes and the bootstrap.
        predicting: gives logits and norms of the data set's splits.
    """
    was_training = model.training
    splits = {name: dataset.splits[name] for name in settings.splits}
    predicted = {name: predicting(model, split) for name, split in splits.items()}
    fetched = on_host(*(each for each, _ in predicted.values()), *(split.targets for split in splits.values()))
    logits = {name: values.numpy() for name, values in zip(splits, fetched, strict=False)}
    targets = {name: values.numpy() for name, values in zip(splits, fetched[len(splits) :], strict=True)}
    measuring = _Measuring(dataset, settings, {"name": loss.name, "gamma": getattr(loss, "gamma", None)}, seed)
    rows: dict[str, Row] = {}
    reliability: list[Row] = []
    for name in splits:
        probabilities = softmax64(logits[name])
        rows[name] = measuring.metrics_row(logits[name], probabilities, targets[name], settings.bootstrap)
        rows[name].update(region_columns(probabilities, measuring.trained_with))
        rows[name].update(posterior_metrics(_posterior(dataset, name), probabilities))
        diagram = reliability_bins(probabilities, targets[name], settings.bins)
        reliability += [{"split": name, **row} for row in diagram]
    for name in other_splits(settings.splits):
        rows[name].update(ood_columns(logits["test"], logits[name]))
    measured = {name: (logits[name], targets[name]) for name in splits}
    known = _fitting_data(model, measured, settings, dataset, predicting)
    shifted = shifted_data(model, dataset, settings.shifts if stage == END else ())
    comparable = {name: (scores, classes) for name, (scores, classes, of) in shifted.items() if of.same_classes}
    recalibrated = measuring.posthoc_columns({**measured, **comparable}, known)
    held_out = measuring.cross_fitted_columns(*measured[FITTED_ON])
    for name in splits:
        rows[name].update(split=name, stage=stage, **predicted[name][1], **recalibrated[name])
    temperatures = temperatures_of(recalibrated[FITTED_ON], settings)
    curvature, tables = curvature_columns(model, loss, dataset, settings.curvature, seed, temperatures)
    rows[FITTED_ON].update(**held_out, **curvature)
    for name, (scores, classes, shift) in shifted.items():
        rows[name] = {"split": name, "stage": stage, **recalibrated.get(name, {})}
        if shift.same_classes:
            rows[name].update(measuring.metrics_row(scores, softmax64(scores), classes, bootstrap=0))
        rows[name].update(ood_columns(logits["test"], scores) if shift.detected and "test" in logits else {})
        if shift.logits:
            logits[name], targets[name] = scores, classes
    model.train(was_training)
    return Evaluation(list(rows.values()), reliability, logits, targets, tables)


def curvature_subset(split: Split, samples: int | None) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the fixed stratified subset that curvature is measured on; all for `None`.

    Classes keep their shares as well as whole numbers allow; the choice depends on the split alone.
    """
    if samples is None or samples >= len(split.targets):
        return split.head(len(split)), split.targets
    generator = torch.Generator().manual_seed(CURVATURE_SUBSET_SEED)
    targets = split.targets.cpu()
    order = torch.randperm(len(targets), generator=generator)
    # The place of each sample within its class, as a share of the class: taking the smallest shares is stratified.
    place = torch.empty(len(targets), dtype=torch.float64)
    for label in targets.unique():
        members = order[targets[order] == label]
        place[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    chosen = torch.argsort(place, stable=True)[:samples].sort().values.to(split.targets.device)
    return split.select(chosen)


def _written_out(components: Iterable[str | Options]) -> tuple[dict[str, Any], ...]:
    """Return components as a search space holds them, a name alone as a mapping."""
    return tuple({"name": each} if isinstance(each, str) else dict(each) for each in components)


def _named(components: Iterable[str | Options]) -> tuple[tuple[str, Options], ...]:
    """Return components as a search space holds them as names and options."""
    return tuple((each.pop("name"), each) for each in _written_out(components))


def as_asked(entry: Options, loss: Mapping[str, object]) -> tuple[str, dict[str, Any], str]:
    """Return a post-hoc method's name, its options with the training `loss`'s γ, and the split that it is fitted on."""
    options = {key: value for key, value in entry.items() if key not in ("name", LABEL, SPLIT_KEY)}
    return entry["name"], with_training_gamma(entry["name"], options, loss), entry.get(SPLIT_KEY, FITTED_ON)


def _fitting_data(
    model: nn.Module, measured: Measured, settings: EvaluationSettings, dataset: DataSet, predicting: Predicting
) -> Measured:
    """Return logits and targets of every split that post-hoc methods are fitted on, predicted where not measured."""
    found = dict(measured)
    for name in dict.fromkeys(entry.get(SPLIT_KEY, FITTED_ON) for entry in settings.posthoc):
        if name not in found:
            split = dataset.splits[name]
            found[name] = (predicting(model, split)[0].cpu().numpy(), split.targets.cpu().numpy())
    return found


@dataclass(frozen=True)
class _Measuring:
    """What a split's metrics and post-hoc columns are computed with, in one evaluation.

    Attributes:
        dataset: whose splits they are.
        settings: what to measure.
        trained_with: the training loss, name and γ.
        seed: of the bootstrap, and of methods that draw.
    """

    dataset: DataSet
    settings: EvaluationSettings
    trained_with: Mapping[str, Any]
    seed: int

    def metrics_row(self, logits: np.ndarray, probabilities: np.ndarray, targets: np.ndarray, bootstrap: int) -> Row:
        """Return the metrics of a split, with standard errors by so many repetitions of the bootstrap; 0 for none."""
        measured = evaluate_probabilities(probabilities, targets, self.settings.bins, logits=logits)
        row: Row = {**measured, **refinement_columns(logits, targets, measured)}
        if bootstrap:
            repeated = (self.settings.bins, bootstrap, self.seed)
            row.update(bootstrap_standard_error(BOOTSTRAPPED, probabilities, targets, *repeated))
        row.update(further_metric_columns(self.settings.metrics, probabilities, targets))
        return row

    def posthoc_columns(self, measured: Measured, known: Measured) -> dict[str, Row]:
        """Return by split the columns of every post-hoc method, fitted on one of the `known` splits."""
        columns: dict[str, Row] = {name: {} for name in measured}
        for entry in self.settings.posthoc:
            method, options, fitted_on = as_asked(entry, self.trained_with)
            prefix = f"posthoc_{entry_label(entry)}_"
            try:
                calibrator = fit(method, *known[fitted_on], **options)
                calibrated = {name: calibrator(logits) for name, (logits, _) in measured.items()}
            except PosthocUnavailable as error:
                for row in columns.values():
                    row[f"{prefix}unavailable"] = str(error)
                continue
            for name, row in columns.items():
                (logits, targets), probabilities = measured[name], calibrated[name]
                row.update({prefix + key: value for key, value in calibrator.parameters.items()})
                underflowed = calibrator.underflowed(logits, probabilities)
                row.update(self.recalibrated_columns(prefix, probabilities, targets, underflowed))
                row.update(further_metric_columns(self.settings.metrics, probabilities, targets, prefix))
                distances = posterior_metrics(_posterior(self.dataset, name), probabilities)
                row.update({prefix + metric: value for metric, value in distances.items()})
        return columns

    def cross_fitted_columns(self, logits: np.ndarray, targets: np.ndarray) -> Row:
        """Return metrics on validation data of methods fitted on the other folds."""
        columns: Row = {}
        for entry in self.settings.posthoc:
            if entry_label(entry) not in self.settings.cross_fitted:
                continue
            method, options, _ = as_asked(entry, self.trained_with)
            prefix = f"{CROSS_FITTED}{entry_label(entry)}_"
            try:
                probabilities, exact = cross_fitted(method, logits, targets, options)
                columns |= self.recalibrated_columns(prefix, probabilities, targets, exact)
            except PosthocUnavailable as error:
                columns[f"{prefix}unavailable"] = str(error)
        return columns

    def recalibrated_columns(
        self, prefix: str, probabilities: np.ndarray, targets: np.ndarray, logits: np.ndarray | None
    ) -> Row:
        """Return the metrics of recalibrated probabilities, their names after the prefix."""
        measured = evaluate_probabilities(probabilities, targets, self.settings.bins, RECALIBRATED, logits)
        return {prefix + metric: value for metric, value in measured.items()}


def _posterior(dataset: DataSet, split: str) -> np.ndarray | None:
    """Return the true class probabilities of a split; those of the test split alone are known, if any are."""
    return dataset.posterior.cpu().numpy() if split == "test" and dataset.posterior is not None else None


def temperatures_of(row: Row, settings: EvaluationSettings) -> dict[str, float]:
    """Return label → T of those post-hoc methods `temperature` that a split's `row` has one of."""
    found = {label: row.get(f"posthoc_{label}_temperature") for label in temperature_labels(settings.posthoc)}
    return {label: value for label, value in found.items() if isinstance(value, float)}


def curvature_losses(loss: Loss, settings: CurvatureSettings) -> dict[str, Loss]:
    """Return label → what is measured of a network trained with `loss`; a regulariser is left out."""
    available = {"cross_entropy": build_loss("cross_entropy"), "training": getattr(loss, "base", loss)}
    return {label: each for label, each in available.items() if label in settings.losses}


_known: ContextVar[Mapping[int, Curvature] | None] = ContextVar("known", default=None)


def known_curvature(found: Mapping[int, Curvature]) -> AbstractContextManager[None]:
    """Within this context curvature is not measured again of those networks, by id, whose it `found`."""
    return set_within(_known, found)


def curvature_columns(
    model: nn.Module,
    loss: Loss,
    dataset: DataSet,
    settings: CurvatureSettings | None,
    seed: int,
    temperatures: Mapping[str, float],
) -> tuple[Row, dict[str, list[Row]]]:
    """Return the Hessian's columns and the rows of `spectra` and `blocks` if requested; a reason for what is missing.

    A regulariser around a loss is measured by the loss. Where `tempered` is among the losses, cross-entropy is measured
    of the logits over each of the `temperatures`, label → T.
    """
    if settings is None:
        return {}, {}
    losses: dict[str, LossFunction] = {**curvature_losses(loss, settings)}
    if TEMPERED in settings.losses:
        losses |= {f"{TEMPERED}_{label}": Tempered(value) for label, value in temperatures.items()}
    inputs, targets = curvature_subset(dataset.val, settings.samples)
    given = (model, inputs, targets, losses)
    columns: Row = {}
    tables: dict[str, list[Row]] = {"blocks": []} if settings.blocks else {}
    try:
        with as_unavailable("telling the network's layers apart"):
            blocks = block_names(layer_numbers(model)) if settings.blocks else None
        known = (_known.get() or {}).get(id(model))
        found = known or measure_by_block(*given, settings=settings, seed=seed, blocks=blocks)
        for label, (values, rows) in found.items():
            columns |= {f"hessian_{label}_{name}": value for name, value in values.items()}
            tables.get("blocks", []).extend({"loss": label, **row} for row in rows)
    except CurvatureUnavailable as error:
        columns["hessian_unavailable"] = str(error)
    if not settings.spectrum:
        return columns, tables
    tables["spectra"] = []
    try:
        densities = spectral_density(*given, settings=settings, seed=seed)
    except CurvatureUnavailable as error:
        return {**columns, "spectrum_unavailable": str(error)}, tables
    spectra = [{"loss": label, "samples": len(targets), **row} for label, rows in densities.items() for row in rows]
    return columns, {**tables, "spectra": spectra}
