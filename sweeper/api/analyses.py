"""What is asked of finished sweeps, as functions: their report, comparisons, claims and what logits still tell.

Like `sweeper.api.commands`: same names, options, defaults and messages as on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.api.arguments import output_folder, overrides
from sweeper.api.finished import ReportPage
from sweeper.remote.reach import all_here, local_sweep, remote_output
from sweeper.text.display import Shown

if TYPE_CHECKING:
    from sweeper.analysis.claims.base import Verdict
    from sweeper.analysis.comparison import Comparison
    from sweeper.analysis.predictive.conformal import Conformal
    from sweeper.analysis.predictive.ensemble import EnsembleRow
    from sweeper.analysis.recalibration.recalibrating import Progress, Recalibrated
    from sweeper.analysis.replay.replaying import Kept


def report(
    name: str,
    more: Sequence[str] = (),
    *,
    to: str | Path | None = None,
    output: str | Path | None = None,
    address: str | None = None,
) -> ReportPage:
    """Rewrite a sweep's `report.html` and return its path; like `sweeper report`.

    Args:
        name: of the sweep.
        more: further sweeps: then one page of all is written beside their folders.
        to: the file to write instead, for those who may only read the sweep's folder.
        output: directory or store of the sweeps.
        address: of a Ray cluster that knows the sweep.

    Raises:
        SweeperError: there is no such sweep, it was named twice, or the page cannot be written.
    """
    from sweeper.reporting.page import write_report
    from sweeper.storage.lookup import find_sweep
    from sweeper.storage.places import publish

    if more:
        from sweeper.reporting.page import write_several
        from sweeper.results import load

        names, folder = all_here([name, *more], output_folder(output), address)
        members = [load(each, folder) for each in names]
        beside = folder / f"report-{'-'.join(each.name for each in members)}.html"
        return ReportPage(write_several(members, beside if to is None else Path(to)))
    name, place = remote_output(name, output_folder(output), address)
    root = find_sweep(*local_sweep(name, place)).root
    if to is not None:
        return ReportPage(write_report(root, Path(to)))
    page = write_report(root)
    publish(name, place)
    return ReportPage(page)


def compare(first: str, second: str, *, output: str | Path | None = None) -> Shown[Comparison]:
    """Compare the settings and results of two sweeps; like `sweeper compare`. Raises SweeperError."""
    from sweeper.analysis.comparison import compare as compare_sweeps
    from sweeper.analysis.comparison import view
    from sweeper.results import load

    (first, second), folder = all_here([first, second], output_folder(output))
    found = compare_sweeps(load(first, folder), load(second, folder))
    return Shown(found, view(found))


def what_if(
    name: str,
    *,
    scheduler: str | Sequence[str] = (),
    within: str | Sequence[str] = (),
    objective: str | Sequence[str] = (),
    orders: int = 200,
    trials: int | None = None,
    workers: int = 2,
    by: str | None = None,
    judge: str | None = None,
    seed: int = 0,
    output: str | Path | None = None,
) -> Shown[list[Kept]]:
    """Replay a fully trained sweep through other schedulers; like `sweeper what-if`.

    Args:
        name: of the sweep, or its folder; no trial of it was stopped early.
        scheduler: schedulers as YAML, such as `{name: asha, reduction_factor: 2}`; ASHA by default.
        within: strata, paths with commas such as `architecture,loss`, or `none` for one pool.
        objective: metrics to compare by, such as `val_nll` or `val_s99:max`; the sweep's by default.
        orders: random orders to replay.
        trials: trials drawn for each order; all by default.
        workers: trials that run at once.
        by: strata to count survivors in; architecture and loss by default, where they vary.
        judge: the metric that says which trial is the winner; on test data by default.
        seed: of the orders.
        output: directory or store of the sweep.

    Raises:
        SweeperError: the sweep cannot be replayed so; the message says every fault and its remedy.
    """
    from sweeper.analysis.replay.view import as_json
    from sweeper.analysis.replay.view import what_if as replayed
    from sweeper.results import load

    asked = ([text] if isinstance(text, str) else list(text) for text in (scheduler, within, objective))
    sweep = load(*local_sweep(name, output_folder(output)))
    found = replayed(sweep, *asked, orders=orders, trials=trials, workers=workers, by=by, judge=judge, seed=seed)
    return Shown(found.kept, found.look, json=[as_json(each) for each in found.kept])


def claims(
    name: str | None = None, *, claim: Sequence[str] = (), output: str | Path | None = None
) -> Shown[list[Verdict]]:
    """Judge claims of papers on a sweep, or list their rules; like `sweeper claims`. Raises SweeperError."""
    from rich.text import Text

    from sweeper.analysis.judging import claims_table, judge_claims, verdict_lines
    from sweeper.results import load

    if name is None:
        return Shown([], claims_table())
    found = load(*local_sweep(name, output_folder(output)))
    verdicts, rehearsal = judge_claims(found, list(claim) or None), bool(found.rehearsed)
    return Shown(
        verdicts,
        Text("\n".join(verdict_lines(verdicts, rehearsal=rehearsal))),
        json=[{**verdict.to_dict(), "rehearsal": rehearsal} for verdict in verdicts],
    )


def recalibrate(
    name: str,
    *,
    method: str | Sequence[str] = (),
    options: Mapping[str, object] | Sequence[str] = (),
    bins: int | Sequence[int] = (),
    metric: str | Sequence[str] = (),
    trust: bool = False,
    output: str | Path | None = None,
    progress: Callable[[str], AbstractContextManager[Progress | None]] = lambda sweep: nullcontext(None),
) -> Shown[Recalibrated]:
    """Fit post-hoc methods, or recompute ECE with other bin counts, on stored predictions; like `sweeper recalibrate`.

    Args:
        name: of the sweep.
        method: one or several.
        options: of the methods, `{"objective": "ece"}` or `{"temperature.objective": "ece"}`.
        bins: numbers of bins for calibration errors; by default the sweep's.
        metric: one or several metrics to measure besides; they go into the column `metrics` as JSON.
        trust: as of `resume`.
        output: directory or store of the sweep.
        progress: gives for a sweep's name what is told how far it is.

    Raises:
        SweeperError: with every fault of methods, options and bins, or why it cannot be computed.
    """
    from rich.text import Text

    from sweeper.analysis.recalibration.recalibrating import recalibrate_sweep
    from sweeper.storage.places import publish

    place = output_folder(output)
    methods = [method] if isinstance(method, str) else list(method)
    counts = [bins] if isinstance(bins, int) else list(bins)
    measured = [metric] if isinstance(metric, str) else list(metric)
    asked = overrides(options)
    done = recalibrate_sweep(*local_sweep(name, place), methods, asked, counts, measured, progress, trust=trust)
    publish(name, place)
    return Shown(done, Text("\n".join(done.lines())))


def ensemble(
    name: str,
    *,
    size: int = 10,
    candidates: int = 50,
    picture: str | Path | None = None,
    output: str | Path | None = None,
) -> Shown[list[EnsembleRow]]:
    """Average the predictions of finished networks; like `sweeper ensemble`.

    Args:
        name: of the sweep, or its folder.
        size: members of the largest greedy ensemble.
        candidates: best configurations to choose members from.
        picture: an HTML file to draw test NLL against members into.
        output: directory or store of the sweep.

    Raises:
        SweeperError: no finished trial has predictions, or they are of different samples.
    """
    from sweeper.analysis.predictive.ensemble import ensembles, view, write_picture
    from sweeper.results import load

    rows = ensembles(load(*local_sweep(name, output_folder(output))), size=size, candidates=candidates)
    if picture is not None:
        write_picture(rows, Path(picture))
    return Shown(rows, view(rows))


def conformal(
    name: str,
    *,
    alpha: float = 0.1,
    method: str | None = None,
    crosswise: bool = False,
    output: str | Path | None = None,
) -> Shown[Conformal]:
    """Measure the best configuration's conformal prediction sets; like `sweeper conformal`. Raises SweeperError."""
    from sweeper.analysis.predictive.conformal import conformal_sets, view
    from sweeper.results import load

    found = conformal_sets(
        load(*local_sweep(name, output_folder(output))), alpha=alpha, method=method, crosswise=crosswise
    )
    return Shown(found, view(found))
