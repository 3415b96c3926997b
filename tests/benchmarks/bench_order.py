"""What the canonical order costs against order of arrival: time of real slots, and regret on learning curves.

Time is simulated: half the networks take 20 times as long as the others, as mlp and resnet8 of the quickstart. Regret
is how much worse, on test data, the chosen trial is than the best that could be chosen, in per cent of the latter;
arrival is that of 2 and of 16 slots with the same durations. Trials are drawn, in random order, from 160 mlps that it
trains for 27 epochs first, and from measured curves:

* `--lcdb FILE`: `database-accuracy.csv` of PyPI's lcdb 0.1.0, errors of learners after 16, 64, 256 and 1,024 samples;
* `--taskset FOLDER`: text networks of TaskSet as Parquet files, 51 steps, 1,000 configurations a task.

A learning searcher's suggestion is answered by the nearest configuration, each hyperparameter by its rank.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from sweeper.core.domains.space import Space
from sweeper.core.domains.uniform import Uniform
from sweeper.execution.driver.judging import STATUS_OF_DECISION
from sweeper.journal.records import Attempt, Body, Judged, Record, Reported
from sweeper.journal.state import WAITING
from sweeper.results import load
from sweeper.scheduling.asha import Halving, Promotion
from sweeper.scheduling.base import Scheduler, decide_on
from sweeper.scheduling.order import VirtualOrder
from sweeper.scheduling.simulation import simulate_sweep
from sweeper.search.base import suggested_body
from sweeper.search.optuna import TpeSearch
from tests.running import in_process, write_space
from trainables.worker.trial_reports import TrialReport

BANK = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: none, max_epochs: 27}
samples: 160
seed: 11
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 10]}}]}
  architecture: {choice: [{name: mlp, width: 16}, {name: mlp, width: 64}]}
  optimizer: {name: sgd, lr: {loguniform: [0.003, 1]}, momentum: 0.9, batch_size: 128, schedule: cosine}
resources: {cpu: 1}
evaluation: {posthoc: [], curvature: false, bootstrap: 0}
"""
WIDTHS = (4, 8, 16, 32)
ARRIVALS = (2, 16)
SLOW = 20.0
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """Measured trials: validation losses at rungs [trials, rungs], test losses, hyperparameters as ranks in [0, 1]."""

    validation: Values
    test: Values
    places: Values


def schedulers(rungs: int, factor: int) -> dict[str, Scheduler]:
    """Return both variants of ASHA with this number of rungs."""
    epochs = factor ** (rungs - 1)
    return {
        "stopping": Halving("val_nll", "min", epochs, 1, factor),
        "promotion": Promotion("val_nll", "min", epochs, 1, factor),
    }


def paces(trials: int) -> Values:
    """Return seconds per epoch: every second network is slow."""
    return np.where(np.arange(trials) % 2, SLOW, 1.0)


def times(trials: int, repetitions: int) -> Iterator[str]:
    """Yield table rows: time against order of arrival, and idle share of real slots."""
    for name, scheduler in schedulers(3, 3).items():
        for slots in ARRIVALS:
            random, cells = np.random.default_rng(1), dict[int | None, list[tuple[float, float]]]()
            for _ in range(repetitions):
                values = random.normal(size=(trials, 1)) + random.normal(size=(trials, 3)) * [0.6, 0.3, 0.0]
                for width in (None, *WIDTHS):
                    swept = simulate_sweep(scheduler, range(trials), values, paces(trials), slots, width)
                    work = sum(scheduler.rungs[rung] * paces(trials)[trial] for trial, rung in swept.reached.items())
                    cells.setdefault(width, []).append((swept.seconds, 1 - work / (slots * swept.seconds)))
            arrival, idle = np.mean(cells.pop(None), axis=0)
            shown = (f"{np.mean(c, axis=0)[0] / arrival:.2f}, {np.mean(c, axis=0)[1]:.0%}" for c in cells.values())
            yield f"| {name}, {trials} trials | {slots} | {idle:.0%} | {' | '.join(shown)} |"


def without_searcher(
    scheduler: Scheduler, curves: Curves, order: Sequence[int], slots: int, width: int | None
) -> dict[int, int]:
    """Return trial → last rung that it reached, for trials that start in a given order."""
    swept = simulate_sweep(scheduler, range(len(order)), curves.validation[order], paces(len(order)), slots, width)
    return {order[trial]: rung for trial, rung in swept.reached.items()}


def searched(
    scheduler: Scheduler, curves: Curves, trials: int, seed: int, slots: int, width: int | None
) -> dict[int, int]:
    """Return curve → last rung that it reached, if Optuna's TPE chooses the configurations."""
    space = Space({f"x{column}": Uniform(0.0, 1.0) for column in range(curves.places.shape[1])})
    searcher, rungs = TpeSearch().begin(space, mode="min", seed=seed), scheduler.begin()
    order = VirtualOrder(rungs, slots, paces(trials).__getitem__, learns=True)
    if width is not None:
        order = VirtualOrder(rungs, width, learns=True)
    chosen, reached, told = dict[int, int](), dict[int, int](), 0

    def tell(body: Body) -> None:
        nonlocal told
        for fold in (rungs, order, searcher):
            fold.apply(Record(told, 0.0, body))
        told += 1

    tell(Attempt(1, "here", 1, configurations=trials))
    while True:
        while order.is_free:
            promoted = order.promotion()
            if promoted is not None:
                tell(Judged(promoted[0], 1, promoted[1].rung or 0, WAITING, promoted[1]))
            elif order.unsuggested:
                index = len(chosen)
                suggestion = searcher.suggest(index)
                wanted = np.array([suggestion.values[f"x{column}"] for column in range(curves.places.shape[1])])
                chosen[index] = int(np.square(curves.places - wanted).sum(1).argmin())
                tell(suggested_body(index, suggestion, searcher.maker))
            else:
                break
        if order.first is None:
            return reached
        index, epochs = order.first, order.running[order.first].epochs
        rung = scheduler.rungs.index(epochs) + 1 if epochs else 0
        value = float(curves.validation[chosen[index], rung])
        report = made_report(index, scheduler.rungs[rung], value)
        decision = decide_on(rungs, report)
        assert decision is not None
        tell(Reported(report, 1, STATUS_OF_DECISION[decision.kind], decision))
        reached[chosen[index]] = max(rung, reached.get(chosen[index], 0))


def made_report(index: int, epoch: int, value: float) -> TrialReport:
    """Return a report of nothing but the objective."""
    return TrialReport(
        configuration=index, epoch=epoch, objective=value, device="cpu", wall_seconds=0.0, epochs=[], evaluations=[]
    )


Play = Callable[[Scheduler, Curves, int, int, int | None], tuple[float, float]]


def outcome(
    curves: Curves, scheduler: Scheduler, reached: Mapping[int, int], among: Sequence[int]
) -> tuple[float, float]:
    """Return epochs, and how much worse on test data the best trial of the highest rung is than the best, in %."""
    top = max(reached.values())
    chosen = min((trial for trial, rung in reached.items() if rung == top), key=lambda t: curves.validation[t, top])
    epochs = sum(scheduler.rungs[rung] for rung in reached.values())
    return epochs, 100 * float(curves.test[chosen] / curves.test[list(among)].min() - 1)


def random_play(scheduler: Scheduler, curves: Curves, seed: int, slots: int, width: int | None) -> tuple[float, float]:
    """Play at most 64 trials in random order; return epochs and regret."""
    order = np.random.default_rng(seed).permutation(len(curves.test))[:64].tolist()
    return outcome(curves, scheduler, without_searcher(scheduler, curves, order, slots, width), order)


def tpe_play(scheduler: Scheduler, curves: Curves, seed: int, slots: int, width: int | None) -> tuple[float, float]:
    """Play 64 trials that Optuna's TPE chooses; return epochs and regret."""
    reached = searched(scheduler, curves, 64, seed, slots, width)
    return outcome(curves, scheduler, reached, range(len(curves.test)))


def regrets(name: str, tasks: Sequence[Curves], factor: int, play: Play, seeds: int) -> Iterator[str]:
    """Yield table rows: mean regret by arrival; by width the mean and the paired difference from arrival, 16 slots."""
    for variant, scheduler in schedulers(tasks[0].validation.shape[1], factor).items():
        means: dict[tuple[int, int | None], Values] = {}
        for slots, width in (*((slots, None) for slots in ARRIVALS), *((2, width) for width in WIDTHS)):
            played = np.array([[play(scheduler, c, seed, slots, width) for seed in range(seeds)] for c in tasks])
            # Seeds of one task are not independent tasks: with many tasks the mean of each counts once.
            means[slots, width] = played.mean(1) if len(tasks) > 20 else played.reshape(-1, 2)
        arrival = means[16, None]
        few = " | ".join(f"{means[slots, None][:, 1].mean():.2f}" for slots in ARRIVALS)
        shown = (_cell(means[2, width], arrival) for width in WIDTHS)
        yield f"| {name}, {variant} | {len(arrival)} | {few} | {' | '.join(shown)} |"


def _cell(values: Values, arrival: Values) -> str:
    """Return the mean regret, its paired difference with 95 %, and epochs as a multiple of those by arrival."""
    difference = values[:, 1] - arrival[:, 1]
    spread = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    epochs = values[:, 0].mean() / arrival[:, 0].mean()
    return f"{values[:, 1].mean():.2f} ({difference.mean():+.2f} ± {spread:.2f}), ×{epochs:.2f}"


def ranks(columns: Values) -> Values:
    """Return each column's ranks, from 0 to 1; equal values share theirs."""
    placed = [np.unique(column, return_inverse=True)[1] for column in columns.T]
    return np.stack([place / max(1, place.max()) for place in placed], axis=1)


def lcdb(file: Path) -> list[Curves]:
    """Read LCDB: tasks with ten learners or more."""
    rows = duckdb.sql(
        f"""SELECT openmlid, learner, size_train, 1 - avg(score_valid), 1 - avg(score_test) FROM read_csv('{file}')
        WHERE size_train IN (16, 64, 256, 1024) GROUP BY ALL ORDER BY ALL"""
    ).fetchall()
    tasks: dict[int, dict[str, list[tuple[float, float]]]] = {}
    for task, learner, _, validation, test in rows:
        tasks.setdefault(task, {}).setdefault(learner, []).append((validation, test))
    found = []
    for learners in tasks.values():
        whole = np.array([curve for curve in learners.values() if len(curve) == 4])
        if len(whole) >= 10:
            found.append(Curves(whole[:, :, 0], np.maximum(whole[:, -1, 1], 1e-3), np.zeros((len(whole), 1))))
    return found


def taskset(folder: Path) -> list[Curves]:
    """Read TaskSet: configurations whose curves are finite at every rung."""
    found = []
    for file in sorted(folder.glob("*.parquet")):
        table = duckdb.sql(f"SELECT * FROM read_parquet('{file}') ORDER BY configuration, step").fetchnumpy()
        steps = len(np.unique(table["step"]))
        shaped = {
            name: np.ma.filled(np.ma.asarray(column, float), np.nan).reshape(-1, steps)
            for name, column in table.items()
        }
        settings = np.stack([column[:, 0] for name, column in shaped.items() if name.startswith("config_")], axis=1)
        validation, test = shaped["valid_loss"][:, [5, 16, 50]], shaped["test_loss"][:, -1]
        sound = np.isfinite(validation).all(1) & np.isfinite(test)
        found.append(Curves(validation[sound], test[sound], ranks(settings[sound])))
    return found


def bank() -> list[Curves]:
    """Run a sweep in which every trial reaches epoch 27, and read it."""
    with tempfile.TemporaryDirectory() as folder:
        done = in_process("run", write_space(Path(folder), BANK, "bank"), "--no-mlflow", cwd=Path(folder))
        assert done.returncode == 0, done.stderr
        return _read_bank(Path(folder) / "results" / "bank")


def _read_bank(sweep: Path) -> list[Curves]:
    results = load(sweep)
    epochs = results.rows("SELECT trial, epoch, val_nll FROM epochs WHERE epoch IN (3, 9, 27) ORDER BY trial, epoch")
    tested = results.rows("SELECT trial, nll FROM evaluations WHERE split = 'test' AND epoch = 27 ORDER BY trial")
    drawn = results.rows(
        """SELECT trial, coalesce(config_loss_gamma, 0) AS gamma, config_optimizer_lr AS lr,
        config_architecture_width AS width FROM trials ORDER BY trial"""
    )
    validation = {
        trial["trial"]: [row["val_nll"] for row in epochs if row["trial"] == trial["trial"]] for trial in tested
    }
    kept = [t for t in tested if len(validation[t["trial"]]) == 3 and t["nll"] is not None]
    names = {trial["trial"] for trial in kept}
    settings = np.array([[row["gamma"], row["lr"], row["width"]] for row in drawn if row["trial"] in names], float)
    return [
        Curves(np.array([validation[t["trial"]] for t in kept]), np.array([t["nll"] for t in kept]), ranks(settings))
    ]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("--lcdb", "--taskset"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    widths = " | ".join(f"width {width}" for width in WIDTHS)
    print(f"| | slots | idle by arrival | {widths} |\n|---|---|---|---|---|---|---|", flush=True)
    for trials in (16, 48):
        print(*times(trials, 40), sep="\n", flush=True)
    print(f"\n| | n | arrival, 2 slots | arrival, 16 slots | {widths} |\n|---|---|---|---|---|---|---|---|", flush=True)
    if options.lcdb is not None:
        print(*regrets("LCDB", lcdb(options.lcdb), 4, random_play, options.seeds), sep="\n", flush=True)
    for name, tasks in (("TaskSet", [] if options.taskset is None else taskset(options.taskset)), ("digits", bank())):
        for searcher, play, seeds in (("random", random_play, 5), ("optuna", tpe_play, 1)):
            repeated = max(
                1, options.seeds * seeds // max(1, len(tasks)) if name == "digits" else options.seeds * seeds // 5
            )
            if tasks:
                print(*regrets(f"{name}, {searcher}", tasks, 3, play, repeated), sep="\n", flush=True)


if __name__ == "__main__":
    main()
