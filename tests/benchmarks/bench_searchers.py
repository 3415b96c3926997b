"""Random search, successive halving and TPE at equal budgets: the best objective found against the epochs spent.

The space of `search_spaces/searched_losses.yaml` on digits, one replicate, val_nll after 27 epochs. Four ways to spend
the same number of training epochs: random configurations trained to the end, random ones with ASHA, those that Optuna's
TPE suggests trained to the end, and TPE with ASHA. Each is run with several seeds of the sweep, which draw the random
configurations, seed TPE and the trainings. Real trainings through driver, journal and scheduler, one trial at a time
and without Ray, so that a run is a function of its seed; runs share the cores.

Printed are the best objective among finished trials when a quarter, half and all of the budget is spent, as mean ±
standard deviation over seeds; the test NLL of the one that is best at the end; each way's difference from
`random, ASHA` at the end, with its 95 % interval and the p of a permutation test, corrected by Holm's method; and what
a suggestion costs beside that.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from sweeper.core.ids import SweepPaths
from sweeper.core.statistics.differences import holm, p_text, unpaired_difference
from sweeper.execution.driver.context import DriverSettings
from sweeper.execution.driver.driver import Driver
from sweeper.journal.journal import Journal
from sweeper.journal.records import Body, Record
from sweeper.journal.state import COMPLETED, SweepState
from sweeper.search.base import Searcher, suggested_body
from sweeper.space.configurations import configurations_of
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import hardware
from sweeper.storage.mirror import SharedFolder
from tests.sweeper.records import fields, made_body

SPACE = "searched_losses"
WAYS = {
    "random": ("searcher=random", "scheduler.name=none"),
    "random, ASHA": ("searcher=random",),
    "TPE": ("scheduler.name=none",),
    "TPE, ASHA": (),
}
REFERENCE = "random, ASHA"
SHARES = (0.25, 0.5, 1.0)
LEAN = ("replicates=1", "samples=5000", "evaluation.posthoc=[]", "evaluation.bootstrap=0")


@dataclass(frozen=True)
class Run:
    """One way with one seed.

    Attributes:
        way: its name.
        best: the best objective among finished trials at each of SHARES of the budget.
        test_nll: of the one that is best at the end.
        trials, finished: trials begun, and trained to the end.
        seconds: wall time, trainings included.
    """

    way: str
    best: tuple[float, ...]
    test_nll: float
    trials: int
    finished: int
    seconds: float


class Spending:
    """A sink that follows the budget: epochs spent, and the best of the finished trials by then."""

    def __init__(self, budget: int) -> None:
        self.budget, self.spent, self.best, self.test_nll = budget, 0, math.inf, math.nan
        self.at: list[float] = []

    def append(self, record: Record) -> None:
        """Take a report in."""
        if record.kind != "report":
            return
        body = fields(record)
        self.spent += len(body["epochs"])
        # What is found with the last epochs of a share of the budget counts for the next share.
        while len(self.at) < len(SHARES) and self.spent > SHARES[len(self.at)] * self.budget:
            self.at.append(self.best)
        if body["status"] == COMPLETED and body["objective"] < self.best:
            self.best = body["objective"]
            self.test_nll = next(row["nll"] for row in body["evaluations"] if row["split"] == "test")

    def flush_if_due(self) -> None:
        """Everything is in already."""


def searcher_of(spec: SweepSpec) -> Searcher | None:
    """Return what chooses the configurations."""
    if not spec.searcher.learns:
        return None
    from sweeper.space.loading import searcher_for

    return searcher_for(spec)


def run(way: str, seed: int, budget: int) -> Run:
    """Spend the budget in one way with one seed."""
    import torch

    from trainables.worker.trial import Trial
    from trainables.worker.trial_settings import TrialSettings

    torch.set_num_threads(1)
    spec = load_spec(SPACE, [*LEAN, *WAYS[way], f"seed={seed}"])
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=spec.scheduler.max_epochs,
        rungs=tuple(spec.schedule.rungs),
        objective=spec.objective.metric,
        evaluation=spec.evaluation.settings,
        packing="sequential",
    )
    dataset = settings.load_dataset()
    began, spending, state = time.perf_counter(), Spending(budget), SweepState(spec.samples)
    with tempfile.TemporaryDirectory() as folder:
        paths = SweepPaths(Path(folder) / "sweep")
        configurations = configurations_of(spec, paths.journal)
        driver = Driver(
            paths, configurations, DriverSettings.of(spec, configurations),
            journal=Journal(paths.journal, durable=False),
            keeper=SharedFolder(paths), state=state, rungs=spec.schedule.begin(), sinks=[spending],
            searcher=searcher_of(spec),
        )  # fmt: skip
        driver.begin()
        while len(spending.at) < len(SHARES):
            assignment = driver.next_assignment()
            assert assignment is not None, "the budget is larger than what there is to train"
            for described in driver.describe(assignment):
                if len(spending.at) == len(SHARES):
                    break
                trial = Trial(described, settings, dataset)
                while not driver.on_news([(assignment, [trial.advance()], False)]) and not trial.finished:
                    pass
    counts = state.count()
    ended = sum(number for status, number in counts.items() if status not in ("waiting", "running"))
    seconds = time.perf_counter() - began
    return Run(way, tuple(spending.at), spending.test_nll, ended, counts[COMPLETED], seconds)


def suggestion_seconds(observed: int, repeats: int = 5) -> float:
    """Return the median time of a suggestion to a searcher that has observed so many trials."""
    spec = load_spec(SPACE, [*LEAN, f"samples={observed + repeats}"])
    searcher = searcher_of(spec)
    assert searcher is not None
    sequence = 0

    def tell(body: Body) -> None:
        nonlocal sequence
        searcher.apply(Record(sequence, 0.0, body))
        sequence += 1

    times = []
    drawn = load_spec(SPACE, [*LEAN, "searcher=random", f"samples={observed + repeats}"])
    first = searcher.suggest(0)
    for index in range(observed + repeats):
        if index and index < observed:
            # Drawn rather than suggested, to get there quickly.
            suggestion = _drawn(drawn, index)
        else:
            began = time.perf_counter()
            suggestion = searcher.suggest(index) if index else first
            times.append(time.perf_counter() - began)
        tell(suggested_body(index, suggestion, searcher.maker))
        decision = {"rung": 27, "kind": "complete", "metric": math.sin(index) + 1}
        tell(made_body("report", {"configuration": index, "status": COMPLETED, "decision": decision}))
    # The first of the last ones also makes the study of what was only told until then.
    return statistics.median(times[2:])


def _drawn(spec: SweepSpec, index: int) -> Any:
    from sweeper.core.domains import Interval, Members, Uniforms, draw_configuration
    from sweeper.search.base import Suggestion

    draw, choices = random.Random(index), {}
    uniform = Uniforms(lambda path: draw.random())

    class Noted:
        def member(self, path: str, members: Members) -> int:
            return choices.setdefault(path, uniform.member(path, members))

        def number(self, path: str, interval: Interval) -> int | float:
            return choices.setdefault(path, uniform.number(path, interval))

    return Suggestion(draw_configuration(spec.space, 0, Noted()), choices)


def spread(values: list[float]) -> str:
    """Return e.g. `0.1123 ± 0.0041`."""
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=int, default=810, help="training epochs of one run: 30 trials to the end")
    options = parser.parse_args()
    began, cores = time.perf_counter(), len(os.sched_getaffinity(0))
    jobs = [(way, seed, options.budget) for seed in range(options.seeds) for way in WAYS]
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        runs = []
        for (_, seed, _), each in zip(jobs, pool.map(run, *zip(*jobs, strict=True)), strict=True):
            runs.append(each)
            print(f"{len(runs)} of {len(jobs)}: seed {seed}, {each}", file=sys.stderr, flush=True)
    by_way = {way: [each for each in runs if each.way == way] for way in WAYS}
    print(f"best val_nll of finished trials against epochs spent, mean ± sd over n = {options.seeds} seeds")
    heads = [f"{round(share * options.budget)} epochs" for share in SHARES]
    print(f"{'':14}{''.join(f'{head:>18}' for head in heads)}{'test NLL of it':>18}{'trials':>9}{'finished':>9}")
    for way, mine in by_way.items():
        cells = [spread([each.best[at] for each in mine]) for at in range(len(SHARES))]
        cells.append(spread([each.test_nll for each in mine]))
        counts = [statistics.mean(each.trials for each in mine), statistics.mean(each.finished for each in mine)]
        print(f"{way:14}{''.join(f'{cell:>18}' for cell in cells)}{counts[0]:9.1f}{counts[1]:9.1f}")
    others = [way for way in WAYS if way != REFERENCE]
    last = {way: [each.best[-1] for each in mine] for way, mine in by_way.items()}
    found = [unpaired_difference(last[REFERENCE], last[way]) for way in others]
    print(f"difference from {REFERENCE} after {options.budget} epochs (below 0 is better), Holm's p of {len(others)}")
    for way, difference, p in zip(others, found, holm([each.p for each in found]), strict=True):
        print(f"  {way:14}{difference.text()}, {p_text(p)}")
    for observed in (100, 1000, 5000):
        print(f"a suggestion after {observed:,} trials: {1000 * suggestion_seconds(observed):.0f} ms")
    worked = sum(each.seconds for each in runs)
    print(
        f"{time.perf_counter() - began:.0f} s ({worked:.0f} s of trainings); {cores} cores, {hardware()['processor']}"
    )


if __name__ == "__main__":
    main()
