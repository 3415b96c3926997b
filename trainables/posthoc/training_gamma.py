"""The γ that the focal map takes from the training loss, whose bias Ψ^γ undoes (posterior Thm. 11)."""

from __future__ import annotations

from collections.abc import Mapping

from trainables.registry import HyperparameterValue, number_in


def training_gamma(loss: Mapping[str, object]) -> float | None:
    """Return the γ of a training loss whose risk minimiser Ψ^γ turns back into the posterior; None for other losses.

    Cross-entropy is the focal loss at γ = 0, where Ψ is the identity, and label smoothing is the smoothed focal loss
    there (posterior §6.1, LS). The focal loss and `focal_lambert` have one constant γ. Losses whose γ changes by sample
    or epoch have no single map.

    Args:
        loss: `name` and hyperparameters, `gamma` or (for `focal_lambert`) `p0` among them.

    Raises:
        ValueError: `gamma` or `p0` is not a number.
    """
    name = loss.get("name")
    if name in ("cross_entropy", "label_smoothing"):
        return 0.0
    if name not in ("focal", "focal_lambert"):
        return None
    gamma, p0 = number_in(loss, "gamma"), number_in(loss, "p0")
    if gamma is None and name == "focal_lambert" and p0 is not None:
        # torch is loaded for this alone, which a process that only reads predictions does not need
        from trainables.losses.focal_lambert import lambert_gamma

        gamma = lambert_gamma(p0).item()
    return None if gamma is None else float(gamma)


def with_training_gamma(
    method: str, options: Mapping[str, HyperparameterValue], loss: Mapping[str, object]
) -> dict[str, HyperparameterValue]:
    """Return `options` of post-hoc method `method`, completed where it lacks a γ with that of the training `loss`.

    The focal map needs one, and so does temperature scaling by the focal loss: TS_FL uses each network's own (posterior
    §6.1).
    """
    needed = method == "focal_map" or (method == "temperature" and options.get("objective") == "focal")
    if not needed or options.get("gamma") is not None:
        return dict(options)
    return {**options, "gamma": training_gamma(loss)}
