"""Ray's launcher files, checked with Ray's own schema and code, and node settings with the cloud's own shapes."""

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

LAUNCHER = Path(__file__).parents[2] / "deploy/ray"
FILES = sorted(LAUNCHER.glob("*.yaml"))

GCP_NODE: dict[str, Any] = {
    # The fields of Compute Engine's instances.insert that these files use, each with its own.
    "machineType": {},
    "disks": {"boot": {}, "autoDelete": {}, "type": {}, "initializeParams": {"diskSizeGb": {}, "sourceImage": {}}},
    "serviceAccounts": {"email": {}, "scopes": {}},
    "scheduling": {"provisioningModel": {}, "instanceTerminationAction": {}, "onHostMaintenance": {}},
}
AUTOSCALER_FIELDS = {"region", "availability_zone", "cache_stopped_nodes", "use_internal_ips", "project_id", "type"}


def faults(document: Any) -> list[str]:
    """Return what is wrong with a launcher file: Ray's schema, Ray's checks, and the cloud's node settings."""
    import ray
    from ray.autoscaler._private.util import prepare_config, validate_config

    schema = json.loads((Path(ray.__file__).parent / "autoscaler/ray-schema.json").read_text())
    try:
        jsonschema.validate(document, schema)
        prepared = prepare_config(document)
        validate_config(prepared)
    except Exception as error:  # Ray raises whatever it meets: KeyError, ValueError, ValidationError …
        return [f"{type(error).__name__}: {error}"]
    found = [f"provider: {key} is unknown" for key in document["provider"] if key not in AUTOSCALER_FIELDS]
    for name, node in document["available_node_types"].items():
        found += [f"{name}: {key} is no resource" for key in node["resources"] if key not in ("CPU", "GPU")]
        check = _aws_faults if document["provider"]["type"] == "aws" else _gcp_faults
        found += [f"{name}: {fault}" for fault in check(node["node_config"])]
    commands = [line for key, lines in prepared.items() if key.endswith("_commands") for line in lines]
    nightly = [line for line in commands if "ray-wheels" in line or "nightly" in line]
    found += [f"a nightly build is installed: {line}" for line in nightly]
    if not any("constraints.txt" in line for line in prepared["setup_commands"]):
        found.append("nothing installs the pinned release")
    return found


def _aws_faults(config: dict[str, Any]) -> list[str]:
    """Check a node's settings against the shape of EC2's RunInstances, as the client that sends them has it."""
    from botocore.validate import ParamValidator

    report = ParamValidator().validate({"MinCount": 1, "MaxCount": 1, **config}, _run_instances())
    return [report.generate_report()] if report.has_errors() else []


@functools.cache
def _run_instances() -> Any:
    import botocore.session

    return botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape


def _gcp_faults(node: Any, known: dict[str, Any] = GCP_NODE, path: str = "") -> list[str]:
    if isinstance(node, list):
        return [fault for value in node for fault in _gcp_faults(value, known, path)]
    if not isinstance(node, dict):
        return []
    return [
        fault
        for key, value in node.items()
        for fault in (
            [f"{path}{key} is unknown"] if key not in known else _gcp_faults(value, known[key], f"{path}{key}.")
        )
    ]


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_valid(path: Path) -> None:
    assert faults(_load(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_head_is_on_demand_and_workers_are_spot_from_zero(path: Path) -> None:
    document = _load(path)
    head, worker = (document["available_node_types"][name] for name in ("head", "gpu_spot"))
    assert document["head_node_type"] == "head"
    assert head["resources"] == {"CPU": 0}, "trials never land on the head"
    assert (worker["min_workers"], worker["resources"]["GPU"]) == (0, 1)
    assert 0 < document["idle_timeout_minutes"] <= 15
    assert "spot" not in json.dumps(head).lower()
    assert "spot" in json.dumps(worker["node_config"]).lower()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_node_asks_for_the_token_and_none_holds_a_key(path: Path) -> None:
    document, text = _load(path), path.read_text()
    for start in (document["head_start_ray_commands"][-1], document["worker_start_ray_commands"][-1]):
        assert "RAY_AUTH_MODE=token" in start
        assert "--metrics-export-port=8080" in start
    assert "/home/ubuntu/.ray/auth_token" in document["file_mounts"]
    assert "AKIA" not in text
    assert "PRIVATE KEY" not in text
    assert "--dashboard-host=127.0.0.1" in document["head_start_ray_commands"][-1], "reached by ray dashboard's tunnel"
