"""What `kustomize build` makes of the overlays here: only the features that they use, and an error for any other."""

import copy
from pathlib import Path
from typing import Any

import yaml

KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "patches", "generatorOptions", "configMapGenerator"}
WITHOUT_NAMESPACE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}

Resource = dict[str, Any]


def build(folder: Path) -> list[Resource]:
    """Return the resources of the kustomization in `folder`. Raises ValueError for what this does not understand."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(kustomization) - KNOWN
    if unknown:
        raise ValueError(f"{folder}: {', '.join(sorted(unknown))} is not understood")
    resources: list[Resource] = []
    for name in kustomization.get("resources", []):
        path = folder / name
        resources += build(path) if path.is_dir() else [r for r in yaml.safe_load_all(path.read_text()) if r]
    resources += [_config_map(folder, entry) for entry in kustomization.get("configMapGenerator", [])]
    resources = copy.deepcopy(resources)  # YAML's anchors share nodes that patches must not
    for resource in resources:
        if "namespace" in kustomization and resource["kind"] not in WITHOUT_NAMESPACE:
            resource["metadata"]["namespace"] = kustomization["namespace"]
        for image in kustomization.get("images", []):
            _rename_images(resource, image)
    for patch in kustomization.get("patches", []):
        matching = [r for r in resources if _is(r, patch["target"])]
        if not matching:
            raise ValueError(f"{folder}: nothing is {patch['target']}")
        for resource in matching:
            for operation in yaml.safe_load(patch["patch"]):
                _apply(resource, operation)
    return resources


def _config_map(folder: Path, entry: dict[str, Any]) -> Resource:
    data = {}
    for item in entry["files"]:
        key, _, path = item.rpartition("=")
        data[key or Path(path).name] = (folder / path).read_text()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"]}, "data": data}


def _is(resource: Resource, target: dict[str, str]) -> bool:
    return resource["kind"] == target["kind"] and resource["metadata"]["name"] == target["name"]


def _rename_images(node: Any, image: dict[str, str]) -> None:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("containers", "initContainers"):
                for container in value:
                    name, _, tag = container["image"].partition(":")
                    if name == image["name"]:
                        container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
            else:
                _rename_images(value, image)
    elif isinstance(node, list):
        for value in node:
            _rename_images(value, image)


def _apply(resource: Resource, operation: dict[str, Any]) -> None:
    """Apply one operation of a JSON patch (RFC 6902): `add` or `replace` in mappings, by index in lists."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    node: Any = resource
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]
    if not isinstance(node, dict) or operation["op"] not in ("add", "replace"):
        raise ValueError(f"{operation} is not understood")
    if operation["op"] == "replace" and last not in node:
        raise ValueError(f"{operation['path']} does not exist")
    node[last] = copy.deepcopy(operation["value"])
