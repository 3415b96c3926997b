"""The undisturbed sweep, in a plain loop without Ray, journal or sinks; and what must hold of a disturbed one."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sweeper.core.ids import SweepPaths, trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record, Reported
from sweeper.journal.state import ENDED
from sweeper.results import load
from sweeper.scheduling.base import audit, decide_on
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from tests.running import metrics_by_key, same
from tests.sweeper.records import fields
from trainables.training.lanes.packing import LANES, SEQUENTIAL
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings

Key = tuple[int, int, int, str]

SMALL = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}
samples: %(samples)d
replicates: 2
retries: 100
seed: 3
space:
  loss:
    one_of:
      - {name: cross_entropy}
      - {name: focal, gamma: {uniform: [0.5, 5]}}
      - {name: selective_risk, coverage: {uniform: [0.3, 0.9]}, nu: {loguniform: [0.01, 0.3]}}
  architecture: {choice: [{name: mlp, width: 32}, {name: mlp, width: 16}]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 64, schedule: cosine}
resources: {cpu: 1}
evaluation: {bins: 15, posthoc: [temperature], curvature: false, bootstrap: 0}
"""


@dataclass(frozen=True)
class Undisturbed:
    """What a sweep that nothing befalls measures and decides, however many trials run at once."""

    spec: SweepSpec
    metrics: dict[Key, dict[str, object]]
    decisions: dict[int, list[dict[str, Any]]]


@functools.cache
def undisturbed(space: Path) -> Undisturbed:
    """Train the trials of `space` one after the other, and decide in the order of the virtual machine."""
    spec = load_spec(space)
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=spec.scheduler.max_epochs,
        rungs=tuple(spec.schedule.rungs),
        objective=spec.objective.metric,
        evaluation=spec.evaluation.settings,
        packing=LANES if spec.replicates.packing == LANES else SEQUENTIAL,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(spec, settings)
    finally:
        torch.set_num_threads(threads)


def _train(spec: SweepSpec, settings: TrialSettings) -> Undisturbed:
    dataset, records = settings.load_dataset(), list[Record]()
    for index, values in enumerate(configurations(spec)):
        seeds = spec.replicate_seeds.of(index)
        trial = Trial(Assignment(index, trial_name(index), values, seeds), settings, dataset)
        while not trial.finished:  # beyond an early stop, too, because this loop decides nothing
            records.append(Record(len(records), 0.0, Reported(trial.advance(), 1, "running", None)))
    return Undisturbed(spec, metrics_by_key(records), _decided(spec, [r.body for r in records]))


def _decided(spec: SweepSpec, reports: Sequence[Any]) -> dict[int, list[dict[str, Any]]]:
    """Decide on every trial in the order of the virtual machine; no trial may pause."""
    state, stops = spec.schedule.begin(), spec.schedule.rungs
    at_rungs = {(body.configuration, body.epoch): body.report for body in reports if body.epoch in stops}
    left, now, held = [*range(spec.samples)], 0, dict[int, tuple[int, int]]()
    decisions: dict[int, list[dict[str, Any]]] = {index: [] for index in left}
    while left or held:
        while left and len(held) < (spec.scheduler.width or 0):
            held[left.pop(0)] = now + stops[0] * spec.replicates.count, stops[0]
        now, index = min((end, index) for index, (end, _) in held.items())
        _, rung = held.pop(index)
        decision = decide_on(state, at_rungs[index, rung])
        assert decision is not None
        decisions[index].append(decision.to_json())
        state.apply(Record(0, 0.0, Reported(at_rungs[index, rung], 1, "running", decision)))
        if decision.kind == "continue":
            following = stops[stops.index(rung) + 1]
            held[index] = now + (following - rung) * spec.replicates.count, following
    return decisions


def check_survived(paths: SweepPaths, expected: Undisturbed) -> None:
    """Assert that nothing was lost, doubled or changed in a finished sweep, and that its tables show its journal."""
    records = list(read_journal(paths.journal))
    reports = [record for record in records if record.kind == "report"]
    count = len(expected.decisions)
    judged = [record for record in records if record.kind == "judged"]
    ended = [fields(r)["configuration"] for r in [*reports, *judged] if fields(r)["status"] in ENDED]
    assert sorted(ended) == list(range(count)), "every configuration ends exactly once"
    checked, differences = audit(expected.spec.schedule, records)
    assert not differences and checked >= count, differences
    measured = metrics_by_key(reports)
    for key, row in measured.items():
        for name, value in row.items():
            assert same(value, expected.metrics[key][name]), (key, name, value, expected.metrics[key][name])
    decided = decisions_of(reports)
    if not judged:  # no trial of the undisturbed sweep pauses
        assert decided == expected.decisions
    for index, made in decided.items():
        last = made[-1]["rung"]
        wanted = {key for key in expected.metrics if key[0] == index and key[2] <= last}
        assert {key for key in measured if key[0] == index} == wanted, "every epoch up to the last, none beyond"
    _check_tables(paths, measured, sum(map(len, decided.values())) + len(judged))


def decisions_of(reports: Sequence[Record]) -> dict[int, list[dict[str, Any]]]:
    """Return every trial's decisions in order."""
    found: dict[int, list[dict[str, Any]]] = {}
    for record in reports:
        if fields(record)["decision"] is not None:
            found.setdefault(fields(record)["configuration"], []).append(fields(record)["decision"])
    return dict(sorted(found.items()))


def _check_tables(paths: SweepPaths, measured: dict[Key, dict[str, object]], decisions: int) -> None:
    results = load(paths.root)
    for table in ("epochs", "evaluations"):
        wanted = {key for key in measured if (key[3] == "epoch") == (table == "epochs")}
        rows = results.rows(f"SELECT * FROM {table}")
        found = {(int(r["trial"][1:]), r["replicate"], r["epoch"], r.get("split", "epoch")): r for r in rows}
        assert len(rows) == len(found) and found.keys() == wanted, table
        for key, row in found.items():
            for name, value in measured[key].items():
                shown = row[name]
                assert same(shown, value) or (shown is None and _is_nan(value)), (table, key, name)
    keys = "count(DISTINCT (trial, replicate, epoch, split))"
    evaluations = sum(key[3] != "epoch" for key in measured)
    for table in ("predictions", "reliability"):
        (row,) = results.rows(f"SELECT {keys} AS n FROM {table}")
        assert row["n"] == evaluations, table
    assert results.rows("SELECT count(*) AS n FROM decisions")[0]["n"] == decisions


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
