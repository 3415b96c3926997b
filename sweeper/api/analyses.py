"""Commands that analyse finished sweeps: comparisons, and post-hoc analyses of stored predictions.

As in `sweeper.api.commands`, names, options, defaults and messages equal the command line's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from cyclopts import Parameter
from rich.console import Group
from rich.text import Text

from sweeper.api import arguments
from sweeper.api.arguments import HANDED, RESULTS, AtLeastOne, complete_method, listed, opened, output_folder, overrides
from sweeper.core.display import CommandResult
from sweeper.core.errors import SweeperError
from sweeper.storage.places import local_copy, publish, split_name

if TYPE_CHECKING:
    from sweeper.results.comparison import Comparison
    from sweeper.results.improvements import Improvement
    from sweeper.results.predictive import Conformal, EnsembleRow
    from sweeper.results.recalibrating import Recalibrated
    from sweeper.results.verdicts import Estimates

#: SQL query that `recalibrate` suggests at its end.
AFTERWARDS_SQL = (
    "select trial, split, method, options, bins, avg(ece), avg(nll), avg(temperature) from recalibrations "
    "group by all order by all"
)

Method = Parameter(("--method", "-m"), completer=complete_method)


def compare(
    name: arguments.Name,
    first: arguments.OptionalName = None,
    second: arguments.OptionalName = None,
    more: arguments.Names = (),
    *,
    by: Literal["posthoc"] | None = None,
    network: str | None = None,
    output: arguments.Output = None,
) -> CommandResult[Comparison] | CommandResult[list[Estimates]] | CommandResult[list[Improvement]]:
    """Compare two losses or trials of a sweep, or two sweeps, by every estimator of calibration.

    Uses stored predictions, before and after each post-hoc method. Reports which is lower, whether they are equivalent,
    or how much more data would decide. Two sweeps are first compared by settings, versions, hardware, and metrics over
    paired trials.

    With `by`, compare post-hoc methods: what each gains over doing nothing, averaged over sweeps of different data.

    Args:
        first: Another sweep; with `second`, a loss or a trial. A loss stands for its best finished configuration.
        second: Loss or trial to compare with. (default: compare two sweeps)
        more: Further sweeps, with `by`.
        by: Compare post-hoc methods (`posthoc`); the other names are further sweeps. (default: compare sides)
        network: Compare by estimators on this network only. (default: every one that both have)

    Returns:
        The differences by estimator on each network; for two sweeps also their differing settings and each metric's
        difference with its interval.

    Raises:
        SweeperError: A side has no finished configuration, or there are no predictions.

    Examples:
        >>> import sweeper
        >>> (mlp,) = sweeper.compare("example", "focal", "cross_entropy").value
        >>> mlp.network, [trial for loss, trial in mlp.sides]
        ('mlp', ['c00001', 'c00000'])
        >>> [judgement.estimator for judgement in mlp.stages["uncalibrated"]][:2]
        ['ECE, 10 bins', 'ECE, 15 bins']
        >>> [improvement.method for improvement in sweeper.compare("example", by="posthoc").value]
        ['temperature']
    """
    if by is not None:
        from sweeper.reporting.methods import gains_view
        from sweeper.results.improvements import improvements, not_judged

        with ExitStack() as held:
            names = dict.fromkeys(sweep for sweep in (name, first, second, *more) if sweep)
            sweeps = [held.enter_context(opened(sweep, output).snapshot()) for sweep in names]
            rows = improvements(sweeps)
            return CommandResult(rows, gains_view(rows, not_judged(sweeps)))
    if first is None or more:
        raise SweeperError(
            f"{name} is to be compared with {'nothing' if first is None else f'{2 + len(more)} names'}",
            "name another sweep, two losses or two trials; or give --by posthoc",
        )
    from sweeper.reporting.first_screen import screen_changes
    from sweeper.reporting.summary import compared
    from sweeper.results.comparison import compare as compare_sweeps, view
    from sweeper.results.verdicts import estimates

    with opened(name, output).snapshot() as results:
        if second is not None:
            sides = estimates((results, first), (results, second), network, screen_changes(results))
            return CommandResult(sides, compared(sides))
        with opened(first, output).snapshot() as other:
            comparison, notes = compare_sweeps(results, other), []
            try:
                sides = estimates((results, None), (other, None), network)
            except SweeperError as error:
                sides, notes = [], [f"not compared by estimators: {error}"]
    rendered = Group(view(comparison), *([Text(), compared(sides)] if sides else []))
    return CommandResult(comparison, rendered, json={"sweeps": comparison, "estimators": sides}, notes=notes)


def recalibrate(
    name: arguments.Name,
    *,
    method: Annotated[arguments.Several, Method] = (),
    options: Annotated[arguments.Settings, Parameter("--option", completer=None)] = None,
    bins: int | Sequence[int] = (),
    metric: arguments.Several = (),
    trust: arguments.Trust = False,
    output: arguments.Output = None,
    progress: Annotated[
        Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]], HANDED
    ] = lambda sweep: nullcontext(None),
) -> CommandResult[Recalibrated]:
    """Fit post-hoc methods or recompute metrics on stored predictions.

    Nothing is retrained. Results are rows of the table `recalibrations`, next to the uncalibrated probabilities
    (method `none`). Additional metrics are in its JSON column `metrics`: `metrics->>'smooth_ece'`.

    Args:
        method: Post-hoc method to fit (see `sweeper spaces --posthoc`); repeatable. (default: none)
        options: Option of the methods that have it, e.g. strength=1e-3; repeatable.
        bins: Number of bins for calibration errors; repeatable. (default: the sweep's)
        metric: Additional metric (see `sweeper spaces --metrics`); repeatable. (default: none)
        progress: Context manager factory: sweep name → callback that receives the progress.

    Returns:
        The fitted methods, their effects, and the suggested next commands.

    Raises:
        SweeperError: Methods, options or bins are invalid (all faults at once), or predictions are missing.

    Examples:
        >>> import sweeper
        >>> done = sweeper.recalibrate("example", method="isotonic").value
        >>> [request.method for request in done.requests], done.evaluations
        (['none', 'isotonic'], 4)
    """
    from sweeper.reporting.recalibrations import recalibration_lines
    from sweeper.results.recalibrating import recalibrate_sweep

    place, counts = output_folder(output), [bins] if isinstance(bins, int) else list(bins)
    done = recalibrate_sweep(
        *local_copy(name, place), listed(method), overrides(options), counts, listed(metric), progress, trust=trust
    )
    publish(name, place)  # for a sweep in a store: the rows were written into the local copy
    marks = opened(name, output).marks
    sweep, where = Path(split_name(name, place)[0]).name, "" if place == RESULTS else f" --output {place}"
    words = (
        f'results {sweep}{where} --sql "{AFTERWARDS_SQL}"',
        f"report {sweep}{where}",
        f"manage sync {sweep}{where}",
    )
    return CommandResult(
        done, notes=[*recalibration_lines(done), *marks, "next", *(f"  sweeper {command}" for command in words)]
    )


def ensemble(
    name: arguments.Name,
    *,
    size: Annotated[int, Ge(1), Le(1000)] = 10,
    candidates: AtLeastOne = 50,
    picture: Annotated[str | Path | None, Parameter("--to")] = None,
    output: arguments.Output = None,
) -> CommandResult[list[EnsembleRow]]:
    """Average the predictions of finished networks.

    Evaluates ensembles of replicates and greedy ensembles. Nothing is retrained.

    Args:
        size: Members of the largest greedy ensemble.
        candidates: Number of best configurations to choose members from.
        picture: Also write a figure, test NLL against members, to this .html, .pdf, .svg or .png file. (default: none)

    Returns:
        A row for each ensemble, with its metrics.

    Raises:
        SweeperError: No finished trial has predictions, or trials predicted different samples.

    Examples:
        >>> import sweeper
        >>> rows = sweeper.ensemble("example", size=2, candidates=2).value
        >>> rows[0].ensemble, rows[0].members, sorted(rows[0].metrics)
        ('best single network', 1, ['accuracy', 'brier', 'ece', 'nll'])
    """
    from sweeper.results.predictive import ensembles, ensembles_view

    rows = ensembles(opened(name, output), size=size, candidates=candidates)
    if picture is not None:
        from sweeper.reporting.figures.ensembles import draw_ensembles
        from sweeper.reporting.html import write_figure

        write_figure(draw_ensembles(rows), Path(picture))
    return CommandResult(rows, ensembles_view(rows))


def conformal(
    name: arguments.Name,
    *,
    alpha: Annotated[float, Gt(0), Lt(1)] = 0.1,
    method: Annotated[str | None, Method] = None,
    crosswise: bool = False,
    output: arguments.Output = None,
) -> CommandResult[Conformal]:
    """Measure conformal prediction sets.

    Reports coverage and size of the THR, APS and RAPS sets of the best configuration.

    Args:
        alpha: Miscoverage rate, between 0 and 1.
        method: Post-hoc method to apply first (see `sweeper spaces --posthoc`). (default: none)
        crosswise: Fit the method on all folds but one in turn (CV+) instead of on half of the validation data. The sets
            are smaller, and the guarantee is weaker.

    Returns:
        Coverage and size of the sets, by score.

    Examples:
        >>> import sweeper
        >>> sets = sweeper.conformal("example", alpha=0.2).value
        >>> sorted({row.score for row in sets.rows})
        ['aps', 'raps', 'thr']
    """
    from sweeper.results.predictive import conformal_sets, conformal_view

    sets = conformal_sets(opened(name, output), alpha=alpha, method=method, crosswise=crosswise)
    return CommandResult(sets, conformal_view(sets))
