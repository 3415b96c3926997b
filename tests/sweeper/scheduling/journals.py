"""Sweeps played through a scheduler's decisions, trials in a random order of arrival, and the journals of these."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from sweeper.journal.records import Decision, Record
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import Scheduler, decide, settled_but_for
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.strata import stratified
from tests.sweeper.records import made_record
from trainables.registry.configuration import Configuration

HALVING = Halving("val_nll", "min", 27, 3, 3)
PROMOTION = Promotion("val_nll", "min", 9, 1, 3)
MEDIAN = MedianStopping("val_nll", "min", 12, 2, 3, 2)

NETWORKS, LOSSES = ("mlp", "resnet8"), ("cross_entropy", "focal")
CONFIGURATIONS = [
    Configuration(
        {"architecture": {"name": NETWORKS[i % 2]}, "loss": {"name": LOSSES[i // 2 % 2], "score": ("msp", None)[i % 2]}}
    )
    for i in range(200)
]
WITHIN = ["architecture", "loss"]
STRATA = stratified(HALVING, WITHIN, CONFIGURATIONS)
PROMOTED_STRATA = stratified(replace(PROMOTION, keep_at_least=1), ["loss"], CONFIGURATIONS)

#: Configuration, epoch, value, and what was decided.
Made = tuple[int, int, float, Decision]


def played(scheduler: Scheduler, seed: int, trials: int = 24) -> list[Made]:
    """Return the decision on every arrival; of odd seeds many values tie."""
    rng, shape = np.random.default_rng(seed), (trials, len(scheduler.rungs))
    values = rng.integers(0, 12, shape) / 7 if seed % 2 else rng.standard_normal(shape)
    state, at, going, made = scheduler.begin(), [0] * trials, [*range(trials)], list[Made]()
    while going:
        trial = int(rng.choice(going))
        epoch, value = scheduler.rungs[at[trial]], float(values[trial, at[trial]])
        decision = decide(state, trial, epoch, value)
        state.pool(trial).add(epoch, trial, value)
        made.append((trial, epoch, value, decision))
        at[trial] += 1
        if decision.kind != "continue":
            going.remove(trial)
    return made


def recorded(made: Iterable[Made], suggested: Iterable[Mapping[str, object]] = ()) -> list[Record]:
    """Return a journal of suggestions and of these decisions."""
    records = [made_record(i, "suggested", 0.0, {"configuration": i, "values": v}) for i, v in enumerate(suggested)]
    for configuration, epoch, value, decision in made:
        body = {"configuration": configuration, "epoch": epoch, "objective": value, "decision": decision.to_json()}
        records.append(made_record(len(records), "report", 0.0, body))
    return records


def with_pauses(scheduler: Scheduler, seed: int, trials: int = 40, workers: int = 3) -> list[Record]:
    """Return the records of a sweep whose trials pause, with `workers` at once, ends of pauses included."""
    values = np.random.default_rng(seed).random((trials, 3))
    state, rng, records = scheduler.begin(), np.random.default_rng(0), list[Record]()
    running, fresh, at = list[int](), [*range(trials)], dict[int, int]()

    def note(kind: str, body: Mapping[str, object]) -> None:
        records.append(made_record(len(records), kind, 0.0, body))
        state.apply(records[-1])

    def judged(trial: int, decision: Decision) -> None:
        status = "waiting" if decision.kind == "continue" else "early_stopped"
        note("judged", {"configuration": trial, "attempt": 1, "epoch": decision.rung, "status": status,
                        "decision": decision.to_json()})  # fmt: skip

    while True:
        while len(running) < workers:
            under_way = [(each, scheduler.rungs[at[each]] if each in at else 0) for each in [*running, *fresh]]
            promoted = state.promotion(settled_but_for(state, lambda way=under_way: way))
            if not promoted and not fresh:
                break
            running.append(promoted[0] if promoted else fresh.pop(0))
            if promoted:
                judged(*promoted)
        if not running:
            break
        trial = running[int(rng.integers(len(running)))]
        place = at[trial] = at.get(trial, -1) + 1
        epoch, value = scheduler.rungs[place], float(values[trial, place])
        decision = decide(state, trial, epoch, value)
        body = {"configuration": trial, "epoch": epoch, "objective": value, "decision": decision.to_json()}
        note("report", body)
        if decision.kind != "continue":
            running.remove(trial)
    for trial, place in at.items():
        if place < len(scheduler.rungs) - 1:
            judged(trial, state.never_promoted(scheduler.rungs[place], trial))
    return records


#: A scheduler of every kind, and its journal from a seed.
JOURNALS = {
    "halving": (HALVING, lambda seed: recorded(played(HALVING, seed))),
    "max": (replace(HALVING, mode="max"), lambda seed: recorded(played(replace(HALVING, mode="max"), seed))),
    "median": (MEDIAN, lambda seed: recorded(played(MEDIAN, seed))),
    "strata": (STRATA, lambda seed: recorded(played(STRATA, seed))),
    "searched strata": (
        replace(STRATA, configurations=None),
        lambda seed: recorded(played(STRATA, seed), CONFIGURATIONS[:24]),
    ),
    "promotion": (PROMOTION, lambda seed: with_pauses(PROMOTION, seed)),
    "promoted strata": (PROMOTED_STRATA, lambda seed: with_pauses(PROMOTED_STRATA, seed)),
}
