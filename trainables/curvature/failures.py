"""The one error of this package: curvature that could not be measured, with its reason."""

from __future__ import annotations

import torch


class CurvatureUnavailable(RuntimeError):  # noqa: N818 -- a state of a measurement, not a fault of the program
    """Curvature could not be measured; the message is one sentence that says why.

    Callers record the sentence beside the evaluation and continue: a missing curvature never fails a trial.
    """


def unavailable(stage: str, error: BaseException) -> CurvatureUnavailable:
    """Return `error`, raised while doing `stage`, as a `CurvatureUnavailable` of one sentence."""
    words = " ".join(str(error).split("\n\n")[0].split())
    if isinstance(error, torch.OutOfMemoryError):
        return CurvatureUnavailable(f"{stage} ran out of memory: lower evaluation.curvature.samples or batch_size")
    if "not implemented" in words or "double backward" in words:
        return CurvatureUnavailable(f"{stage} needs an operator without a second derivative: {words}")
    return CurvatureUnavailable(f"{stage} failed with {type(error).__name__}: {words}")
