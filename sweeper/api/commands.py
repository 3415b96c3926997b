"""The commands as functions, for notebooks and scripts: same names, options, defaults and messages.

`import sweeper` gives them as `sweeper.run`, `sweeper.plan` and so on. Where the command line prints, these return an
object that shows the same; where it ends with an error, they raise `sweeper.core.errors.SweeperError` with its words.
Environment variables count as they do there: `SWEEPER_OUTPUT`, `MLFLOW_TRACKING_URI`, `RAY_ADDRESS`, `SWEEPER_ADDRESS`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.api.finished import FinishedRun, ReportPage, Submitted
from sweeper.core.errors import SweeperError
from sweeper.core.executors import Executor
from sweeper.core.plain import Plain
from sweeper.execution.local.processes import early_server
from sweeper.remote.reach import all_here, connect, here, remote_output, tracking
from sweeper.text.display import Shown
from trainables.worker.object_store import is_store_address

if TYPE_CHECKING:
    from sweeper.analysis.claims.base import Verdict
    from sweeper.analysis.comparison.compare import Comparison
    from sweeper.analysis.predictive.conformal import Conformal
    from sweeper.analysis.predictive.ensemble import EnsembleRow
    from sweeper.analysis.recalibration.recalibrating import Recalibrated
    from sweeper.analysis.replay.replaying import Kept
    from sweeper.monitoring.live import Progress
    from sweeper.monitoring.notebook import NotebookProgress
    from sweeper.monitoring.status import SweepStatus
    from sweeper.planning.plan import Plan
    from sweeper.remote.cluster import RemoteSweep

Settings = Mapping[str, object] | Sequence[str] | None
"""Overrides: `{"scheduler.max_epochs": 9}`, or `key=value` texts as for `--set`."""

Space = str | Path | Mapping[str, Plain]
"""A search space: a file, the name of a shipped one, or its contents as a mapping."""


def run(
    space: Space,
    *,
    set: Settings = None,
    name: str | None = None,
    output: str | Path | None = None,
    tracking_uri: str | None = None,
    mlflow: bool = True,
    address: str | None = None,
    cpus: int | None = None,
    executor: Executor = "auto",
    rehearse: bool = False,
    reuse: bool = False,
    reuse_from: str | Sequence[str] = (),
    wait_for_nodes: float = 30.0,
    notify: Sequence[str] = (),
    allow_notify: bool = False,
) -> FinishedRun:
    """Run a sweep from a search space to its report; like `sweeper run`.

    Args:
        space: see `Space`.
        set: see `Settings`.
        name: of the sweep; by default the file's name, numbered (`sweep` for a mapping).
        output: directory of results, or an object store's address; by default `results`.
        tracking_uri: MLflow tracking store; by default a local SQLite file.
        mlflow: whether to log to MLflow.
        address: of a Ray cluster; by default one is started on this machine.
        cpus: CPU cores to use on this machine; all by default.
        executor: `local` for forked processes here, `ray`, or `auto`: local if there is no cluster and no GPU.
        rehearse: run a scaled-down copy in minutes, on digits and small networks.
        reuse: reuse trials that other sweeps of the output have already trained.
        reuse_from: reuse trials of this sweep, or these, only.
        wait_for_nodes: minutes to wait for the autoscaler to add the first node.
        notify: webhooks and commands to notify.
        allow_notify: send the notifications that the search space file asks for; remembered for its folder.

    Raises:
        SweeperError: nothing was started; the message says every fault and its remedy.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    with early_server(executor, address) as server:
        from sweeper.execution.runner import RunOptions, run_sweep

        place = _output(output)
        options = RunOptions(
            place,
            address,
            cpus,
            _tracking(tracking_uri, place) if mlflow else None,
            rehearse=rehearse,
            reuse=reuse,
            reuse_from=[reuse_from] if isinstance(reuse_from, str) else reuse_from,
            wait_for_nodes=60 * wait_for_nodes,
            notify=notify,
            allow_notify=allow_notify,
            progress=_progress(),
            executor=executor,
        )
        return FinishedRun(run_sweep(space, overrides(set), name, options, server), place, options.timings)


def resume(
    name: str,
    *,
    failed: bool = False,
    set: Settings = None,
    discard_damaged: bool = False,
    output: str | Path | None = None,
    tracking_uri: str | None = None,
    mlflow: bool = True,
    address: str | None = None,
    cpus: int | None = None,
    executor: Executor = "auto",
    wait_for_nodes: float = 30.0,
    notify: Sequence[str] = (),
    allow_notify: bool = False,
    trust: bool = False,
) -> FinishedRun:
    """Resume an interrupted sweep; like `sweeper resume`.

    Args:
        name: of the sweep, or its folder or address.
        failed: retry failed trials, too.
        set: settings that may change on resume, such as `{"budget.gpu_hours": 20}`.
        discard_damaged: quarantine damaged journal records and all records after them.
        output: directory or store of the sweep.
        tracking_uri: as of `run`.
        mlflow: as of `run`.
        address: as of `run`.
        cpus: as of `run`.
        executor: as of `run`.
        wait_for_nodes: as of `run`.
        notify: as of `run`.
        allow_notify: as of `run`.
        trust: run the code that came with the sweep's folder, though this user has not run it before.

    Raises:
        SweeperError: there is no such sweep, or somebody else drives it.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    from sweeper.storage.places import split_name

    name, place = split_name(name, _output(output))
    uri = _tracking(tracking_uri, place, name) if mlflow else None
    if not (set or discard_damaged or is_store_address(place)):
        from sweeper.execution.settled import settled
        from sweeper.monitoring.timings import Timings

        found = settled(name, place, failed_too=failed, tracking_uri=uri)
        if found is not None:
            return FinishedRun(found, place, Timings())
    with early_server(executor, address) as server:
        from sweeper.execution.runner import RunOptions, resume_sweep

        options = RunOptions(
            place,
            address,
            cpus,
            uri,
            failed_too=failed,
            discard_damaged=discard_damaged,
            settings=overrides(set),
            wait_for_nodes=60 * wait_for_nodes,
            notify=notify,
            allow_notify=allow_notify,
            trust=trust,
            progress=_progress(),
            executor=executor,
        )
        return FinishedRun(resume_sweep(name, options, server), place, options.timings)


def plan(space: Space, *, set: Settings = None, rehearse: bool = False) -> Shown[Plan]:
    """Estimate trials, time and cost of a search space; like `sweeper plan`. Raises SweeperError."""
    from sweeper.planning.costs import measured_plan
    from sweeper.space.loading import load_spec

    planned = measured_plan(load_spec(space, overrides(set), rehearse=rehearse))
    return Shown(planned, planned)


def status(
    name: str | None = None, *, output: str | Path | None = None, address: str | None = None
) -> Shown[list[SweepStatus]] | Shown[list[RemoteSweep]]:
    """Show the progress of all sweeps, or of one; like `sweeper status`. Raises SweeperError.

    `value` has one object per sweep: `SweepStatus`, or with an address `RemoteSweep`.
    """
    from sweeper.monitoring.status import status_of, statuses_table
    from sweeper.storage.places import local_copies

    if address is not None:
        from sweeper.remote.status import sweeps_table

        cluster = connect(address)
        sweeps = cluster.sweeps() if name is None else [cluster.sweep(name)]
        return Shown(sweeps, sweeps_table(sweeps, cluster.logs))
    place = _output(output)
    own, folder = here(name, place, tables=False) if name is not None else (None, local_copies(place))
    found = status_of(folder, own)
    return Shown(found, statuses_table(found))


def stop(name: str, *, output: str | Path | None = None) -> str:
    """Ask a running sweep to stop; return what was asked. Raises SweeperError if it is not running."""
    from sweeper.execution.stopping import ask_to_stop

    return ask_to_stop(name, _output(output))


def report(
    name: str, more: Sequence[str] = (), *, output: str | Path | None = None, address: str | None = None
) -> ReportPage:
    """Rewrite a sweep's `report.html` and return its path; like `sweeper report`.

    Args:
        name: of the sweep.
        more: further sweeps: then one page of all is written beside their folders.
        output: directory or store of the sweeps.
        address: of a Ray cluster that knows the sweep.

    Raises:
        SweeperError: there is no such sweep, or it was named twice.
    """
    from sweeper.reporting import write_report
    from sweeper.storage.lookup import find_sweep
    from sweeper.storage.places import publish

    if more:
        from sweeper.reporting.several import write_several
        from sweeper.results import load

        names, folder = all_here([name, *more], _output(output), address)
        members = [load(each, folder) for each in names]
        return ReportPage(write_several(members, folder / f"report-{'-'.join(each.name for each in members)}.html"))
    name, place = remote_output(name, _output(output), address)
    page = write_report(find_sweep(*here(name, place)).root)
    publish(name, place)
    return ReportPage(page)


def compare(first: str, second: str, *, output: str | Path | None = None) -> Shown[Comparison]:
    """Compare the settings and results of two sweeps; like `sweeper compare`. Raises SweeperError."""
    from sweeper.analysis.comparison.compare import compare as compare_sweeps
    from sweeper.analysis.comparison.view import view
    from sweeper.results import load

    (first, second), folder = all_here([first, second], _output(output))
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
    from sweeper.analysis.replay.view import what_if as replayed
    from sweeper.results import load

    asked = ([text] if isinstance(text, str) else list(text) for text in (scheduler, within, objective))
    sweep = load(*here(name, _output(output)))
    found = replayed(sweep, *asked, orders=orders, trials=trials, workers=workers, by=by, judge=judge, seed=seed)
    return Shown(found.kept, found.look)


def claims(
    name: str | None = None, *, claim: Sequence[str] = (), output: str | Path | None = None
) -> Shown[list[Verdict]]:
    """Judge claims of papers on a sweep, or list their rules; like `sweeper claims`. Raises SweeperError."""
    from rich.text import Text

    from sweeper.analysis.judging import claims_table, judge_claims, verdict_lines
    from sweeper.results import load

    if name is None:
        return Shown([], claims_table())
    found = load(*here(name, _output(output)))
    verdicts = judge_claims(found, list(claim) or None)
    return Shown(verdicts, Text("\n".join(verdict_lines(verdicts, rehearsal=bool(found.rehearsed)))))


def recalibrate(
    name: str,
    *,
    method: str | Sequence[str] = (),
    options: Mapping[str, object] | Sequence[str] = (),
    bins: int | Sequence[int] = (),
    metric: str | Sequence[str] = (),
    trust: bool = False,
    output: str | Path | None = None,
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

    Raises:
        SweeperError: with every fault of methods, options and bins, or why it cannot be computed.
    """
    from rich.text import Text

    from sweeper.analysis.recalibration.recalibrating import recalibrate_sweep
    from sweeper.storage.places import publish

    place = _output(output)
    methods = [method] if isinstance(method, str) else list(method)
    counts = [bins] if isinstance(bins, int) else list(bins)
    measured = [metric] if isinstance(metric, str) else list(metric)
    asked = overrides(options)
    done = recalibrate_sweep(
        *here(name, place), methods, asked, counts, measured, lambda sweep: nullcontext(None), trust=trust
    )
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

    rows = ensembles(load(*here(name, _output(output))), size=size, candidates=candidates)
    if picture is not None:
        write_picture(rows, Path(picture))
    return Shown(rows, view(rows))


def conformal(
    name: str, *, alpha: float = 0.1, method: str | None = None, output: str | Path | None = None
) -> Shown[Conformal]:
    """Measure the best configuration's conformal prediction sets; like `sweeper conformal`. Raises SweeperError."""
    from sweeper.analysis.predictive.conformal import conformal_sets, view
    from sweeper.results import load

    found = conformal_sets(load(*here(name, _output(output))), alpha=alpha, method=method)
    return Shown(found, view(found))


def submit(
    space: Space,
    address: str | None = None,
    *,
    output: str | None = None,
    set: Settings = None,
    name: str | None = None,
    tracking_uri: str | None = None,
    mlflow: bool = True,
    ship_code: bool = True,
    wait_for_nodes: float = 30.0,
    allow_notify: bool = False,
) -> Submitted:
    """Run a sweep on a remote cluster; like `sweeper submit`. The returned object follows and stops it.

    Args:
        space: a file, or the name of a shipped one.
        address: of the cluster's dashboard.
        output: `s3://…`, `gs://…`, or a shared directory.
        set: as of `run`.
        name: as of `run`.
        tracking_uri: MLflow server, as seen from the cluster.
        mlflow: as of `run`.
        wait_for_nodes: as of `run`.
        ship_code: ship the local code with the job, or run the code in the cluster's image.
        allow_notify: as of `run`.

    Raises:
        SweeperError: the cluster does not answer, or the search space is at fault; nothing was started.
    """
    from sweeper.remote.submission import Request
    from sweeper.remote.submission import submit as submit_sweep

    address = address or os.environ.get("SWEEPER_ADDRESS")
    if address is None:
        raise SweeperError("no cluster was named", "give address, e.g. http://head:8265, or set SWEEPER_ADDRESS")
    if isinstance(space, Mapping):
        raise SweeperError("a remote cluster needs the search space as a file", "write it to a file, or run it here")
    cluster = connect(address)
    known = {sweep.name for sweep in cluster.sweeps()}
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    request = Request(_output(output), uri, not mlflow, ship_code, overrides(set), wait_for_nodes, allow_notify)
    return Submitted(cluster, *submit_sweep(cluster, str(space), name, known.__contains__, request))


def overrides(settings: Settings) -> list[str]:
    """Return overrides as `--set` writes them: a mapping's values as JSON, which is YAML too."""
    if isinstance(settings, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    return [settings] if isinstance(settings, str) else list(settings or ())


def _output(output: str | Path | None) -> str:
    return str(output) if output is not None else os.environ.get("SWEEPER_OUTPUT", "results")


def _tracking(uri: str | None, place: str, name: str | None = None) -> str | None:
    return tracking(uri or os.environ.get("MLFLOW_TRACKING_URI"), place, name)


def _progress() -> type[NotebookProgress] | type[Progress]:
    from sweeper.monitoring.live import Progress
    from sweeper.monitoring.notebook import NotebookProgress, in_notebook

    return NotebookProgress if in_notebook() else Progress
