"""Estimate a sweep on a cluster: concurrent trials, nodes and hours. Nothing is started.

Hours on GPUs follow from `sweeper.planning.costs` (operations divided by a GPU's speed), hours on cores from a
measurement on this machine. Trials that share a GPU are assumed to neither gain nor lose speed. A file describes the
cluster: a Ray launcher file, a manifest with a KubeRay RayCluster or RayJob, or the settings for Slurm (`slurm.yaml`).
"""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweeper.core.errors import SweeperError
from sweeper.core.labels import duration
from sweeper.execution.slurm.settings import SlurmSettings, read_settings, seconds_of
from sweeper.planning.costs import known_gpus, measured_plan, trials_each, with_estimate
from sweeper.planning.plan import Cost, Plan, PlanView, plan
from sweeper.space.configurations import configurations
from sweeper.space.spec import MAXIMUM_CONFIGURATIONS, SweepSpec

#: Annotation of a pod template that names its machine type. The GPU follows from the machine type.
MACHINE = "sweeper/machine"

#: A mapping in a YAML file. `read_cluster` reports missing and wrong fields in one message.
Document = Mapping[str, Any]

_UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind.

    Attributes:
        name: node type, or worker group.
        cpu, gpu: cores and GPUs of one node that are available to trials.
        most: largest number of nodes that the autoscaler starts.
        machine: machine type or GPU, if the file names it.
    """

    name: str
    cpu: float
    gpu: float
    most: int
    machine: str | None


@dataclass(frozen=True)
class ClusterFile:
    """A cluster as its file describes it.

    Attributes:
        workers: groups of worker nodes.
        most_workers: largest number of workers over all groups.
        jobs: (number of concurrent Slurm jobs, time limit of each job in hours); `None` without Slurm.
    """

    workers: Sequence[NodeGroup]
    most_workers: int
    jobs: tuple[int, float] | None = None

    @property
    def has_gpus(self) -> bool:
        """Whether a group has GPUs. If so, `gpu: auto` takes a share of one."""
        return any(group.gpu for group in self.workers)


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster's file.

    Raises:
        SweeperError: the file cannot be read, describes no known kind of cluster, or lacks a required field.

    Example:
        >>> path = Path("slurm.yaml")
        >>> _ = path.write_text("{workers: 4, gpus: 1, cpus: 8}")
        >>> read_cluster(path).most_workers
        4
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
        documents = [d for d in yaml.safe_load_all(path.read_text("utf-8")) if isinstance(d, dict)]
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        rule = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else f"is not valid YAML: {error}"
        raise SweeperError(f"{path} {rule}", "give a Ray launcher file or a KubeRay manifest") from None
    for document in documents:
        try:
            if "available_node_types" in document:
                return _launcher(document)
            if document.get("kind") == "RayCluster":
                return _kuberay(document["spec"])
            if document.get("kind") == "RayJob":
                return _kuberay(document["spec"]["rayClusterSpec"])
            if {"workers", "nodes"} & document.keys():
                return _slurm(read_settings(path, path)[0])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            remedy = "compare it with the examples in deploy/"
            raise SweeperError(f"{path} does not describe a cluster: {reason}", remedy) from None
    raise SweeperError(
        f"{path} is neither a Ray launcher file (available_node_types) nor a manifest with a RayCluster or RayJob",
        "compare it with the examples in deploy/ray and deploy/kubernetes",
    )


def _launcher(document: Document) -> ClusterFile:
    head = document["head_node_type"]
    groups = {name: _node_type(name, node, document) for name, node in document["available_node_types"].items()}
    most = int(document.get("max_workers", 2))  # Ray's own default
    del groups[head]  # the head runs the driver and no trials
    return ClusterFile(list(groups.values()), most)


def _node_type(name: str, node: Document, document: Document) -> NodeGroup:
    config, asked = node.get("node_config", {}), node.get("resources", {})
    machine = config.get("InstanceType") or config.get("machineType")  # AWS and Google
    most = int(node.get("max_workers", document.get("max_workers", 2)))
    return NodeGroup(name, float(asked.get("CPU", 0)), float(asked.get("GPU", 0)), most, machine)


def _slurm(asked: SlurmSettings) -> ClusterFile:
    # With `nodes`, one job holds all of them; with `workers`, each worker is a job.
    card, slots = asked.card or asked.gpu_type, asked.nodes or asked.workers or 0
    name = "node" if asked.nodes is not None else "job"
    group = NodeGroup(name, asked.cpus, asked.gpus, slots, card and card.upper())
    jobs = (1 if asked.nodes is not None else slots, seconds_of(asked.time) / 3600)
    return ClusterFile([group], slots, jobs)


def _kuberay(spec: Document) -> ClusterFile:
    workers = [_group(group["groupName"], group, int(group["maxReplicas"])) for group in spec["workerGroupSpecs"]]
    return ClusterFile(workers, sum(group.most for group in workers))


def _group(name: str, group: Document, most: int) -> NodeGroup:
    template = group["template"]
    limits = template["spec"]["containers"][0].get("resources", {}).get("limits", {})
    params = group.get("rayStartParams", {})
    # Same rules as KubeRay: Ray's own parameters override the container's limits, and cores are rounded down.
    cpu = float(params["num-cpus"]) if "num-cpus" in params else float(math.floor(quantity(limits.get("cpu", 0))))
    # Vendors name their GPUs nvidia.com/gpu, amd.com/gpu and so on.
    gpu = float(params.get("num-gpus", sum(quantity(v) for k, v in limits.items() if k.endswith("/gpu"))))
    selector = template["spec"].get("nodeSelector", {})
    machine = template.get("metadata", {}).get("annotations", {}).get(MACHINE)
    machine = machine or selector.get("node.kubernetes.io/instance-type")
    return NodeGroup(name, cpu, gpu, most, machine)


def quantity(text: object) -> float:
    """Convert a Kubernetes quantity to a number.

    Raises:
        ValueError: the text is not a quantity.

    Example:
        >>> quantity("500m"), quantity("2Gi")
        (0.5, 2147483648.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(text))
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return float(match[1]) * _UNITS[match[2]]


#: (Low, high) time until a trial's first step on a new node, which starts and fetches packages or its image.
NODE_START_HOURS = (2 / 60, 10 / 60)

#: Quotients such as 1 / 0.1 can round below the whole number.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RequestedNodes:
    """The nodes of one group that the autoscaler will request.

    Attributes:
        group: name of the group.
        machine: machine type or GPU, if known.
        nodes: number of nodes.
        trials_each: number of trials that run on each.
        cards: number of GPUs of all these nodes.
    """

    group: str
    machine: str | None
    nodes: int
    trials_each: int
    cards: float


@dataclass(frozen=True)
class ClusterPlan(PlanView):
    """The plan of a sweep on a cluster.

    Attributes:
        trial: resources of one trial, or of a process that trains several.
        at_once: number of trials, or of these processes, that run at once when all requested nodes are ready.
        nodes: requested nodes by group.
        hours: (low, high) time from the first node's start to the last trial's end; `None` if unknown.
        notes: assumptions behind the numbers, and what is missing.
        each: number of trials that a process trains at once.
    """

    trial: dict[str, float]
    at_once: int
    nodes: tuple[RequestedNodes, ...]
    hours: tuple[float, float] | None
    notes: tuple[str, ...]
    each: int = 1

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield trials at once, nodes and time."""
        needs = ", ".join(f"{amount:g} {name}" for name, amount in self.trial.items() if amount)
        what = f"processes at once, of up to {self.each} trials" if self.each > 1 else "trials at once"
        yield "on the cluster", f"{self.at_once:,} {what}, each with {needs}"
        unit = "processes" if self.each > 1 else "trials"
        for asked in self.nodes:
            machine = f" ({asked.machine})" if asked.machine else ""
            yield "nodes requested", f"{asked.nodes} × {asked.group}{machine}, {asked.trials_each:g} {unit} per node"
        if self.hours is not None:
            yield "time on the cluster", " to ".join(duration(3600 * hours) for hours in self.hours)

    def grounds(self) -> Iterator[str]:
        """Yield the assumptions behind the numbers, and what is missing."""
        yield from self.notes


def requested_nodes(trial: Mapping[str, float], trials: int, cluster: ClusterFile) -> tuple[RequestedNodes, ...]:
    """Return the nodes that the autoscaler requests for waiting trials, with groups in the order of the file.

    Args:
        trial: resources of one trial, which runs on one node.
        trials: number of trials that wait or run at once.
        cluster: cluster whose nodes are requested.

    Raises:
        SweeperError: no group's nodes fit a trial.

    Example:
        >>> cluster = ClusterFile([NodeGroup("workers", cpu=8, gpu=1, most=4, machine=None)], most_workers=4)
        >>> [asked] = requested_nodes({"cpu": 1, "gpu": 0.25}, 10, cluster)
        >>> asked.nodes, asked.trials_each
        (3, 4)
    """
    asked, left, nodes_left = [], trials, cluster.most_workers
    # Ray's autoscaler scores node types by how well they fit; the order of the file is a simplification.
    for group in cluster.workers:
        fits = [have / trial[name] for name, have in (("cpu", group.cpu), ("gpu", group.gpu)) if trial[name]]
        per_node = int(min(fits) + _ROUNDING)
        nodes = min(math.ceil(left / per_node), group.most, nodes_left) if per_node else 0
        if nodes > 0:
            asked.append(RequestedNodes(group.name, group.machine, nodes, per_node, group.gpu * nodes))
            left, nodes_left = max(0, left - nodes * per_node), nodes_left - nodes
    if not asked:
        groups = ", ".join(f"{g.name} has {g.cpu:g} CPU, {g.gpu:g} GPU" for g in cluster.workers) or "there are none"
        raise SweeperError(
            f"no worker node of the cluster fits a trial of {trial['cpu']:g} CPU, {trial['gpu']:g} GPU: {groups}",
            "lower `resources` in the search space (e.g. --set resources.gpu=0.25), or add larger workers to the file",
        )
    return tuple(asked)


def cluster_plan(spec: SweepSpec, cluster: Path) -> tuple[Plan, ClusterPlan]:
    """Plan a sweep on the cluster that a file describes.

    Returns:
        The sweep's own plan, and its plan on the cluster.

    Raises:
        SweeperError: the file cannot be used, or no node fits a trial.
    """
    described = read_cluster(cluster)
    trial = spec.resources.of_trial(gpus=described.has_gpus)
    # The driver submits no more than `max_concurrent` trials, so the autoscaler sees no more demand.
    limit = min(len(configurations(spec)), spec.max_concurrent or MAXIMUM_CONFIGURATIONS)

    def at_once(costs: Mapping[str, Cost]) -> int:
        waiting = math.ceil(limit / trials_each(spec, costs))
        return min(waiting, trials_on(requested_nodes(trial, waiting, described)))

    # A measurement on this machine says nothing about the cluster's GPUs.
    planned = with_estimate(spec, plan(spec, workers=at_once({}))) if trial["gpu"] else measured_plan(spec, at_once)
    per_process = trials_each(spec, planned.costs)
    return planned, plan_on_cluster(planned, trial, described, math.ceil(limit / per_process), per_process)


def trials_on(nodes: tuple[RequestedNodes, ...]) -> int:
    """Return the number of trials that run at once on all of these nodes."""
    return sum(asked.nodes * asked.trials_each for asked in nodes)


def plan_on_cluster(
    planned: Plan, trial: Mapping[str, float], cluster: ClusterFile, waiting: int | None = None, per_process: int = 1
) -> ClusterPlan:
    """Return the plan of a sweep on a cluster.

    Args:
        planned: the sweep's own plan.
        trial: resources of one trial.
        cluster: cluster on which it would run.
        waiting: number of trials, or of processes that train several, that wait or run at once; `None` means all
            trials.
        per_process: number of trials that a process trains at once.
    """
    waiting = planned.trials if waiting is None else waiting
    nodes = requested_nodes(trial, waiting, cluster)
    at_once = min(waiting, trials_on(nodes))
    work, notes = _hours(planned, waiting, trial, nodes)
    # Nodes start at the same time, so the start is counted once.
    hours = (work[0] + NODE_START_HOURS[0], work[1] + NODE_START_HOURS[1]) if work else None
    if cluster.jobs is not None and hours is not None:
        notes += _jobs(hours, cluster.jobs, cluster.workers[0], sum(asked.nodes for asked in nodes))
    return ClusterPlan(dict(trial), at_once, nodes, hours, tuple(notes), per_process)


def _jobs(hours: tuple[float, float], jobs: tuple[int, float], group: NodeGroup, busy: int) -> Iterator[str]:
    """Yield the number of Slurm jobs that a sweep of (low, high) hours needs, and the number of idle jobs."""
    at_once, limit = jobs
    counts = dict.fromkeys(f"{math.ceil(total / limit) * at_once:,}" for total in hours)
    # Slurm bills allocated GPUs, including idle ones.
    gpu_hours = " to ".join(f"{total * group.gpu * group.most:,.1f}" for total in hours)
    used = f", {gpu_hours} GPU-hours" if group.gpu else ""
    yield f"jobs of {duration(3600 * limit)}: {' to '.join(counts)}{used}; each continues where the last one stopped"
    if busy < group.most:
        yield f"{group.most - busy} of {group.most} {group.name}s would have no trial: request fewer"


def _hours(
    planned: Plan, waiting: int, trial: Mapping[str, float], nodes: tuple[RequestedNodes, ...]
) -> tuple[tuple[float, float] | None, list[str]]:
    """Return the (low, high) hours of training, and notes on the assumptions behind them."""
    if not trial["gpu"]:
        if planned.seconds is None:
            return None, [planned.note or "No estimate of hours: nothing was measured"]
        return (planned.seconds.low / 3600, planned.seconds.high / 3600), [planned.note] if planned.note else []
    if planned.estimate is None:
        return None, ["No estimate of hours: the data set's size is unknown without its files"]
    speed_low, speed_high, known = 0.0, 0.0, f"known: {', '.join(planned.estimate.gpu_hours)}"
    gpu_of = {machine: gpu.name for gpu in known_gpus()[0] for machine in gpu.machines}
    for asked in nodes:
        hours = planned.estimate.gpu_hours.get(gpu_of.get(asked.machine or "", asked.machine or ""))
        if hours is None:
            which = f"which GPU {asked.machine or 'a ' + asked.group} has"
            return None, [f"No estimate of hours: the cluster's file does not say {which}; {known}"]
        busy = min(asked.cards, waiting * trial["gpu"])
        # Speeds in sweeps per hour are added over groups of different GPUs. The inverse of the sum is the time.
        speed_low, speed_high = speed_low + busy / hours[0], speed_high + busy / hours[1]
    return (1 / speed_low, 1 / speed_high), [f"hours: {planned.estimate.assumption}; GPUs idle during the last trials"]
