"""Commands that start, follow and stop sweeps, with the names, options, defaults and messages of the command line.

`import sweeper` offers them as `sweeper.run`, `sweeper.plan` and so on. Where the command line prints, they return an
object that displays the same text; where it ends with an error, they raise `sweeper.core.errors.SweeperError`. They
read the same environment variables: `SWEEPER_OUTPUT`, `MLFLOW_TRACKING_URI`, `RAY_ADDRESS`, `SWEEPER_ADDRESS`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Group

from sweeper.api import arguments
from sweeper.api.arguments import connect, output_folder, overrides
from sweeper.api.clusters import resume_remotely
from sweeper.api.finished import FinishedRun
from sweeper.core.display import CommandResult, SafeConsole, printable
from sweeper.core.errors import SweeperError
from sweeper.execution.options import RunOptions
from sweeper.execution.trial_processes import start_early
from sweeper.reporting.status import (
    FAR_LOOK_SECONDS,
    LOOK_SECONDS,
    SweepWatch,
    WatchUpdate,
    audit_all,
    audit_sweep,
    look_at_all,
    status_of,
    statuses_table,
    watch,
)
from sweeper.space.loading import load_spec
from sweeper.storage.lookup import entries
from sweeper.storage.places import ask_to_stop, local_copies, local_copy, split_name
from sweeper.tracking import choice
from trainables.files.stores.base import StoreError

if TYPE_CHECKING:
    from sweeper.api.finished import Submitted
    from sweeper.execution.cluster.cluster import Cluster, RemoteSweep
    from sweeper.execution.slurm.submission import SlurmSubmission
    from sweeper.planning.plan import Plan
    from sweeper.reporting.status import SweepStatus


def run(
    space: arguments.Space,
    *,
    set: arguments.Settings = None,
    name: str | None = None,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    mlflow: arguments.Mlflow = True,
    address: arguments.Address = None,
    cpus: arguments.Cpus = None,
    executor: arguments.RunsOn = "auto",
    rehearse: arguments.Rehearse = False,
    wait_for_nodes: arguments.WaitForNodes = 30.0,
    resume_existing: Annotated[bool, Parameter("--continue")] = False,
    timings: arguments.Timings = False,
) -> FinishedRun:
    """Run a sweep.

    Trains its configurations, then writes tables and a report.

    Args:
        name: Name of the sweep. (default: the file's name, numbered)
        resume_existing: Resume the sweep of that name if there is one, else start it.

    Returns:
        The sweep's name, outcome and results; a notebook shows its first screen.

    Raises:
        SweeperError: Nothing was started; the message lists every fault and its remedy.

    Examples:
        >>> import sweeper
        >>> done = sweeper.run("example.yaml", name="example", resume_existing=True, mlflow=False)
        >>> done.outcome, done.counts["completed"]
        ('finished', 2)
        >>> done.results.sql("select count(distinct config_loss_name) as losses from final").to_pylist()
        [{'losses': 2}]
    """
    if resume_existing:
        from sweeper.execution.runner import to_continue

        name, known = to_continue(space, overrides(set), name, output_folder(output), rehearse=rehearse)
        # `run` cannot drive a remote cluster and refuses such an address below; only `resume` accepts it.
        if known and not (address or "").startswith("http"):
            resumed = resume(
                name, output=output, tracking_uri=tracking_uri, mlflow=mlflow, address=address, cpus=cpus,
                executor=executor, wait_for_nodes=wait_for_nodes, timings=timings,
            )  # fmt: skip
            assert isinstance(resumed, FinishedRun)
            return resumed
    address = address or os.environ.get("RAY_ADDRESS")
    # The fork server imports torch in a process of its own while this one imports the driver.
    start_early(executor, address)
    from sweeper.execution.runner import run_sweep

    place = output_folder(output)
    options = RunOptions(
        place,
        address,
        cpus,
        choice.tracker_for(place, tracking_uri) if mlflow else None,
        rehearse=rehearse,
        wait_for_nodes=60 * wait_for_nodes,
        progress=arguments.progress_view(),
        executor=executor,
    )
    done = run_sweep(space, overrides(set), name, options)
    return FinishedRun(done, place, options.timings, show_timings=timings)


def resume(
    name: arguments.Name,
    *,
    failed: bool = False,
    set: arguments.Settings = None,
    trials: str = "",
    discard_damaged: bool = False,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    mlflow: arguments.Mlflow = True,
    address: Annotated[arguments.Address, Parameter(("--ray", "--dashboard"))] = None,
    cpus: arguments.Cpus = None,
    executor: arguments.RunsOn = "auto",
    wait_for_nodes: arguments.WaitForNodes = 30.0,
    trust: arguments.Trust = False,
    slurm: bool = False,
    timings: arguments.Timings = False,
) -> FinishedRun | Submitted | SlurmSubmission:
    """Resume an interrupted sweep.

    Keeps finished trials; the others continue from their checkpoints.

    Args:
        failed: Also retry failed trials.
        set: Change the budget or other limits, e.g. budget.gpu_hours=20, or add seeds: replicates=24; repeatable.
        trials: Trials that get the added seeds, e.g. c00003,c00007; by default all that reached the last epoch.
        discard_damaged: Quarantine damaged journal records and all records after them.
        address: Address of a Ray cluster to run on, or the dashboard of the one that the sweep was submitted to.
        slurm: Submit the scripts of a Slurm sweep again; accepts no other option but --output.

    Returns:
        The sweep's outcome and results; for a sweep on a cluster, the submitted job.

    Raises:
        SweeperError: There is no such sweep, or another process drives it.

    Examples:
        >>> import sweeper
        >>> sweeper.resume("example", mlflow=False).complete
        True
    """
    if slurm:
        from sweeper.execution.slurm.submission import submit_again

        return submit_again(name, output_folder(output))
    address = address or os.environ.get("RAY_ADDRESS")
    settings = overrides(set) + ([f"trials={trials}"] if trials else [])
    if address is not None and address.startswith("http"):
        return resume_remotely(name, address, failed, settings, wait_for_nodes, trust)

    name, place = split_name(name, output_folder(output))
    uri = choice.KEPT if tracking_uri is None else choice.tracker_for(place, tracking_uri)
    start_early(executor, address)
    from sweeper.execution.runner import resume_sweep

    options = RunOptions(
        place,
        address,
        cpus,
        uri if mlflow else None,
        failed_too=failed,
        discard_damaged=discard_damaged,
        settings=settings,
        wait_for_nodes=60 * wait_for_nodes,
        trust=trust,
        progress=arguments.progress_view(),
        executor=executor,
    )
    done = resume_sweep(name, options)
    return FinishedRun(done, place, options.timings, show_timings=timings)


def import_(
    file: str | Path,
    *,
    labels: str | Path | None = None,
    cross_fit: bool = False,
    set: arguments.Settings = None,
    name: str | None = None,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    mlflow: arguments.Mlflow = True,
) -> FinishedRun:
    """Import predictions made elsewhere as a sweep, to measure calibration and compare post-hoc methods.

    All commands that read sweeps can read it.

    Args:
        file: NumPy (.npz, .npy), HDF5, CSV, JSON Lines or Parquet file of logits or probabilities, or a folder of
            arrays. Each array or column is used, named as not used, or refused.
        labels: File of the class indices, if they are not in the first one; in any of these formats.
        cross_fit: Fit each post-hoc method on four fifths of the samples and measure it on the others, in turn, instead
            of halving them. For few samples.
        name: Name of the sweep. (default: the file's name, numbered)

    Raises:
        SweeperError: The file lacks columns or has invalid values.

    Examples:
        >>> import sweeper
        >>> sweeper.import_("missing.parquet")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ...
        sweeper.core.errors.SweeperError: missing.parquet cannot be read
    """
    from sweeper.execution.importing import import_predictions

    place = output_folder(output)
    uri = choice.tracker_for(place, tracking_uri) if mlflow else None
    options = RunOptions(place, tracker=uri, progress=arguments.progress_view())
    targets = None if labels is None else Path(labels)
    done = import_predictions(Path(file), overrides(set), name, options, targets, cross_fit=cross_fit)
    return FinishedRun(done, place, options.timings)


def plan(
    space: arguments.Space,
    *,
    set: arguments.Settings = None,
    rehearse: arguments.Rehearse = False,
    cluster: str | Path | None = None,
    slurm: bool = False,
    slurm_file: str | Path | None = None,
    price_per_gpu_hour: Annotated[float | None, *arguments.NotNegative] = None,
) -> CommandResult[Plan]:
    """Estimate trials, time and cost before training.

    Args:
        cluster: Ray launcher file or KubeRay manifest: also estimate nodes and hours there.
        slurm: Also estimate jobs and hours by slurm.yaml.
        slurm_file: Resources to request from Slurm. (default: slurm.yaml beside the space)
        price_per_gpu_hour: Multiply GPU-hours by this price. (default: show no price)

    Returns:
        Trials, epochs, time and cost, and the measurements behind the estimate.

    Raises:
        SweeperError: The search space or the cluster's file is invalid (all faults at once).

    Examples:
        >>> import sweeper
        >>> plan = sweeper.plan("example.yaml").value  # doctest: +SKIP
        >>> plan.trials, plan.replicates, plan.epochs.high  # doctest: +SKIP
        (2, 2, 4.0)
    """
    from sweeper.planning.costs import measured_plan

    if slurm_file is not None and not slurm:
        raise SweeperError("--slurm-file goes with --slurm", "add --slurm, or omit it")
    if slurm and cluster is not None:
        raise SweeperError("--cluster and --slurm were both given", "give one; --slurm-file names the file for Slurm")
    spec = load_spec(space, overrides(set), rehearse=rehearse)
    if slurm:
        from sweeper.execution.slurm.submission import asked_file

        cluster = asked_file(space, slurm_file)
    if cluster is not None:
        from sweeper.planning.on_cluster import cluster_plan

        planned, on_cluster = cluster_plan(spec, Path(cluster))
        planned = dataclasses.replace(planned, price_per_gpu_hour=price_per_gpu_hour)
        values = {**planned.to_dict(), "cluster": on_cluster.to_dict()}
        return CommandResult(planned, Group(planned, on_cluster), json=values)
    planned = dataclasses.replace(measured_plan(spec), price_per_gpu_hour=price_per_gpu_hour)
    fault = SweeperError(f"the sweep cannot start here: {planned.obstacle}") if planned.obstacle else None
    return CommandResult(planned, planned, json=planned.to_dict(), fault=fault)


def stop(name: arguments.Name, *, output: arguments.Output = None, address: arguments.ClusterAddress = None) -> str:
    """Ask a running sweep to stop.

    Results are kept; `sweeper resume` continues it.

    Returns:
        A message that says which process or job was asked.

    Raises:
        SweeperError: The sweep is not running.

    Examples:
        >>> import sweeper
        >>> sweeper.stop("example")
        Traceback (most recent call last):
        ...
        sweeper.core.errors.SweeperError: the sweep 'example' is not running
        ...
    """
    if address is None:
        from sweeper.execution.slurm.submission import stop_jobs

        return stop_jobs(name, output_folder(output)) or ask_to_stop(name, output_folder(output))
    cluster = connect(address)
    sweep = cluster.sweep(name)
    if sweep.ended:
        raise SweeperError(
            f"the sweep {name!r} is not running: it is {sweep.state}", f"see `sweeper cluster logs {name}`"
        )
    try:
        return ask_to_stop(sweep.name, sweep.output)
    except (SweeperError, StoreError):
        # This machine cannot reach the results, or the driver is still starting: let Ray send it a signal.
        cluster.stop(sweep.job)
        return f"asked the job {sweep.job} to stop"


def status(
    name: arguments.OptionalName = None,
    *,
    audit: bool = False,
    watch: Annotated[bool, Parameter(alias="-w")] = False,
    output: arguments.Output = None,
    address: arguments.ClusterAddress = None,
) -> (
    CommandResult[list[SweepStatus]]
    | CommandResult[list[RemoteSweep]]
    | CommandResult[list[str]]
    | CommandResult[WatchUpdate | None]
):
    """Show the progress of sweeps.

    Args:
        name: Name of the sweep. (default: all)
        audit: Recompute every decision from the journals, look for lost table files, and report differences.
        watch: Watch until the sweep ends; Ctrl-C only stops watching.

    Returns:
        One `SweepStatus` per sweep, or with an address one `RemoteSweep`; for an audit, the differences.

    Examples:
        >>> import sweeper
        >>> (status,) = sweeper.status("example").value
        >>> status.state, status.trials, status.left
        ('finished', 2, 0)
        >>> sweeper.status("example", audit=True).value
        []
    """
    place = output_folder(output)
    if watch and audit:
        raise SweeperError(
            "--watch and --audit exclude each other", "run --audit without --watch, or after the sweep has ended"
        )
    if watch:
        return _watched(name, place, address)
    if audit:
        said, differences = audit_all(local_copies(place)) if name is None else audit_sweep(*local_copy(name, place))
        lines = [*said, *(f"  {difference}" for difference in differences)]
        return CommandResult(differences, "\n".join(map(printable, lines)), exit_code=int(bool(differences)))
    if address is not None:
        from sweeper.execution.cluster.cluster import sweeps_table

        cluster = connect(address)
        sweeps = cluster.sweeps() if name is None else [cluster.sweep(name)]
        return CommandResult(sweeps, sweeps_table(sweeps, cluster.logs))
    from sweeper.execution.slurm.submission import jobs_lines, slurm_sweeps

    jobs = [printable(line) for line in jobs_lines(place, name)]
    if jobs and name is not None and not (Path(place) / name).exists():
        return CommandResult(list[str](), "\n".join(jobs))  # its first job waits in the queue
    own, folder = local_copy(name, place, tables=False) if name is not None else (None, local_copies(place))
    statuses = status_of(folder, own)
    if name is not None:
        return CommandResult(statuses, Group(statuses_table(statuses), *jobs))
    listed = {entry.name: entry for entry in entries(folder)}
    none = f"no sweeps in {Path(place).resolve()}; --output names another folder, `sweeper run quickstart` starts one"
    table = [statuses_table(statuses, listed)] if statuses else []  # no header without rows
    submitted = [printable(sweep) for sweep in slurm_sweeps(place) if sweep in listed]
    lines = [*jobs, *([f"on Slurm: {', '.join(submitted)}"] if submitted else [])]
    return CommandResult(statuses, Group(*table, *lines), notes=[] if statuses or lines else [none])


def _watched(name: str | None, output: str, address: str | None) -> CommandResult[WatchUpdate | None]:
    """Show one sweep, or all, until they end or Ctrl-C is pressed; return the last display."""
    from sweeper.execution.slurm.submission import jobs_lines

    look: Callable[[], WatchUpdate]
    # squeue loads Slurm's controller. The argument counts half minutes, so the cache calls squeue at most twice a
    # minute.
    queued = functools.lru_cache(1)(lambda _: jobs_lines(output, name, left=True))
    if address is None and (name is None or (not (Path(output) / name).exists() and queued(0))):
        seconds, look = LOOK_SECONDS, functools.partial(look_at_all, output)
    elif name is None or (watched := _watch_of(name, output, address)) is None:
        assert address is not None
        seconds, look = FAR_LOOK_SECONDS, functools.partial(_remote_look, connect(address), name)
    else:
        seconds, look = watched.seconds, watched.look

    def look_again() -> WatchUpdate:
        seen = look()
        # A sweep without a driver is not over while Slurm still has its jobs, waiting or requeued.
        jobs = queued(int(time.monotonic() / 30)) if seen.over and address is None else []
        return WatchUpdate(Group(seen.panel, *jobs), "\n".join(jobs), over=False) if jobs else seen

    seen = watch(look_again, seconds, SafeConsole())
    if seen is None:
        return CommandResult(None, notes=["stopped watching; sweeps keep running"])
    return CommandResult(seen, exit_code=int(not seen.complete))


def _watch_of(name: str, output: str, address: str | None) -> SweepWatch | None:
    """Return a watch on a sweep's journal; `None` if only the cluster knows the sweep."""
    try:
        return SweepWatch(*arguments.remote_output(name, output, address))
    except (SweeperError, StoreError):
        if address is None:
            raise
        return None


def _remote_look(cluster: Cluster, name: str | None) -> WatchUpdate:
    """Return the state of one or all sweeps of a cluster, from its Jobs API; `over` once all drivers have ended."""
    from sweeper.execution.cluster.cluster import progress_of, sweeps_table

    sweeps = cluster.sweeps() if name is None else [cluster.sweep(name)]
    lines = [f"{sweep.name} · {sweep.state} · {progress_of(sweep, cluster.logs)}" for sweep in sweeps]
    over = all(sweep.ended for sweep in sweeps)
    return WatchUpdate(
        sweeps_table(sweeps, cluster.logs), "\n".join(lines), over, all(s.exit_code == 0 for s in sweeps)
    )
