"""Join or start a Ray cluster, offer its resources to a sweep's trials, leave it, and explain errors.

Ray reads its environment when it is imported: call `sweeper.core.processes.prepare` before this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import psutil
import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.exceptions import GetTimeoutError, RayError
from ray.experimental.internal_kv import _internal_kv_get
from ray.job_config import JobConfig
from ray.tune.execution import class_cache
from ray.util.metrics import Gauge

from sweeper.core.processes import OUR_ROOT
from sweeper.execution.driver import capacity
from sweeper.execution.driver.context import Shares
from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.executor import Job, Session
from sweeper.execution.driver.gpu_shares import CardShares, shares_of
from sweeper.execution.ray.executor import execute
from sweeper.reporting.snapshot import METRICS
from trainables.worker.trial_reports import CardMemory
from trainables.worker.trial_settings import Assignment, TrialSettings
from trainables.worker.workers import CardProbe

if TYPE_CHECKING:
    from sweeper.execution.options import RunOptions

#: Seconds that the head has to answer; it usually takes milliseconds.
STATUS_SECONDS = 5.0


def look_at_cluster() -> capacity.ClusterView:
    """Return the cluster's resources and the nodes that its autoscaler, of either version, is starting.

    Version 2 answers the call that `ray status` uses; version 1 writes JSON to the head's key-value store.
    """
    nodes = tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])
    reply = GetClusterStatusReply()
    address = ray.get_runtime_context().gcs_address
    reply.ParseFromString(_head(address).get_cluster_status(timeout_s=STATUS_SECONDS))
    if reply.autoscaling_state.autoscaler_state_version:
        return _view_of_second_autoscaler(nodes, reply)
    status = _internal_kv_get(b"__autoscaling_status")
    return capacity.view_of_first_autoscaler(nodes, json.loads(status) if status else {})


def try_cluster_state() -> capacity.ClusterView | None:
    """Return `look_at_cluster()`, or `None` if a busy head does not answer in time; a running sweep retries later."""
    try:
        return look_at_cluster()
    except RayError:
        return None


def other_nodes(resources: Mapping[str, float], avoided: AbstractSet[str]) -> bool:
    """Return whether a living node that is not in `avoided` can hold a trial with these `resources`."""
    others = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] not in avoided]
    return capacity.ClusterView(tuple(others)).trials_at_once(resources) > 0


@cache
def _head(address: str) -> Any:
    """Return a connection to the head, which all calls share."""
    return GcsClient(address)


def _view_of_second_autoscaler(nodes: tuple[Mapping[str, float], ...], reply: Any) -> capacity.ClusterView:
    state = reply.autoscaling_state
    starting: Counter[str] = Counter()
    for request in state.pending_instance_requests:
        starting[request.ray_node_type_name] += request.count
    starting.update(instance.ray_node_type_name for instance in state.pending_instances)
    requests = [*state.infeasible_resource_requests]
    for gang in state.infeasible_gang_resource_requests:
        requests += gang.requests
    failures = [f"{failed.ray_node_type_name}: {failed.reason}" for failed in state.failed_instance_requests]
    # Without an autoscaler's configuration nodes have no type.
    autoscales = any(node.ray_node_type_name for node in reply.cluster_resource_state.node_states)
    bundles = tuple(dict(request.resources_bundle) for request in requests)
    return capacity.ClusterView(nodes, autoscales, starting, bundles, tuple(failures))


def gauges(metrics: Mapping[str, tuple[str, tuple[str, ...]]]) -> Callable[[str, Mapping[str, str], float], None]:
    """Create Ray's gauges; return a function of name, labels and value that sets them.

    Args:
        metrics: Name → description and labels.
    """
    made = {name: Gauge(name, description=text, tag_keys=labels) for name, (text, labels) in metrics.items()}

    def publish(name: str, labels: Mapping[str, str], value: float) -> None:
        made[name].set(value, tags=dict(labels))

    return publish


#: Seconds to wait for a GPU to measure on, and for a measurement (some steps and one evaluation, usually seconds).
PROBE_PATIENCE_SECONDS = 120.0


@contextmanager
def card_probe(
    settings: TrialSettings, cpus: float, measurer: type = CardProbe
) -> Iterator[Callable[[Assignment], CardMemory | None]]:
    """Yield a function that measures an assignment's memory in a process with its own GPU; end the process afterwards.

    The function returns `None` if no GPU was available within `PROBE_PATIENCE_SECONDS` or the measurement failed; the
    trials will then meet the same problem and report it.

    Args:
        settings: Settings of all trials.
        cpus: Cores of the process.
        measurer: Class that runs in it.
    """
    processes: list[Any] = []
    timed_out = False

    def probe(assignment: Assignment) -> CardMemory | None:
        nonlocal timed_out
        if timed_out:  # do not wait two minutes again for every kind of configuration
            return None
        try:
            if not processes:
                processes.append(ray.remote(num_gpus=1, num_cpus=cpus)(measurer).remote(settings))
                ray.get(processes[0].__ray_ready__.remote(), timeout=PROBE_PATIENCE_SECONDS)
            measured: CardMemory = ray.get(processes[0].measure.remote(assignment), timeout=PROBE_PATIENCE_SECONDS)
            return measured
        except RayError as error:
            timed_out = isinstance(error, GetTimeoutError)
            return None

    try:
        yield probe
    finally:
        for process in processes:
            ray.kill(process)


#: Number of attempts to start a cluster on this machine, and Ray 2.60's message if a start takes longer than half a
#: minute, as on a busy machine.
START_ATTEMPTS, SLOW_START = 3, "timed out during startup"

#: Replaces the list of environment variables that Tune 2.60 passes to trials in their runtime environment by nothing.
#: Trials need none: processes on this machine inherit the driver's environment, and nodes of another cluster have their
#: own credentials, from secrets or roles. Ray's agents would write the driver's credentials into their logs. Besides, a
#: trial with a runtime environment waits for a new process, although Ray keeps some ready.
TUNE_VARIABLES = {"DEFAULT_ENV_VARS": dict[str, str](), "ENV_VARS_TO_PROPAGATE": set[str]()}


@contextmanager
def session_on(options: RunOptions, job: Job) -> Iterator[Session]:
    """Start or join Ray, yield a session with its nodes' resources, and leave Ray."""
    sweep, progress = job.sweep, job.progress
    progress.stage(f"{sweep.name}: starting Ray")
    with ray_session(options.address, options.cpus):
        cluster = look_at_cluster()
        cluster = replace(cluster, autoscales=False) if options.address is None else cluster
        resources, slots = capacity.fit_resources(sweep.spec.resources, cluster)
        together = sweep.spec.replicates.together
        settings = job.settings(resources)
        shares = _shares(job, settings, resources, together)
        if isinstance(shares, CardShares):
            resources["gpu"] = shares.smallest
            slots = cluster.trials_at_once(resources)
        settings = replace(settings, most_lanes=job.most_lanes(slots))
        # Pending trials make an autoscaler start nodes; on other clusters none needs to be pending. For cohorts, the
        # number of requested processes follows from the lanes that they would fill.
        pending = capacity.PENDING_TRIALS if cluster.autoscales else 1
        least = 1 if together else pending
        slots = max(slots, least)
        watch = capacity.CapacityWatch(
            try_cluster_state,
            resources,
            progress.say,
            at_least=least,
            processes=together,
            patience=options.wait_for_nodes,
        )
        metrics = job.metrics(gauges(METRICS), resources)

        def run(driver: Driver) -> None:
            if cluster.autoscales:
                watch.see(cluster, driver.steering)
            execute(
                driver,
                settings,
                resources=resources,
                pending=max(slots, pending),
                autoscales=cluster.autoscales,
                interrupts=job.interrupts,
            )
            if options.address:
                metrics.publish(running=False)

        yield Session(
            resources,
            slots,
            run,
            controllers=[watch] if options.address else [],
            sinks=[metrics] if options.address else [],
            shares=Shares(shares, resources["gpu"]),
            other_nodes=partial(other_nodes, resources),
        )


def _shares(
    job: Job, settings: TrialSettings, resources: Mapping[str, float], together: bool
) -> Callable[[int], float] | None:
    if together:  # a cohort fills its GPU share with lanes, so there is nothing to measure per configuration
        return (lambda index: resources["gpu"]) if 0 < resources["gpu"] < 1 else None
    if job.sweep.spec.resources.gpu == "auto" and 0 < resources["gpu"] < 1:
        job.progress.stage("measuring how much GPU memory the networks need")
    with card_probe(settings, resources["cpu"]) as probe:
        return shares_of(job.sweep, resources["gpu"], probe)


@contextmanager
def ray_session(address: str | None, cpus: int | None) -> Iterator[dict[str, float]]:
    """Connect to a Ray cluster, or start one on this machine, and yield its resources; leave it afterwards.

    Args:
        address: Address of a running cluster (`auto` for the one this machine belongs to), or `None` to start one.
        cpus: Cores that a started cluster can use; `None` for all.

    Raises RayUnavailable if no cluster answers at `address`, or none could be started.
    """
    if ray.is_initialized():
        yield dict(ray.cluster_resources())
        return
    if address is not None:
        capacity.check_answers(address)
    _connect(address, cpus)
    before = {name: getattr(class_cache, name) for name in TUNE_VARIABLES}
    vars(class_cache).update(TUNE_VARIABLES)
    try:
        yield dict(ray.cluster_resources())
    finally:
        ray.shutdown()
        vars(class_cache).update(before)


def _connect(address: str | None, cpus: int | None) -> None:
    """Join the cluster at `address`, or start one; retry if it starts too slowly."""
    # Pass "local": without an address Ray would join the cluster that was last started on this machine.
    local = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    where = local if address is None else {"address": address}
    for attempt in range(1, START_ATTEMPTS + 1):
        before = _children()
        try:
            # Trials write to the sweep's log themselves; Ray would print their output in the progress display.
            ray.init(**where, log_to_driver=False, logging_level="warning", **_search_path(address))
            return
        except Exception as error:  # Ray raises ConnectionError, RuntimeError and plain Exception alike
            ray.shutdown()
            _end(_children() - before)  # Ray leaves its processes running until this process ends
            if attempt == START_ATTEMPTS or address is not None or SLOW_START not in str(error):
                raise capacity.unavailable(address, error) from error


class _OnlyOurs(list[str]):
    """A module search path to which Ray cannot add the driver's working directory, which would come first.

    That folder can hold another person's results, with a `torch.py` in it. Ray 2.60 has no option for this
    (`ray._private.worker.connect` extends the list unconditionally).
    """

    def extend(self, folders: object) -> None:
        """Leave the list as it is."""


def _search_path(address: str | None) -> dict[str, JobConfig]:
    """Return options of `ray.init` that let workers find this project's packages, but no other folder of the driver."""
    if address is not None and address.startswith("ray://"):
        return {}  # a server elsewhere starts a client's job, and its folder holds no results
    config = JobConfig()
    installed = OUR_ROOT.name in ("site-packages", "dist-packages")
    config._py_driver_sys_path = _OnlyOurs([] if installed else [str(OUR_ROOT)])
    return {"job_config": config}


def _children() -> set[psutil.Process]:
    """Return this process's direct children; their children end with them."""
    return set(psutil.Process().children())


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
