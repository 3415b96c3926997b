"""Everything that can be said against a Kubernetes resource without a cluster: schemas, options, references."""

import copy
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.35"
RESOURCES = {"cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "storage"}
SECRETS = {"sweeper-ray-auth", "sweeper-postgres", "sweeper-s3"}
"""What the runbook tells to make by hand; no other secret may be named."""


Resource = dict[str, Any]


def crd_folder() -> Path | None:
    """Return the folder of KubeRay's resource definitions, if `KUBERAY_CRD_DIR` names one."""
    named = os.environ.get("KUBERAY_CRD_DIR")
    return Path(named) if named else None


def faults(resource: Resource) -> list[str]:
    """Return what is wrong with one resource, by its schema, with unknown fields being wrong."""
    name = f"{resource.get('kind')} {resource.get('metadata', {}).get('name', '')}"
    found = [f"{name}: {amount} is no resource" for amount in _amounts(resource) if amount not in RESOURCES]
    found += [f"{name}: ray start has no option --{o}" for o in _start_options(resource) if o not in _ray_start()]
    if str(resource.get("apiVersion", "")).startswith("ray.io/"):
        validator = _ray_validator(resource["kind"])
        return [*found, *(f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(resource))]
    try:
        kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError) as error:
        found.append(f"{name}: {error}")
    except (kubernetes_validate.SchemaNotFoundError, KeyError) as error:
        found.append(f"{name}: no such kind: {error}")
    return found


def reference_faults(resources: Sequence[Resource]) -> list[str]:
    """Return names that lead nowhere: of config maps, secrets, accounts, volumes, and selectors that select nothing."""
    names = {kind: {r["metadata"].get("name") for r in resources if r["kind"] == kind} for kind in _kinds(resources)}
    found = []
    pods = list(pod_templates(resources))
    labels = [pod.get("metadata", {}).get("labels", {}) for _, pod in pods]
    labels += [{"ray.io/is-ray-node": "yes"}, {"app.kubernetes.io/name": "kuberay-operator"}]  # KubeRay's own
    for owner, pod in pods:
        spec = pod["spec"]
        volumes = {volume["name"] for volume in spec.get("volumes", [])}
        volumes |= {claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", [])}
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            found += [f"{container['name']} mounts {v}, which is no volume" for v in sorted(mounted - volumes)]
        account = spec.get("serviceAccountName")
        if account is not None and account not in names.get("ServiceAccount", set()):
            found.append(f"{owner['metadata']['name']}: there is no account {account}")
    for key, value in _walk(list(resources)):
        if key in ("configMapRef", "configMap", "configMapKeyRef") and value["name"] not in names["ConfigMap"]:
            found.append(f"there is no config map {value['name']}")
        if key in ("secretRef", "secretKeyRef") and value["name"] not in SECRETS:
            found.append(f"{value['name']} is none of the secrets that the runbook makes")
        if key == "matchLabels" and not any(value.items() <= own.items() for own in labels):
            found.append(f"{value} selects no pod")
    for service in (r for r in resources if r["kind"] == "Service"):
        if not any(service["spec"]["selector"].items() <= own.items() for own in labels):
            found.append(f"service {service['metadata']['name']} selects no pod")
    return found


def pod_templates(resources: Sequence[Resource]) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """Yield (owner, pod template) of everything that makes pods."""
    for resource in resources:
        spec = resource.get("spec", {})
        cluster = spec.get("rayClusterSpec", spec)
        for group in [cluster.get("headGroupSpec"), *cluster.get("workerGroupSpecs", [])]:
            if group:
                yield resource, group["template"]
        if "template" in spec:
            yield resource, spec["template"]


def _kinds(resources: Sequence[Resource]) -> set[str]:
    return {resource["kind"] for resource in resources} | {"ConfigMap"}


def _walk(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield key, value
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def _amounts(resource: Resource) -> Iterator[str]:
    for key, value in _walk(resource):
        if key in ("limits", "requests") and isinstance(value, dict):
            yield from value


def _start_options(resource: Resource) -> Iterator[str]:
    for key, value in _walk(resource):
        if key == "rayStartParams":
            yield from value


@functools.cache
def _ray_start() -> frozenset[str]:
    from ray.scripts.scripts import start

    return frozenset(option.removeprefix("--") for p in start.params for option in p.opts)


@functools.cache
def _ray_validator(kind: str) -> Any:
    folder = crd_folder()
    assert folder is not None, "KUBERAY_CRD_DIR names no folder"
    definition = yaml.load((folder / f"ray.io_{kind.lower()}s.yaml").read_text(), Loader=yaml.CSafeLoader)
    versions = {version["name"]: version["schema"]["openAPIV3Schema"] for version in definition["spec"]["versions"]}
    schema = _closed(copy.deepcopy(versions["v1"]))
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {name: {} for name in ("name", "generateName", "namespace", "labels", "annotations")},
        "additionalProperties": False,
    }

    return jsonschema.Draft202012Validator(schema)


def _closed(node: Any) -> Any:
    """Forbid fields that a definition does not name; Kubernetes' own words for a number or text are translated."""
    if isinstance(node, dict):
        if (
            node.get("type") == "object"
            and "properties" in node
            and not node.get("x-kubernetes-preserve-unknown-fields")
        ):
            node.setdefault("additionalProperties", False)
        for key, value in node.items():
            node[key] = _closed(value)
    elif isinstance(node, list):
        return [_closed(value) for value in node]
    return node
