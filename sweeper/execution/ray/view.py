"""Ray's view of the cluster that this process is connected to.

Ray reads its environment when it is imported: call `sweeper.core.processes.prepare` before this module.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.exceptions import RayError
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_list,
    _internal_kv_put,
)
from ray.util.metrics import Gauge

from sweeper.execution.controllers.capacity import ClusterView, view_of_first_autoscaler

STATUS_SECONDS = 5.0
"""How long the head may take to answer; it takes milliseconds."""


def look_at_cluster() -> ClusterView:
    """Return what the cluster has and what its autoscaler, of either version, is about to add.

    Version 2 answers the status call of Ray's own `ray status`; version 1 leaves JSON in the head's store.
    """
    nodes = tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])
    reply = GetClusterStatusReply()
    address = ray.get_runtime_context().gcs_address
    reply.ParseFromString(_head(address).get_cluster_status(timeout_s=STATUS_SECONDS))
    if reply.autoscaling_state.autoscaler_state_version:
        return _view_of_second_autoscaler(nodes, reply)
    status = _internal_kv_get(b"__autoscaling_status")
    return view_of_first_autoscaler(nodes, json.loads(status) if status else {})


def glance_at_cluster() -> ClusterView | None:
    """Return the same, or `None` where a busy head does not answer in time: a running sweep looks again later."""
    try:
        return look_at_cluster()
    except RayError:
        return None


def other_nodes(resources: Mapping[str, float], workers: int, avoided: AbstractSet[str]) -> bool:
    """Return whether the living nodes that are not in `avoided` hold a trial, whose `workers` need `resources` each."""
    others = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"] and node["NodeID"] not in avoided]
    return ClusterView(tuple(others)).trials_at_once(resources, workers) > 0


@cache
def _head(address: str) -> Any:
    """Return a connection to the head, one for all looks."""
    return GcsClient(address)


class GcsStore:
    """Where the drivers of a cluster's sweeps leave word for each other: the head's key-value store."""

    PREFIX = "sweeper/"

    def write(self, name: str, text: str) -> None:
        """Leave `text` under `name`."""
        _internal_kv_put(f"{self.PREFIX}{name}".encode(), text.encode(), overwrite=True)

    def read(self) -> dict[str, str]:
        """Return all texts by name."""
        keys = [key.decode() for key in _internal_kv_list(self.PREFIX.encode())]
        found = {key.removeprefix(self.PREFIX): _internal_kv_get(key.encode()) for key in keys}
        return {name: text.decode() for name, text in found.items() if text is not None}

    def remove(self, name: str) -> None:
        """Take the text under `name` away."""
        _internal_kv_del(f"{self.PREFIX}{name}".encode())


def _view_of_second_autoscaler(nodes: tuple[Mapping[str, float], ...], reply: Any) -> ClusterView:
    state = reply.autoscaling_state
    starting: Counter[str] = Counter()
    for asked in state.pending_instance_requests:
        starting[asked.ray_node_type_name] += asked.count
    for instance in state.pending_instances:
        starting[instance.ray_node_type_name] += 1
    requests = [*state.infeasible_resource_requests]
    for gang in state.infeasible_gang_resource_requests:
        requests += gang.requests
    failures = [f"{failed.ray_node_type_name}: {failed.reason}" for failed in state.failed_instance_requests]
    # Without an autoscaler's configuration nodes have no type.
    autoscales = any(node.ray_node_type_name for node in reply.cluster_resource_state.node_states)
    bundles = tuple(dict(request.resources_bundle) for request in requests)
    return ClusterView(nodes, autoscales, starting, bundles, tuple(failures))


def gauges(metrics: Mapping[str, tuple[str, tuple[str, ...]]]) -> Callable[[str, Mapping[str, str], float], None]:
    """Return what sets Ray's gauges: a function of a metric's name, its labels and its value.

    Args:
        metrics: name → description and labels.
    """
    made = {name: Gauge(name, description=text, tag_keys=labels) for name, (text, labels) in metrics.items()}

    def publish(name: str, labels: Mapping[str, str], value: float) -> None:
        made[name].set(value, tags=dict(labels))

    return publish
