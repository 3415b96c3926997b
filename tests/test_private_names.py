"""What the program takes from inside Ray and MLflow, which may change in any release: all of it, in one list.

A test fails when a name is gone, when the program takes another one, or when `pyproject.toml` lets in the next major
release. Then look for a public way first.
"""

import importlib
import re
import tomllib
from operator import attrgetter

import pytest

from tests.import_graph import FILES, ROOT, imported

PRIVATE = {
    ("ray._private.state", "state"): "get_draining_nodes",  # nodes about to leave: no public call names them
    ("ray._raylet", "GcsClient"): "",  # what `ray status` shows of the autoscaler's version 2
    ("ray.core.generated.autoscaler_pb2", "GetClusterStatusReply"): "AUTOSCALING_STATE_FIELD_NUMBER",  # its answer
    ("ray.experimental.internal_kv", "_internal_kv_get"): "",  # what version 1 of the autoscaler says
    ("ray.air.execution._internal", "RayActorManager"): "_actor_task_failed",  # a process killed for want of memory
    ("ray.tune.execution", "tune_controller"): "RayActorManager",  # where Tune looks it up
    ("ray.tune.execution", "class_cache"): "ENV_VARS_TO_PROPAGATE",  # credentials that Tune would spread
    ("ray.dashboard.modules.dashboard_sdk", "AuthenticationError"): "",  # a job server that asks for a token
}
"""Module and name → the attribute of it that is used."""

INSIDE = re.compile(
    r"ray\..*(\b_|core\.generated|experimental|tune\.execution|dashboard)|mlflow\.(.*\b_|store|utils|server\.)"
)
"""Modules of Ray and MLflow that are no public interface."""


def test_the_list_is_complete():
    taken = {found for path in FILES for found in imported(path) if INSIDE.match(f"{found[0]}.{found[1]}")}
    assert taken == set(PRIVATE)


@pytest.mark.parametrize(("module", "name"), PRIVATE, ids=[".".join(each) for each in PRIVATE])
def test_the_installed_release_still_has_the_name(module: str, name: str):
    package = importlib.import_module(module)
    found = getattr(package, name, None) or importlib.import_module(f"{module}.{name}")
    attribute = PRIVATE[module, name]
    assert not attribute or attrgetter(attribute)(found) is not None


def test_the_next_major_releases_are_not_let_in():
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for package in ("ray[", "mlflow"):
        (line,) = [each for each in wanted if each.startswith(package)]
        assert re.search(r"<\d+$", line), f"{line} has no upper bound"
