"""What a cluster's file says it can grow to: a Ray launcher file, or a manifest with a KubeRay RayCluster or RayJob."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweeper.core.errors import SweeperError

MACHINE = "sweeper/machine"
"""The annotation of a pod template that names the machine its pods run on, for its price."""

Document = Mapping[str, Any]
"""A mapping of a YAML file: `read_cluster` turns whatever is missing or of another kind into one message."""

_UNITS = {"m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one kind.

    Attributes:
        name: the node type, or worker group.
        cpu, gpu: cores and GPUs of one node that trials may take.
        most: how many the autoscaler may start.
        machine: the machine type, where the file names it.
        spot: whether the file asks for spot capacity; `None` where it does not tell.
    """

    name: str
    cpu: float
    gpu: float
    most: int
    machine: str | None
    spot: bool | None


@dataclass(frozen=True)
class ClusterFile:
    """A cluster as its file describes it: head, workers, the most of them over all groups, and when idle ones go."""

    head: NodeGroup
    workers: Sequence[NodeGroup]
    most_workers: int
    idle_minutes: float


def read_cluster(path: Path) -> ClusterFile:
    """Read a cluster's file.

    Raises SweeperError where there is none, where it is neither kind, or where a field that is needed is missing.
    """
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is not a regular file")
        documents = [d for d in yaml.safe_load_all(path.read_text("utf-8")) if isinstance(d, dict)]
    except OSError as error:
        raise SweeperError(
            f"{path} cannot be read: {error.strerror}", "give a Ray launcher file or a KubeRay manifest"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SweeperError(
            f"{path} is not valid YAML: {error}", "give a Ray launcher file or a KubeRay manifest"
        ) from None
    for document in documents:
        try:
            if "available_node_types" in document:
                return _launcher(document)
            if document.get("kind") == "RayCluster":
                return _kuberay(document["spec"])
            if document.get("kind") == "RayJob":
                return _kuberay(document["spec"]["rayClusterSpec"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise SweeperError(f"{path} does not describe a cluster: {reason}", "see deploy/ for examples") from None
    raise SweeperError(
        f"{path} is neither a Ray launcher file (available_node_types) nor a manifest with a RayCluster or RayJob",
        "see deploy/ray and deploy/kubernetes for examples",
    )


def _launcher(document: Document) -> ClusterFile:
    head = document["head_node_type"]
    groups = {name: _node_type(name, node, document) for name, node in document["available_node_types"].items()}
    most = int(document.get("max_workers", 2))  # Ray's own default
    return ClusterFile(groups.pop(head), list(groups.values()), most, float(document.get("idle_timeout_minutes", 5)))


def _node_type(name: str, node: Document, document: Document) -> NodeGroup:
    config, asked = node.get("node_config", {}), node.get("resources", {})
    spot = "InstanceMarketOptions" in config or any(
        part.get("preemptible") or part.get("provisioningModel") == "SPOT" for part in config.get("scheduling", [])
    )
    machine = config.get("InstanceType") or config.get("machineType")
    most = int(node.get("max_workers", document.get("max_workers", 2)))
    return NodeGroup(name, float(asked.get("CPU", 0)), float(asked.get("GPU", 0)), most, machine, spot)


def _kuberay(spec: Document) -> ClusterFile:
    workers = [_group(group["groupName"], group, int(group["maxReplicas"])) for group in spec["workerGroupSpecs"]]
    idle = spec.get("autoscalerOptions", {}).get("idleTimeoutSeconds", 60) / 60  # KubeRay's own default
    head = _group("head", spec["headGroupSpec"], 1)
    return ClusterFile(head, workers, sum(group.most for group in workers), idle)


def _group(name: str, group: Document, most: int) -> NodeGroup:
    template = group["template"]
    limits = template["spec"]["containers"][0].get("resources", {}).get("limits", {})
    params = group.get("rayStartParams", {})
    cpu = float(params["num-cpus"]) if "num-cpus" in params else float(math.floor(quantity(limits.get("cpu", 0))))
    gpu = float(params.get("num-gpus", sum(quantity(v) for k, v in limits.items() if k.endswith("/gpu"))))
    selector = template["spec"].get("nodeSelector", {})
    machine = template.get("metadata", {}).get("annotations", {}).get(MACHINE)
    machine = machine or selector.get("node.kubernetes.io/instance-type")
    capacity = {str(v).lower() for k, v in selector.items() if "capacity" in k.lower() or k.endswith("gke-spot")}
    spot = bool(capacity & {"spot", "true"}) if capacity else None
    return NodeGroup(name, cpu, gpu, most, machine, spot)


def quantity(text: object) -> float:
    """Return a Kubernetes quantity as a number: `500m` is 0.5, `2Gi` is 2147483648. Raises ValueError."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", str(text))
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return float(found[1]) * _UNITS[found[2]]
