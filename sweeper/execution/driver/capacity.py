"""Count the trials that fit on a Ray cluster, and wait while an autoscaler starts nodes.

A cluster that scales from zero has no node when a sweep begins; the waiting trials make it start some. So a sweep
starts anyway, says what it waits for, and follows nodes as they come and go. It gives up after some time, or earlier if
the autoscaler reports that none of its node types can hold a trial.

Does not import Ray, so that a cluster's address can be checked before anything is started.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.execution.driver.steering import Steering
from sweeper.space.spec import Resources
from trainables.worker.trial_reports import Reason

#: Trials kept pending on an autoscaled cluster, so that the autoscaler sees the demand. Ray Tune keeps as many for its
#: own searchers (`_get_max_pending_trials`, Ray 2.60).
PENDING_TRIALS = 200

#: Seconds between two checks of the cluster; the autoscaler itself works every five seconds.
LOOK_SECONDS = 2.0

#: Number of checks in a row that must find no node type for a trial before the sweep gives up. Version 2 of the
#: autoscaler also reports this for trials beyond its maximum number of nodes, so it counts only if there is no node and
#: none is starting.
INFEASIBLE_LOOKS = 15

#: Seconds to wait for a first node: GPU nodes take 2 to 10 minutes to start, spot capacity can take longer.
PATIENCE_SECONDS = 1800.0

#: Prefix of the node types of a cluster without an autoscaler: one type per node, named after it.
_READ_ONLY = "node_"

#: Added before rounding down: three trials with 1/3 of a GPU fit, although 1 / (1/3) can be 2.999….
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ClusterView:
    """Resources of a Ray cluster, and the nodes that its autoscaler is starting.

    Attributes:
        nodes: Resources of each living node, `{"CPU": 8.0, "GPU": 1.0, …}`.
        autoscales: Whether an autoscaler can start nodes.
        starting: Node type → number of nodes that are starting.
        infeasible: Requested bundles of resources that no node type can hold.
        failures: Reasons why nodes could not be started, one sentence each.
    """

    nodes: tuple[Mapping[str, float], ...]
    autoscales: bool = False
    starting: Mapping[str, int] = field(default_factory=dict)
    infeasible: tuple[Mapping[str, float], ...] = ()
    failures: tuple[str, ...] = ()

    def total(self, name: str) -> float:
        """Return the sum of a resource over all nodes."""
        return sum(node.get(name, 0.0) for node in self.nodes)

    def trials_at_once(self, resources: Mapping[str, float]) -> int:
        """Return how many trials with these `resources` fit; a trial cannot span nodes."""
        needs = {name.upper(): amount for name, amount in resources.items() if amount}
        return sum(
            int(min(node.get(name, 0.0) / amount for name, amount in needs.items()) + _ROUNDING) for node in self.nodes
        )


def view_of_first_autoscaler(nodes: tuple[Mapping[str, float], ...], status: Mapping[str, Any]) -> ClusterView:
    """Build the view from the JSON that version 1 of Ray's autoscaler publishes under `__autoscaling_status`.

    A cluster without an autoscaler publishes it as well, with one node type per node. Version 1 does not report
    infeasible requests.
    """
    report = status.get("autoscaler_report", {})
    types = {*report.get("active_nodes", {}), *report.get("pending_launches", {})}
    starting = Counter(report.get("pending_launches", {}))
    starting.update(node_type for _, node_type, _ in report.get("pending_nodes", []))
    known = report.get("node_availability_summary", {}).get("node_availabilities", {})
    failures = [
        f"{node_type}: {(summary.get('unavailable_node_information') or {}).get('description', 'unavailable')}"
        for node_type, summary in known.items()
        if not summary.get("is_available", True)
    ]
    autoscales = any(not node_type.startswith(_READ_ONLY) for node_type in types)
    return ClusterView(nodes, autoscales, starting, (), tuple(failures))


@dataclass(eq=False)
class CapacityWatch:
    """Follows the cluster and tells the driver how many trials fit.

    Attributes:
        look: Function that returns the current view, or `None` if it is not available now.
        resources: Resources of one trial.
        tell: Function that shows a sentence to the user; called only when the sentence changes.
        at_least: Smallest number of trials at once to report, for a cluster that can grow.
        processes: Whether a slot is a process that trains several trials.
        patience: Seconds after which the sweep is stopped if no node can hold a trial.
        clock: Clock in seconds.
    """

    look: Callable[[], ClusterView | None]
    resources: Mapping[str, float]
    tell: Callable[[str], None]
    _: KW_ONLY
    at_least: int = 1
    processes: bool = False
    patience: float = PATIENCE_SECONDS
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Start waiting for a first node."""
        self._looked = self._could_run = self.clock()
        self._infeasible, self._told = 0, ""

    def tick(self, steering: Steering) -> None:
        """Check the cluster if a check is due, and report changes to driver and user."""
        now = self.clock()
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            view = self.look()
            if view is not None:
                self.see(view, steering)

    def see(self, view: ClusterView, steering: Steering) -> None:
        """Process a view of the cluster."""
        now, slots = self.clock(), view.trials_at_once(self.resources)
        waiting = "" if slots else waiting_for(view, self.resources)
        said = waiting or running_on(view, slots, processes=self.processes)
        if said != self._told:
            self._told = said
            self.tell(said)
        if slots:
            steering.slots, self._could_run = max(slots, self.at_least), now
        wanted = {name.upper(): amount for name, amount in self.resources.items() if amount}
        refused = not slots and not view.starting and any(dict(bundle) == wanted for bundle in view.infeasible)
        self._infeasible = self._infeasible + 1 if refused else 0
        if self._infeasible >= INFEASIBLE_LOOKS:
            steering.ask_to_stop(Reason("no_node_type", {"needs": _amounts(wanted)}))
        elif now - self._could_run >= self.patience:
            said = view.failures[-1] if view.failures else ""
            steering.ask_to_stop(Reason("no_node", {"patience": self.patience}, said))


def waiting_for(view: ClusterView, resources: Mapping[str, float]) -> str:
    """Describe what a sweep waits for if no trial fits: `waiting for nodes: a trial needs 1 CPU, 1 GPU; …`."""
    needs = {name.upper(): amount for name, amount in resources.items() if amount}
    have = _amounts({name: view.total(name) for name in needs})
    text = f"waiting for nodes: a trial needs {_amounts(needs)}, the cluster has {have}"
    if view.infeasible and not view.starting:
        return f"{text}; the autoscaler has no node type for {_amounts(view.infeasible[0])}"
    if not view.starting and view.failures:
        return f"{text}; the autoscaler could not start any: {view.failures[-1]}"
    return f"{text}; {_starting(view)}"


def running_on(view: ClusterView, slots: int, *, processes: bool = False) -> str:
    """Describe what a sweep runs on: `2 trials at once on 2 nodes; starting 1 worker`."""
    # A head node often offers no CPUs.
    workers = sum(1 for node in view.nodes if node.get("CPU", 0.0) > 0)
    unit = ("process", "processes") if processes else ("trial", "trials")
    text = f"{slots} {unit[slots != 1]} at once on {workers} node{'s' if workers != 1 else ''}"
    return f"{text}; {_starting(view)}" if view.starting else text


def _starting(view: ClusterView) -> str:
    if not view.starting:
        return "none is being started yet"
    return "starting " + ", ".join(f"{count} {name}" for name, count in sorted(view.starting.items()))


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def fit_resources(asked: Resources, cluster: ClusterView) -> tuple[dict[str, float], int]:
    """Return a trial's resources and how many trials fit on the cluster now; 0 if only an autoscaler can make room.

    With `gpu: auto`, a trial takes a quarter of a GPU, if there is one, until its memory is measured.
    Raises SweeperError if no trial fits and no autoscaler could change that.
    """
    if asked.gpu == "auto" and cluster.autoscales and not cluster.total("GPU"):
        raise SweeperError(
            "resources.gpu is auto, but nobody knows yet whether the autoscaler will start nodes with GPUs",
            "set what a trial needs: --set resources.gpu=0.25 for a quarter of a GPU, or --set resources.gpu=0",
        )
    resources = asked.of_trial(gpus=cluster.total("GPU"))
    slots = cluster.trials_at_once(resources)
    if not slots and not cluster.autoscales:
        have = _amounts({name: cluster.total(name.upper()) for name in resources})
        raise SweeperError(
            f"no trial fits: a trial needs {_amounts(resources)}, the cluster has {have}",
            "lower `resources` in the search space (e.g. --set resources.gpu=0), or use a larger cluster",
        )
    return resources, slots


#: Seconds that a cluster's head has to accept a connection; Ray itself would try for minutes.
ANSWER_SECONDS = 10.0

#: Scheme of addresses of Ray's client server, which accepts connections as a head does.
CLIENT = "ray://"


class RayUnavailable(SweeperError):  # noqa: N818 - the name says what is unavailable
    """Ray could not be started or joined; all results so far are kept."""

    exit_code = 1


def check_answers(address: str) -> None:
    """Raise RayUnavailable if `address` is not a cluster's, or names a host and port where nothing answers."""
    scheme, _, rest = address.partition("://")
    if rest and f"{scheme}://" != CLIENT:
        raise unavailable(address, ValueError(f"{scheme}:// is not an address that a driver can join"))
    place = address.removeprefix(CLIENT).rstrip("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return  # such as `auto`: only Ray can resolve it
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise unavailable(address, error) from error


def unavailable(address: str | None, error: Exception) -> RayUnavailable:
    """Return the error for a cluster that cannot be joined at `address`, or started, because of `error`."""
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    if address is None:
        return RayUnavailable(
            f"Ray could not be started on this machine: {said}",
            "check with `sweeper doctor` whether the machine is overloaded or out of memory or disk space",
        )
    return RayUnavailable(
        f"no Ray cluster could be joined at {address}: {said}",
        "give the address and port that `ray start --head` printed (port 6379 by default), "
        "or omit --ray to start a cluster on this machine",
    )
