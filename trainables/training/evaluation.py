"""One evaluation of one replicate: metrics, post-hoc calibration and curvature, as one record per split.

Post-hoc methods are fitted on the validation split and applied to every split; curvature is measured on the validation
split. If a measurement is impossible (a post-hoc method that fails, a Hessian that is not finite), its
columns stay empty and a text column holds the reason. The trial continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainables.curvature import CurvatureSettings, CurvatureUnavailable, spectral_density
from trainables.curvature.blocks import block_names
from trainables.curvature.failures import as_unavailable
from trainables.curvature.lanes import Curvature
from trainables.curvature.loss_of_logits import LossFunction
from trainables.curvature.measure import OfRows, Tempered, measure_by_block
from trainables.curvature.statistics.base import TEMPERED, temperature_labels
from trainables.datasets.base import DataSet, Split
from trainables.losses import Loss, build_loss
from trainables.metrics import BOOTSTRAPPED, RECALIBRATED, evaluate_probabilities, reliability_bins, softmax64
from trainables.metrics.base import Metrics, UnusablePredictions, further_metric_columns, require_probabilities
from trainables.metrics.evaluate import bootstrap_standard_errors, evaluate_networks
from trainables.metrics.known_posterior import posterior_metrics
from trainables.metrics.out_of_distribution import ood_columns, other_splits
from trainables.metrics.refinement import refinement_columns, refinements
from trainables.metrics.weighted import weighted_metrics
from trainables.posthoc import Calibrator, fit
from trainables.posthoc.base import cross_fitted
from trainables.posthoc.confidence_regions import region_columns
from trainables.posthoc.focal_map import with_training_gamma
from trainables.registry import FITTED_ON as SPLIT_KEY, LABEL, Options, entry_label
from trainables.registry.names import CROSS_FITTED
from trainables.training.fine_tuning import layer_numbers
from trainables.training.prediction import Predicting, TrajectorySettings, logits_and_norms, on_host, shifted_data

#: A record of a table: column → value.
Row = dict[str, object]

#: Split → logits [N, K] and targets [N].
Measured = Mapping[str, tuple[np.ndarray, np.ndarray]]

#: Split for fitting post-hoc methods, measuring curvature and judging objectives.
FITTED_ON = "val"

#: Fixed, so that all trials of all sweeps on a data set measure curvature on the same subset and can be compared.
CURVATURE_SUBSET_SEED = 0


@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of an evaluation.

    Attributes:
        bins: number of bins for calibration errors (15, as in the focal-loss papers).
        posthoc: post-hoc methods, each with `name` and options; optionally the `label` for its columns (default: the
            name) and the split it is `fitted_on` (default: `val`).
        metrics: name and options of further metrics, built-in or the user's own.
        curvature: settings for the Hessian; `None` for no curvature.
        bootstrap: number of bootstrap repetitions for standard errors; 0 for none.
        trajectory: settings for additional measurements after each epoch; `None` for none.
        splits: splits to measure, in row order; must include `val`.
        shifts: further splits that only finished networks are measured on, see `trainables.datasets.splits`.
        cross_fitted: labels of the `posthoc` methods that are also cross-fitted on `val`, because objectives need them.

    Raises:
        ValueError: `val` is missing.

    Example:
        >>> EvaluationSettings.from_mapping({"posthoc": ["temperature"], "splits": ["val"]}).posthoc
        ({'name': 'temperature'},)
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
        """Check that the splits include `val`."""
        if FITTED_ON not in self.splits:
            raise ValueError(
                f"splits = {list(self.splits)} must include {FITTED_ON}: post-hoc methods are fitted on it"
            )

    @staticmethod
    def from_mapping(settings: Options) -> EvaluationSettings:
        """Return settings from a resolved search space. Raises ValueError for unknown curvature settings."""
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
            splits=tuple(split for split in splits if isinstance(split, str)),
            cross_fitted=tuple(settings.get("cross_fitted", ())),
            shifts=tuple(split for split in splits if not isinstance(split, str)),
        )


@dataclass
class Evaluation:
    """The result of one evaluation.

    Attributes:
        rows: one flat record per split, with the scalars for the `evaluations` table.
        reliability: rows for the `reliability` table.
        logits: split → float32 logits [N, K], for splits that keep them.
        targets: split → int64 classes [N], for the same splits.
        curvature: table name → rows, for `spectra` and `blocks` if requested.
    """

    rows: list[Row]
    reliability: list[Row]
    logits: dict[str, np.ndarray] = field(default_factory=dict)
    targets: dict[str, np.ndarray] = field(default_factory=dict)
    curvature: dict[str, list[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Predictions:
    """A network's predictions on the splits of a data set.

    Attributes:
        logits: split → float32 [N, K].
        targets: split → class indices [N].
        norms: split → norms, see `logits_and_norms`.
    """

    logits: dict[str, np.ndarray]
    targets: Mapping[str, np.ndarray]
    norms: dict[str, dict[str, float]]


def predictions_of(
    models: Sequence[nn.Module], dataset: DataSet, settings: EvaluationSettings, predicting: Predicting
) -> list[Predictions]:
    """Return the predictions of each network on the splits in `settings`."""
    splits = {name: dataset.splits[name] for name in settings.splits}
    found = [{name: predicting(model, split) for name, split in splits.items()} for model in models]
    # One transfer for all networks and splits: every transfer waits for the GPU to finish.
    measured = [tensor for own in found for scores, norms in own.values() for tensor in (scores, *norms.values())]
    fetched = iter(on_host(*(split.targets for split in splits.values()), *measured))
    targets = {name: next(fetched).numpy() for name in splits}
    predictions = [Predictions({}, targets, {}) for _ in models]
    for predicted, own in zip(predictions, found, strict=True):
        for name, (_, norms) in own.items():
            predicted.logits[name] = next(fetched).numpy()
            predicted.norms[name] = {norm: float(next(fetched)) for norm in norms}
    return predictions


def metrics_of_networks(
    logits: np.ndarray, probabilities: np.ndarray, targets: np.ndarray, bins: int, bootstrap: int
) -> list[dict[str, float]]:
    """Return the metrics that every evaluation measures, per network.

    Args:
        logits: [L, N, K].
        probabilities: their softmax, checked by `require_probabilities`.
        targets: class indices [N].
        bins: number of bins.
        bootstrap: number of resamples for standard errors; 0 for none.
    """
    measured = evaluate_networks(probabilities, targets, bins, logits=logits)
    rows = [row | refinement_columns(own, row) for row, own in zip(measured, refinements(logits, targets), strict=True)]
    if bootstrap:
        errors = bootstrap_standard_errors(BOOTSTRAPPED, probabilities, targets, bins, bootstrap)
        rows = [row | own for row, own in zip(rows, errors, strict=True)]
    return rows


@dataclass(frozen=True)
class Shared:
    """Measurements of a network that were made together with other networks', so `evaluate` does not repeat them.

    Attributes:
        curvature: result of `measure_lanes`; `None` if there is none.
        predicted: predictions; `None` if there are none.
        metrics: split → `metrics_of_networks`.
    """

    curvature: Curvature | None = None
    predicted: Predictions | None = None
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


#: Stage of the last evaluation.
END = "end"


def evaluate(
    model: nn.Module,
    loss: Loss,
    dataset: DataSet,
    settings: EvaluationSettings,
    *,
    stage: str,
    seed: int,
    predicting: Predicting = logits_and_norms,
    shared: Shared | None = None,
) -> Evaluation:
    """Measure a network on the requested splits.

    Args:
        model: network; its parameters, buffers and mode stay unchanged.
        loss: training loss. Its Hessian is measured in addition to the Hessian of plain cross-entropy.
        dataset: data set with the splits.
        settings: measurements to make.
        stage: `rung` or `end`, copied into the rows. Splits in `shifts` are measured only at stage `end`.
        seed: seed for curvature probes.
        predicting: function that returns logits and norms for a network and a split.
        shared: measurements of this network that exist already (`trainables.training.lanes.evaluation`).

    Example:
        >>> network = nn.Linear(2, 3)
        >>> split = Split(torch.eye(2).repeat(15, 1), torch.arange(30) % 3)
        >>> dataset = DataSet("points", split, split, split, classes=3, input_shape=(2,), split_hash="")
        >>> settings, loss = EvaluationSettings(bootstrap=0), build_loss("cross_entropy")
        >>> result = evaluate(network, loss, dataset, settings, stage="end", seed=0)
        >>> [row["split"] for row in result.rows]
        ['val', 'test']
    """
    was_training = model.training
    shared = shared or Shared()
    (predicted,) = [shared.predicted] if shared.predicted else predictions_of([model], dataset, settings, predicting)
    logits, targets = {**predicted.logits}, {**predicted.targets}
    splits = [*logits]
    measuring = _Measuring(dataset, settings, {"name": loss.name, "gamma": getattr(loss, "gamma", None)})
    rows: dict[str, Row] = {}
    reliability: list[Row] = []
    for name in splits:
        probabilities = softmax64(logits[name])
        together = shared.metrics.get(name)
        rows[name] = measuring.metrics_row(logits[name], probabilities, targets[name], settings.bootstrap, together)
        rows[name].update(region_columns(probabilities, measuring.trained_with))
        rows[name].update(posterior_metrics(_posterior(dataset, name), probabilities))
        own = (_weights(dataset, name), probabilities, targets[name], settings.bins, logits[name])
        rows[name].update(weighted_metrics(*own))
        diagram = reliability_bins(probabilities, targets[name], settings.bins)
        reliability += [{"split": name, **row} for row in diagram]
    for name in other_splits(settings.splits):
        rows[name].update(ood_columns(logits["test"], logits[name]))
    measured = {name: (logits[name], targets[name]) for name in splits}
    known = _fitting_data(model, measured, settings, dataset, predicting)
    # A shift costs a pass over a whole data set, so only finished networks are measured on shifts.
    shifted = shifted_data(model, dataset, settings.shifts if stage == END else ())
    comparable = {name: (scores, classes) for name, (scores, classes, of) in shifted.items() if of.same_classes}
    recalibrated = measuring.posthoc_columns({**measured, **comparable}, known)
    held_out = measuring.cross_fitted_columns(*measured[FITTED_ON])
    for name in splits:
        rows[name].update(split=name, stage=stage, **predicted.norms[name], **recalibrated[name])
    temperatures = temperatures_of(recalibrated[FITTED_ON], settings)
    wanted = settings.curvature
    curvature, tables = curvature_columns(model, loss, dataset, wanted, seed, temperatures, shared.curvature)
    rows[FITTED_ON].update(**held_out, **curvature)
    for name, (scores, classes, shift) in shifted.items():
        rows[name] = {"split": name, "stage": stage, **recalibrated.get(name, {})}
        # Data with other classes have no targets for metrics; they only test detection.
        if shift.same_classes:
            rows[name].update(measuring.metrics_row(scores, softmax64(scores), classes, bootstrap=0))
        rows[name].update(ood_columns(logits["test"], scores) if shift.detected and "test" in logits else {})
        if shift.logits:
            logits[name], targets[name] = scores, classes
    model.train(was_training)
    return Evaluation(list(rows.values()), reliability, logits, targets, tables)


def curvature_subset(split: Split, samples: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return inputs, targets and loss weights of the fixed stratified subset for curvature; all samples for `None`.

    Classes keep their shares up to rounding, and the choice depends on the split alone.
    """
    weights = split.loss_weights
    if samples is None or samples >= len(split.targets):
        return split.head(len(split)), split.targets, weights
    generator = torch.Generator().manual_seed(CURVATURE_SUBSET_SEED)
    targets = split.targets.cpu()
    order = torch.randperm(len(targets), generator=generator)
    # Each sample gets its relative position within its class; taking the smallest positions is stratified.
    place = torch.empty(len(targets), dtype=torch.float64)
    for label in targets.unique():
        members = order[targets[order] == label]
        place[members] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    chosen = torch.argsort(place, stable=True)[:samples].sort().values.to(split.targets.device)
    return *split.select(chosen), None if weights is None else weights[chosen]


def _written_out(components: Iterable[str | Options]) -> tuple[dict[str, Any], ...]:
    """Return components as mappings; a bare name becomes a mapping with that name."""
    return tuple({"name": part} if isinstance(part, str) else dict(part) for part in components)


def _named(components: Iterable[str | Options]) -> tuple[tuple[str, Options], ...]:
    """Return components as pairs of name and options."""
    return tuple((part.pop("name"), part) for part in _written_out(components))


def resolved_method(entry: Options, loss: Mapping[str, object]) -> tuple[str, dict[str, Any], str]:
    """Return a post-hoc method's name, its options including the training `loss`'s γ, and the split to fit it on."""
    options = {key: value for key, value in entry.items() if key not in ("name", LABEL, SPLIT_KEY)}
    return entry["name"], with_training_gamma(entry["name"], options, loss), entry.get(SPLIT_KEY, FITTED_ON)


def _fitting_data(
    model: nn.Module, measured: Measured, settings: EvaluationSettings, dataset: DataSet, predicting: Predicting
) -> Measured:
    """Return logits and targets of every split on which post-hoc methods are fitted; missing logits are predicted."""
    known = dict(measured)
    for name in dict.fromkeys(entry.get(SPLIT_KEY, FITTED_ON) for entry in settings.posthoc):
        if name not in known:
            split = dataset.splits[name]
            known[name] = (predicting(model, split)[0].cpu().numpy(), split.targets.cpu().numpy())
    return known


@dataclass(frozen=True)
class _Measuring:
    """Computes the metrics and post-hoc columns of one evaluation.

    Attributes:
        dataset: data set of the splits.
        settings: measurements to make.
        trained_with: name and γ of the training loss.
    """

    dataset: DataSet
    settings: EvaluationSettings
    trained_with: Mapping[str, Any]

    def metrics_row(
        self,
        logits: np.ndarray,
        probabilities: np.ndarray,
        targets: np.ndarray,
        bootstrap: int,
        known: Mapping[str, float] | None = None,
    ) -> Row:
        """Return the metrics of a split, with standard errors from `bootstrap` repetitions if above 0.

        `known` are the network's `metrics_of_networks`, if they are measured already.
        """
        if known is None:
            require_probabilities(probabilities, targets, self.settings.bins)
            (known,) = metrics_of_networks(logits[None], probabilities[None], targets, self.settings.bins, bootstrap)
        return {**known, **further_metric_columns(self.settings.metrics, probabilities, targets)}

    def posthoc_columns(self, measured: Measured, known: Measured) -> dict[str, Row]:
        """Return split → columns of every post-hoc method, fitted on one of the `known` splits."""
        columns: dict[str, Row] = {name: {} for name in measured}
        for entry in self.settings.posthoc:
            method, options, fitted_on = resolved_method(entry, self.trained_with)
            prefix = f"posthoc_{entry_label(entry)}_"
            try:
                calibrator = fit(method, *known[fitted_on], **options)
                found = {name: self.calibrated_row(prefix, calibrator, name, *own) for name, own in measured.items()}
            except UnusablePredictions as error:
                # The reason becomes a column; other methods and the trial continue.
                found = {name: {f"{prefix}unavailable": str(error)} for name in columns}
            for name, row in columns.items():
                row.update(found[name])
        return columns

    def calibrated_row(
        self, prefix: str, calibrator: Calibrator, split: str, logits: np.ndarray, targets: np.ndarray
    ) -> Row:
        """Return the columns of a fitted post-hoc method for one split."""
        row: Row = {prefix + key: value for key, value in calibrator.parameters.items()}
        probabilities = calibrator(logits)
        underflowed = calibrator.underflowed(logits, probabilities)
        row.update(self.recalibrated_columns(prefix, probabilities, targets, underflowed))
        row.update(further_metric_columns(self.settings.metrics, probabilities, targets, prefix))
        weighted = weighted_metrics(
            _weights(self.dataset, split), probabilities, targets, self.settings.bins, underflowed
        )
        further = posterior_metrics(_posterior(self.dataset, split), probabilities) | weighted
        return row | {prefix + metric: value for metric, value in further.items()}

    def cross_fitted_columns(self, logits: np.ndarray, targets: np.ndarray) -> Row:
        """Return validation metrics of methods that are fitted on the other folds."""
        columns: Row = {}
        for entry in self.settings.posthoc:
            if entry_label(entry) not in self.settings.cross_fitted:
                continue
            method, options, _ = resolved_method(entry, self.trained_with)
            prefix = f"{CROSS_FITTED}{entry_label(entry)}_"
            try:
                probabilities, exact = cross_fitted(method, logits, targets, options)
                columns |= self.recalibrated_columns(prefix, probabilities, targets, exact)
            except UnusablePredictions as error:
                columns[f"{prefix}unavailable"] = str(error)
        return columns

    def recalibrated_columns(
        self, prefix: str, probabilities: np.ndarray, targets: np.ndarray, logits: np.ndarray | None
    ) -> Row:
        """Return the metrics of recalibrated probabilities, with `prefix` before their names."""
        measured = evaluate_probabilities(probabilities, targets, self.settings.bins, RECALIBRATED, logits)
        return {prefix + metric: value for metric, value in measured.items()}


def _posterior(dataset: DataSet, split: str) -> np.ndarray | None:
    """Return the true class probabilities of the test split if the data set knows them, else `None`."""
    return dataset.posterior.cpu().numpy() if split == "test" and dataset.posterior is not None else None


def _weights(dataset: DataSet, split: str) -> np.ndarray | None:
    """Return the weights of a split's samples if it has any and belongs to the data set, else `None`."""
    weights = dataset.splits[split].weights if split in dataset.splits else None
    return None if weights is None else weights.cpu().numpy()


def temperatures_of(row: Row, settings: EvaluationSettings) -> dict[str, float]:
    """Return label → T for the post-hoc methods `temperature` that were fitted in a split's `row`."""
    fitted = {label: row.get(f"posthoc_{label}_temperature") for label in temperature_labels(settings.posthoc)}
    return {label: value for label, value in fitted.items() if isinstance(value, float)}


def curvature_losses(loss: Loss, settings: CurvatureSettings) -> dict[str, Loss]:
    """Return label → loss to measure, for a network trained with `loss`; a regulariser is left out."""
    available = {"cross_entropy": build_loss("cross_entropy"), "training": getattr(loss, "base", loss)}
    return {label: value for label, value in available.items() if label in settings.losses}


def curvature_columns(
    model: nn.Module,
    loss: Loss,
    dataset: DataSet,
    settings: CurvatureSettings | None,
    seed: int,
    temperatures: Mapping[str, float],
    known: Curvature | None = None,
) -> tuple[Row, dict[str, list[Row]]]:
    """Return the Hessian's columns and the rows of `spectra` and `blocks` if requested.

    A column holds the reason if a measurement failed. A regulariser around a loss is left out. If `tempered` is among
    the losses, cross-entropy is also measured after each temperature scaling. Only the training loss has the weights of
    samples and classes.

    Args:
        model: network.
        loss: training loss.
        dataset: data set; its validation split is used.
        settings: settings for curvature; `None` returns nothing.
        seed: seed for probes.
        temperatures: label → T of the fitted temperature scalings.
        known: result of `measure_lanes`, if there is one.
    """
    if settings is None:
        return {}, {}
    losses: dict[str, LossFunction] = {**curvature_losses(loss, settings)}
    if TEMPERED in settings.losses:
        losses |= {f"{TEMPERED}_{label}": Tempered(value) for label, value in temperatures.items()}
    inputs, targets, weights = curvature_subset(dataset.val, settings.samples)
    if weights is not None:
        losses = {name: OfRows(own, targets, weights if name == "training" else None) for name, own in losses.items()}
        targets = torch.arange(len(targets), device=targets.device)
    given = (model, inputs, targets, losses)
    columns: Row = {}
    tables: dict[str, list[Row]] = {"blocks": []} if settings.blocks else {}
    try:
        with as_unavailable("grouping the network's parameters by layer"):
            blocks = block_names(layer_numbers(model)) if settings.blocks else None
        measured = known or measure_by_block(*given, settings=settings, seed=seed, blocks=blocks)
        for label, (values, rows) in measured.items():
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
