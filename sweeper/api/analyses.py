"""What is asked of finished sweeps, as functions: comparisons, and what logits still tell.

Like `sweeper.api.commands`: same names, options, defaults and messages as on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from sweeper.api import arguments
from sweeper.api.arguments import AtLeastOne, CommandOption, listed, local_sweep, opened, output_folder, overrides
from sweeper.text.display import Shown

if TYPE_CHECKING:
    from sweeper.analysis.certificates import Certificate
    from sweeper.analysis.comparison import Comparison
    from sweeper.analysis.decisions import Decided
    from sweeper.analysis.predictive import Conformal, EnsembleRow
    from sweeper.analysis.recalibrating import Progress, Recalibrated
    from sweeper.analysis.replays import Kept
    from sweeper.analysis.subgroups import Subgroups

To = CommandOption(("--to",))
Method = CommandOption(("--method", "-m"), complete="complete_method")


def compare(
    first: arguments.Name,
    second: Annotated[str, CommandOption(complete="complete_sweep")],
    *,
    output: arguments.Output = None,
) -> Shown[Comparison]:
    """Compare two sweeps: settings, versions and hardware, and results over paired configurations.

    Args:
        second: Name or path of the sweep to compare with.

    Returns:
        What differs, and a comparison of each metric with its interval and p.
    """
    from sweeper.analysis.comparison import compare as compare_sweeps, view

    sweeps = opened(first, output), opened(second, output)
    found = compare_sweeps(*sweeps)
    return Shown(found, view(found))


def certify(
    name: arguments.Name, first: str, second: str, *, network: str | None = None, output: arguments.Output = None
) -> Shown[list[Certificate]]:
    """Say whether one loss is better than another by every estimator.

    Before and after each post-hoc method.

    Args:
        first: A loss, for which its best finished configuration on each network stands, or a trial.
        second: What it is compared with.
        network: Only this network. (default: every one that both were trained on)

    Returns:
        A certificate for each network, and their table.

    Raises:
        SweeperError: a side has no finished configuration, or there are no predictions.
    """
    from sweeper.analysis.certificates import certify as certified, view

    results = opened(name, output)
    found = certified(results, first, second, network)
    return Shown(found, view(found))


def what_if(
    name: arguments.Name,
    *,
    scheduler: arguments.Several = (),
    within: arguments.Several = (),
    objective: arguments.Several = (),
    orders: Annotated[int, CommandOption(least=2)] = 200,
    trials: Annotated[int | None, AtLeastOne] = None,
    workers: Annotated[int, AtLeastOne] = 2,
    by: str | None = None,
    judge: str | None = None,
    seed: Annotated[int, CommandOption(least=0)] = 0,
    output: arguments.Output = None,
) -> Shown[list[Kept]]:
    """Replay a fully trained sweep through other schedulers: what they would keep, and what that costs.

    Args:
        scheduler: Scheduler as YAML, '{name: asha, reduction_factor: 2}'; repeatable. (default: asha)
        within: Strata, 'architecture,loss', or none for one pool; repeatable. (default: none)
        objective: Metric to compare by, or metric:max; repeatable. (default: the sweep's)
        orders: Random orders to replay.
        trials: Trials drawn for each order. (default: all)
        workers: Trials that run concurrently.
        by: Strata to count survivors in. (default: architecture,loss where they vary)
        judge: Metric that determines the winner. (default: test NLL after temperature scaling)
        seed: Seed of the orders.

    Returns:
        What each scheduler would have kept, and its cost.

    Raises:
        SweeperError: the sweep cannot be replayed so; the message says every fault and its remedy.
    """
    from sweeper.analysis.replays import as_json, what_if as replayed

    asked = map(listed, (scheduler, within, objective))
    sweep = opened(name, output)
    kept, look = replayed(sweep, *asked, orders=orders, trials=trials, workers=workers, by=by, judge=judge, seed=seed)
    return Shown(kept, look, json=[as_json(each) for each in kept])


def recalibrate(
    name: arguments.Name,
    *,
    method: Annotated[arguments.Several, Method] = (),
    options: Annotated[Mapping[str, object] | Sequence[str], CommandOption(("--option",), kind=list[str])] = (),
    bins: int | Sequence[int] = (),
    metric: arguments.Several = (),
    trust: arguments.Trust = False,
    output: arguments.Output = None,
    progress: Callable[[str], AbstractContextManager[Progress | None]] = lambda sweep: nullcontext(None),
) -> Shown[Recalibrated]:
    """Fit post-hoc methods or recompute metrics on stored predictions. Nothing is retrained.

    Results are rows of the table `recalibrations`, next to the uncalibrated probabilities (method `none`). What
    `--metric` asks for is in its column `metrics` as JSON: `metrics->>'smooth_ece'`.

    Args:
        method: Post-hoc method to fit (see `sweeper spaces --posthoc`); repeatable. (default: none)
        options: Option of a method: key=value, or method.key=value if several have it; repeatable.
        bins: Number of bins for calibration errors; repeatable. (default: the sweep's)
        metric: Additional metric (see `sweeper spaces --metrics`); repeatable. (default: none)
        progress: gives for a sweep's name what is told how far it is.

    Returns:
        What was fitted, and where its rows are.

    Raises:
        SweeperError: with every fault of methods, options and bins, or why it cannot be computed.
    """
    from sweeper.analysis.recalibrating import recalibrate_sweep
    from sweeper.storage.places import publish

    place, counts = output_folder(output), [bins] if isinstance(bins, int) else list(bins)
    done = recalibrate_sweep(
        *local_sweep(name, place), listed(method), overrides(options), counts, listed(metric), progress, trust=trust
    )
    publish(name, place)
    return Shown(done, Text("\n".join(done.lines())), notes=opened(name, output).marks)


def ensemble(
    name: arguments.Name,
    *,
    size: Annotated[int, CommandOption(least=1, most=1000)] = 10,
    candidates: Annotated[int, AtLeastOne] = 50,
    picture: Annotated[str | Path | None, To] = None,
    output: arguments.Output = None,
) -> Shown[list[EnsembleRow]]:
    """Average the predictions of finished networks: replicates, and greedy ensembles. Nothing is retrained.

    Args:
        size: Members of the largest greedy ensemble.
        candidates: Best configurations to choose members from.
        picture: Also write a figure, test NLL against members, to this HTML file. (default: none)

    Returns:
        A row for each ensemble, with its metrics.

    Raises:
        SweeperError: no finished trial has predictions, or they are of different samples.
    """
    from sweeper.analysis.predictive import ensembles, ensembles_view, write_picture

    rows = ensembles(opened(name, output), size=size, candidates=candidates)
    if picture is not None:
        write_picture(rows, Path(picture))
    return Shown(rows, ensembles_view(rows))


def conformal(
    name: arguments.Name,
    *,
    alpha: float = 0.1,
    method: Annotated[str | None, CommandOption(("--method", "-m"))] = None,
    crosswise: bool = False,
    output: arguments.Output = None,
) -> Shown[Conformal]:
    """Measure conformal prediction sets: coverage and size of the best configuration's THR, APS and RAPS.

    Args:
        alpha: Miscoverage rate, between 0 and 1.
        method: Post-hoc method to apply first (see `sweeper spaces --posthoc`). (default: none)
        crosswise: Fit the method to all folds but one in turn (CV+), not on one half of validation data: smaller sets,
            a weaker guarantee.

    Returns:
        Coverage and size of the sets, by method.
    """
    from sweeper.analysis.predictive import conformal_sets, conformal_view

    found = conformal_sets(opened(name, output), alpha=alpha, method=method, crosswise=crosswise)
    return Shown(found, conformal_view(found))


def subgroups(
    name: arguments.Name,
    column: str,
    *,
    file: str | Path | None = None,
    method: Annotated[str | None, CommandOption(("--method", "-m"))] = None,
    output: arguments.Output = None,
) -> Shown[Subgroups]:
    """Measure calibration in groups of test samples: of the best configuration, by a column.

    Args:
        column: Column of the sweep's own table, or of the file.
        file: Table with a row for each test sample, in their order. (default: the data set's own)
        method: Post-hoc method to apply first (see `sweeper spaces --posthoc`). (default: none)

    Returns:
        Each group's gap between confidence and accuracy, with intervals that hold together.

    Raises:
        SweeperError: no finished trial has predictions, or there is no such column.
    """
    from sweeper.analysis.subgroups import subgroup_calibration, subgroups_view

    found = subgroup_calibration(opened(name, output), column, file=None if file is None else str(file), method=method)
    return Shown(found, subgroups_view(found))


def decide(
    name: arguments.Name,
    *,
    error: float = 1.0,
    abstention: float = 0.2,
    size: float | None = None,
    method: Annotated[arguments.Several, Method] = ("none", "temperature"),
    output: arguments.Output = None,
) -> Shown[Decided]:
    """Choose configuration, method and threshold by what errors cost.

    Args:
        error: Cost of a wrong answer.
        abstention: Cost of no answer, below that of an error.
        size: Cost of each class of an answer beyond the first. (default: one class only)
        method: Post-hoc methods to choose from, or `none`.

    Returns:
        The choices on validation data, and their costs on all other splits beside those of choices by NLL and by ECE.

    Raises:
        SweeperError: costs out of order, or no finished trial has predictions.
    """
    from sweeper.analysis.decisions import Costs, decide_by_costs, decided_view

    found = decide_by_costs(opened(name, output), listed(method) or ["none"], Costs(error, abstention, size))
    return Shown(found, decided_view(found))
