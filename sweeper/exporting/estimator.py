"""Post-hoc calibration of a model you have, as an estimator of scikit-learn: `sweeper.Calibrator`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sweeper.core.errors import SweeperError, writing_to
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, are_probabilities, columns_of
from trainables.metrics.two_classes import as_two_classes
from trainables.posthoc import fit as fit_method
from trainables.posthoc.saved import UnreadableCalibratorError, UnsavedCalibratorError, load_calibrator, save_calibrator
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from torch import nn

#: What the columns of `X` can be; `auto` decides when the calibrator is fitted.
INPUTS = ("auto", "logits", "probabilities")


class Calibrator(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Calibrates the outputs of any classifier by a post-hoc method fitted on held-out samples.

    `X` has what the classifier computes, one column a class in the order of the sorted labels: logits, or
    probabilities. With two classes, one number a sample will do: that of the second class, [N] or [N, 1].

    Attributes:
        method: name of a post-hoc method (`sweeper spaces --posthoc`).
        inputs: `logits`, `probabilities`, or `auto`: probabilities if no value is negative and each row sums to 1, or,
            with one column, if all values lie in [0, 1].
        options: options of the method, each an attribute, too.
        classes_: labels of the K columns of `predict_proba`.
        inputs_: what `X` was when the calibrator was fitted.
        fitted_: the fitted method; `fitted_.parameters` has its values, such as the temperature.

    Example:
        >>> logits = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
        >>> calibrator = Calibrator("temperature").fit(logits, ["cat", "cat", "dog", "dog", "dog"])
        >>> calibrator.predict_proba([[2.0, 0.0]]).round(3), calibrator.predict([[2.0, 0.0]]).tolist()
        (array([[0.901, 0.099]]), ['cat'])
        >>> round(calibrator.fitted_.parameters["temperature"], 3)
        0.906
    """

    def __init__(self, method: str = "temperature", *, inputs: str = "auto", **options: Any) -> None:
        """Choose the method; `fit` checks it and its options."""
        self.method, self.inputs = method, inputs
        self.__dict__.update(options)  # scikit-learn reads each parameter from an attribute of its name

    @property
    def options(self) -> dict[str, Any]:
        """Options of the method."""
        others = ("method", "inputs")
        # scikit-learn keeps its own attributes under names that begin with `_`, and fitted ones end with it.
        return {key: value for key, value in vars(self).items() if key not in others and key.strip("_") == key}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return `method`, `inputs` and the method's options."""
        return {"method": self.method, "inputs": self.inputs, **self.options}

    def set_params(self, **params: Any) -> Calibrator:
        """Change `method`, `inputs` or options; `fit` checks them."""
        self.__dict__.update(params)
        return self

    def fit(self, X: ArrayLike, y: ArrayLike) -> Calibrator:
        """Fit the method on held-out outputs and labels, never on those the classifier was trained with.

        Args:
            X: outputs [N, K], or [N] or [N, 1] for the second of two classes.
            y: labels [N] of any type; K of them, or integers in [0, K) of which some may not occur.

        Raises:
            ValueError: an unknown method or option, or data on which the method cannot be fitted; the message has every
                fault that was found.
        """
        if self.inputs not in INPUTS:
            raise ValueError(
                f"inputs = {self.inputs!r} is none of {', '.join(INPUTS)}{nearest(str(self.inputs), INPUTS)}"
            )
        scores, labels = validate_data(self, _columns(X), y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.inputs_ = self._kind(scores)
        logits = self._logits(scores)
        self.classes_, targets = columns_of(labels, logits.shape[1])
        self.fitted_ = fit_method(self.method, logits, targets, **self.options)
        return self

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return calibrated probabilities, float64 [N, K], for outputs of the same kind and columns as in `fit`.

        Raises:
            ValueError: other columns than in `fit`, or values that are not finite.
        """
        check_is_fitted(self)
        scores = validate_data(self, _columns(X) if self.n_features_in_ == 1 else X, dtype=np.float64, reset=False)
        if self.inputs_ == "probabilities" and (fault := _simplex_fault(scores)):
            raise ValueError(f"the calibrator was fitted on probabilities, but {fault}")
        return self.fitted_(self._logits(scores))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the label [N] of the largest calibrated probability; the first of ties."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def _kind(self, scores: Floats) -> str:
        """Return what the columns are, and check that they are what `inputs` says."""
        fault = _simplex_fault(scores)
        if self.inputs == "probabilities" and fault:
            raise ValueError(f"inputs = 'probabilities', but {fault}")
        return str(self.inputs) if self.inputs != "auto" else "logits" if fault else "probabilities"

    def _logits(self, scores: Floats) -> Floats:
        """Return logits [N, K] for outputs [N, K] or [N, 1]."""
        probabilities = self.inputs_ == "probabilities"
        columns = as_two_classes(scores, probabilities=probabilities) if scores.shape[1] == 1 else scores
        return np.log(np.maximum(columns, SMALLEST_PROBABILITY)) if probabilities else columns

    @property
    def module(self) -> nn.Module:
        """The fitted method as a torch module, from what `fit` was given [N, K] to probabilities [N, K].

        It computes in float64 and returns the type of its input.

        Raises:
            SweeperError: torch cannot compute the method.
        """
        from sweeper.exporting.program import layer_of

        check_is_fitted(self)
        return _module(layer_of(self.fitted_), self.inputs_ == "probabilities", self.n_features_in_ == 1)

    def to_onnx(self, path: str | Path) -> None:
        """Write the fitted method as an ONNX file from `inputs`, float32 [N, K], to `probabilities`, float32 [N, K].

        Raises:
            SweeperError: torch or ONNX cannot express the method, packages are missing, or the file cannot be written.
        """
        import torch

        from sweeper.exporting.program import exported_program, require_onnx, write_onnx

        require_onnx()
        module, columns = self.module, self.n_features_in_
        given = torch.rand(64, columns, generator=torch.Generator().manual_seed(0))
        if self.inputs_ == "logits":
            given = 8 * given - 4
        elif columns > 1:
            given = given / given.sum(dim=1, keepdim=True)
        with writing_to(Path(path), "give another path"):
            write_onnx(exported_program(module, given), Path(path), [given], module(given).numpy())

    def save(self, path: str | Path) -> Path:
        """Write the fitted calibrator to one file without pickle, by convention `.npz`; `Calibrator.load` reads it.

        Raises:
            SweeperError: the method is a user's own, or the file cannot be written.
        """
        check_is_fitted(self)
        names = [*getattr(self, "feature_names_in_", [])]
        extra = {
            "params": self.get_params(), "classes": self.classes_, "inputs": self.inputs_,
            "n_features_in": self.n_features_in_, "feature_names_in": names,
        }  # fmt: skip
        try:
            with writing_to(Path(path), "give another path"):
                save_calibrator(self.fitted_, Path(path), extra)
        except UnsavedCalibratorError as error:
            raise SweeperError(f"{self.method} cannot be saved: {error}", "fit it again where you need it") from error
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Calibrator:
        """Read what `save` wrote; no code of the file runs.

        Raises:
            SweeperError: the file has no calibrator, is damaged, or is of another release.
        """
        try:
            fitted, extra = load_calibrator(Path(path))
            calibrator = cls(**extra["params"])
            calibrator.fitted_, calibrator.inputs_, calibrator.classes_ = fitted, extra["inputs"], extra["classes"]
            calibrator.n_features_in_ = extra["n_features_in"]
            if extra["feature_names_in"]:
                calibrator.feature_names_in_ = np.array(extra["feature_names_in"], dtype=object)
        except (OSError, UnreadableCalibratorError, LookupError, TypeError) as error:
            raise SweeperError(f"{path} cannot be read: {error}", "give a file that Calibrator.save wrote") from error
        return calibrator


def _columns(X: ArrayLike) -> ArrayLike:
    """Return one number a sample as one column; everything else unchanged, so that names of columns are kept."""
    return np.asarray(X)[:, None] if np.asarray(X).ndim == 1 else X


def _simplex_fault(scores: Floats) -> str | None:
    """Return why outputs [N, K] or [N, 1] are not probabilities; `None` if they are."""
    if scores.shape[1] == 1:
        return None if scores.min() >= 0 and scores.max() <= 1 else "values of the only column lie outside [0, 1]"
    return None if are_probabilities(scores) else "a value is negative, or a row does not sum to 1"


def _module(layer: nn.Module, probabilities: bool, single: bool) -> nn.Module:
    """Return a module that does to outputs what `Calibrator` does; `single` if two classes have one column."""
    import torch  # the import takes two seconds, and fitting does not need it

    class Calibrated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, outputs: torch.Tensor) -> torch.Tensor:
            """Return probabilities [N, K] in the type of `outputs`."""
            columns = outputs.double()
            if single:
                first = 1 - columns if probabilities else torch.zeros_like(columns)
                columns = torch.cat([first, columns], dim=1)
            if probabilities:
                columns = columns.clamp(min=SMALLEST_PROBABILITY).log()
            result: torch.Tensor = self.layer(columns)
            return result.to(outputs.dtype)

    return Calibrated()
