"""The Kubernetes files, checked without a cluster."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes import crd_folder, faults, pod_templates, reference_faults
from tests.deploy.kustomize import build
from tests.release.check_release import VERSION

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("local", "spot")
FILES = sorted(
    path
    for path in [*KUBERNETES.rglob("*.yaml"), DEPLOY / "monitoring/prometheus.yaml", DEPLOY / "monitoring/grafana.yaml"]
    if path.name != "kustomization.yaml"
)


def _resources(path: Path) -> list[dict[str, Any]]:
    """Return a file's resources, those of KubeRay only where its definitions are there to hold them against."""
    found = [resource for resource in yaml.safe_load_all(path.read_text()) if resource]
    ray = [r for r in found if r["apiVersion"].startswith("ray.io/")]
    if ray and crd_folder() is None:
        pytest.skip(f"{path.name}: KUBERAY_CRD_DIR names no folder with KubeRay's resource definitions")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_valid(path: Path) -> None:
    assert [fault for resource in _resources(path) for fault in faults(resource)] == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_hold_together(overlay: str) -> None:
    resources = build(KUBERNETES / "overlays" / overlay)
    assert reference_faults(resources) == []
    ours = [r for r in resources if not r["apiVersion"].startswith("ray.io/") or crd_folder()]
    assert [fault for resource in ours for fault in faults(resource)] == []
    assert {r["metadata"]["namespace"] for r in resources if r["kind"] != "Namespace"} == {"sweeper"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_small_resolver_agrees_with_kustomize(overlay: str) -> None:
    """Against kubectl's own where this machine has one; everywhere, that patches and images arrived."""
    built = {(r["kind"], r["metadata"]["name"]): r for r in build(KUBERNETES / "overlays" / overlay)}
    worker = built["RayCluster", "sweeper"]["spec"]["workerGroupSpecs"][0]
    image = worker["template"]["spec"]["containers"][0]["image"]
    assert (worker["groupName"], worker["maxReplicas"], image) == {
        "local": ("cpu", 2, f"calibration-sweeper:{VERSION}-cpu"),
        "spot": ("gpu", 16, f"registry.example.com/calibration-sweeper:{VERSION}-cuda"),
    }[overlay]
    kubectl = shutil.which("kubectl")
    if kubectl is not None:
        command = [kubectl, "kustomize", str(KUBERNETES / "overlays" / overlay)]
        text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        theirs = {(r["kind"], r["metadata"]["name"]): r for r in yaml.safe_load_all(text)}
        assert theirs == built


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_run_locked_with_limits_and_probes(overlay: str) -> None:
    for owner, pod in pod_templates(build(KUBERNETES / "overlays" / overlay)):
        spec, name = pod["spec"], owner["metadata"]["name"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
            assert {"cpu", "memory"} <= set(container["resources"]["limits"]), name
            assert ":" in container["image"], f"{name}: {container['image']} is not pinned"
            assert not container["image"].endswith(":latest"), name
        for container in spec["containers"]:
            assert "readinessProbe" in container, name
            assert "livenessProbe" in container, name


def test_no_secret_is_written_down() -> None:
    for overlay in OVERLAYS:
        for resource in build(KUBERNETES / "overlays" / overlay):
            assert resource["kind"] != "Secret"
            for _, pod in pod_templates([resource]):
                for container in pod["spec"]["containers"]:
                    for variable in container.get("env", []):
                        secret = any(word in variable["name"] for word in ("PASSWORD", "TOKEN", "SECRET", "KEY"))
                        assert not secret or "secretKeyRef" in variable["valueFrom"], variable["name"]


def test_the_cluster_scales_from_zero_and_spares_the_head() -> None:
    cluster = yaml.safe_load((KUBERNETES / "base/raycluster.yaml").read_text())["spec"]
    assert cluster["enableInTreeAutoscaling"] is True
    assert cluster["autoscalerOptions"]["version"] == "v2"
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["authOptions"]["mode"] == "token"
    assert all(group["minReplicas"] == group["replicas"] == 0 for group in cluster["workerGroupSpecs"])
    spot = {(r["kind"], r["metadata"]["name"]): r for r in build(KUBERNETES / "overlays/spot")}["RayCluster", "sweeper"]
    assert spot["spec"]["headGroupSpec"]["template"]["spec"]["nodeSelector"] == {
        "karpenter.sh/capacity-type": "on-demand"
    }
    assert spot["spec"]["workerGroupSpecs"][0]["template"]["spec"]["nodeSelector"] == {
        "karpenter.sh/capacity-type": "spot"
    }


def test_the_job_has_the_same_cluster_and_leaves_nothing() -> None:
    job = yaml.safe_load((KUBERNETES / "jobs/rayjob.yaml").read_text())["spec"]
    cluster = yaml.safe_load((KUBERNETES / "base/raycluster.yaml").read_text())["spec"]
    assert job["rayClusterSpec"] == cluster
    assert job["shutdownAfterJobFinishes"] is True
    assert job["ttlSecondsAfterFinished"] > 0
    assert job["backoffLimit"] >= 1
    assert "sweeper resume" in job["entrypoint"], "a second try takes up what the first left"


def test_versions_are_those_that_were_tested_together() -> None:
    pins = dict(
        line.split("==") for line in (DEPLOY.parent / "constraints.txt").read_text().splitlines() if "==" in line
    )
    cluster = yaml.safe_load((KUBERNETES / "base/raycluster.yaml").read_text())["spec"]
    assert cluster["rayVersion"] == pins["ray"]
