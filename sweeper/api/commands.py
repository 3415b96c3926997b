"""The commands as functions, for notebooks and scripts: same names, options, defaults and messages.

`import sweeper` gives them as `sweeper.run`, `sweeper.plan` and so on. Where the command line prints, these return an
object that shows the same; where it ends with an error, they raise `sweeper.core.errors.SweeperError` with its words.
Environment variables count as they do there: `SWEEPER_OUTPUT`, `MLFLOW_TRACKING_URI`, `RAY_ADDRESS`, `SWEEPER_ADDRESS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.api.arguments import Settings, Space, output_folder, overrides, progress_view, tracking_address
from sweeper.api.finished import FinishedRun, Submitted
from sweeper.core.errors import SweeperError
from sweeper.core.processes import Executor
from sweeper.execution.local.processes import early_server
from sweeper.remote.reach import connect, local_sweep
from sweeper.text.display import Shown
from trainables.files.stores.base import StoreError, is_store_address

if TYPE_CHECKING:
    from sweeper.monitoring.status import SweepStatus
    from sweeper.planning.view import Plan
    from sweeper.remote.cluster import RemoteSweep


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
        from sweeper.execution.options import RunOptions
        from sweeper.execution.runner import run_sweep

        place = output_folder(output)
        options = RunOptions(
            place,
            address,
            cpus,
            tracking_address(tracking_uri, place) if mlflow else None,
            rehearse=rehearse,
            reuse=reuse,
            reuse_from=[reuse_from] if isinstance(reuse_from, str) else reuse_from,
            wait_for_nodes=60 * wait_for_nodes,
            notify=notify,
            allow_notify=allow_notify,
            progress=progress_view(),
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

    name, place = split_name(name, output_folder(output))
    uri = tracking_address(tracking_uri, place, name) if mlflow else None
    if not (set or discard_damaged or is_store_address(place)):
        from sweeper.execution.noop_resume import settled
        from sweeper.monitoring.timings import Timings

        found = settled(name, place, failed_too=failed, tracker=uri)
        if found is not None:
            return FinishedRun(found, place, Timings())
    with early_server(executor, address) as server:
        from sweeper.execution.options import RunOptions
        from sweeper.execution.runner import resume_sweep

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
            progress=progress_view(),
            executor=executor,
        )
        return FinishedRun(resume_sweep(name, options, server), place, options.timings)


def plan(space: Space, *, set: Settings = None, rehearse: bool = False) -> Shown[Plan]:
    """Estimate trials, time and cost of a search space; like `sweeper plan`. Raises SweeperError."""
    from sweeper.planning.costs import measured_plan
    from sweeper.space.loading import load_spec

    planned = measured_plan(load_spec(space, overrides(set), rehearse=rehearse))
    return Shown(planned, planned, json=planned.to_dict())


def status(
    name: str | None = None, *, output: str | Path | None = None, address: str | None = None
) -> Shown[list[SweepStatus]] | Shown[list[RemoteSweep]]:
    """Show the progress of all sweeps, or of one; like `sweeper status`. Raises SweeperError.

    `value` has one object per sweep: `SweepStatus`, or with an address `RemoteSweep`.
    """
    from sweeper.monitoring.status import status_of, statuses_table
    from sweeper.storage.places import local_copies

    if address is not None:
        from sweeper.remote.cluster import sweeps_table

        cluster = connect(address)
        sweeps = cluster.sweeps() if name is None else [cluster.sweep(name)]
        return Shown(sweeps, sweeps_table(sweeps, cluster.logs))
    place = output_folder(output)
    own, folder = local_sweep(name, place, tables=False) if name is not None else (None, local_copies(place))
    found = status_of(folder, own)
    return Shown(found, statuses_table(found))


def stop(name: str, *, output: str | Path | None = None, address: str | None = None) -> str:
    """Ask a running sweep to stop; return what was asked. Raises SweeperError if it is not running.

    With the `address` of a cluster, it is asked through its results, or by a signal where these cannot be reached.
    """
    from sweeper.execution.runner import ask_to_stop

    if address is None:
        return ask_to_stop(name, output_folder(output))
    cluster = connect(address)
    sweep = cluster.sweep(name)
    if sweep.ended:
        raise SweeperError(f"the sweep {name!r} is not running: it is {sweep.state}", f"see `sweeper logs {name}`")
    try:
        return ask_to_stop(sweep.name, sweep.output)
    except (SweeperError, StoreError):
        # The results cannot be reached from here, or the driver is still starting: let Ray send it a signal.
        cluster.stop(sweep.job)
        return f"asked the job {sweep.job} to stop"


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
        output: `s3://…`, `gs://…`, `az://…`, or a shared directory.
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
    request = Request(output_folder(output), uri, not mlflow, ship_code, overrides(set), wait_for_nodes, allow_notify)
    return Submitted(cluster, *submit_sweep(cluster, str(space), name, known.__contains__, request))
