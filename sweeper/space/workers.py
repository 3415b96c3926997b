"""What does not go together with several workers a trial; the rest of a space's rules know nothing of them."""

from __future__ import annotations

from sweeper.core.errors import Fault
from sweeper.space.spec import SweepSpec

NOT_WITH_WORKERS = {
    "graphs": "cannot record steps that communicate with other processes",
    "compile": "cannot translate steps that communicate with other processes",
    "deterministic": "promises the same bits in every run, which sums over workers on GPUs cannot",
}
"""Settings of `training`, and why workers and they exclude each other."""


def worker_faults(spec: SweepSpec) -> list[Fault]:
    """Return the rules that a space's workers break; its networks and batch sizes are looked at with the data."""
    workers = spec.resources.workers
    cards = spec.resources.cards_fault
    found = [] if cards is None else [cards]
    if workers == 1:
        return found
    packing = spec.replicates.packing
    if packing not in ("sequential", "trials"):
        rule = f"packing = {packing} trains lanes in one process, and workers = {workers} ask for several"
        found.append(Fault("replicates.packing", rule, "choose sequential or trials, or workers: 1"))
    for name, why in NOT_WITH_WORKERS.items():
        if getattr(spec.training, name):
            rule = f"{name} = true {why}, but resources.workers = {workers}"
            found.append(Fault(f"training.{name}", rule, f"set {name}: false, or workers: 1"))
    return found
