"""Which trials' numbers another run may not repeat to the bit: those that were reused or continued on a GPU.

Kernels of a GPU add in an order that varies, unless training is deterministic; a CPU's never do.
"""

from __future__ import annotations

from collections.abc import Collection

from sweeper.journal.state import SweepState
from sweeper.text.labels import plural


def begun_trials(state: SweepState) -> frozenset[int]:
    """Return the configurations whose trials have reported and not ended: a driver that starts now continues them."""
    return frozenset(index for index in state.unfinished(failed_too=True) if state.trials[index].epochs)


def repeatability_notes(state: SweepState, begun: Collection[int], *, deterministic: bool) -> list[str]:
    """Return a sentence on the trials whose numbers may differ in rounding from an undisturbed run's; none on CPUs.

    Args:
        state: at the end of a driver.
        begun: what that driver found begun, by `begun_trials`.
        deterministic: whether the sweep's training is.
    """
    if deterministic:
        return []
    on_cards = {index: trial for index, trial in state.trials.items() if trial.device == "cuda"}
    reused = [trial for trial in on_cards.values() if trial.reused_from is not None]
    further = [trial for trial in reused if trial.epochs > (trial.reused_epochs or 0)]
    continued = [index for index in begun if index in on_cards]
    parts = []
    if reused:
        again = f" ({len(further)} trained again for more epochs, beside the reported ones)" if further else ""
        parts.append(f"{plural(len(reused), 'trial')} reused{again}")
    if continued:
        parts.append(f"{plural(len(continued), 'trial')} continued")
    if not parts:
        return []
    return [
        f"{' and '.join(parts)} on a GPU without training: {{deterministic: true}}: measurements equal those of an "
        "uninterrupted run up to rounding, not to the bit"
    ]
