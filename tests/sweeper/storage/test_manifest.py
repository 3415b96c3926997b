"""A manifest says what it takes to run a sweep again, and no secret."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys

import pytest

from sweeper.space.loading import build_spec
from sweeper.storage import manifest as module
from sweeper.storage.manifest import PACKAGES, build_manifest, hardware
from tests.sweeper.small_registries import MINIMAL, REGISTRIES


@pytest.fixture
def spec():
    return build_spec({**MINIMAL, "seed": 17}, REGISTRIES)


def test_versions_seed_dataset_and_command(spec, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sweeper", "run", "a.yaml", "--tracking-uri", "http://me:hunter2@host"])
    manifest = build_manifest(spec, {"split_hash": "abc", "classes": 10})
    assert json.loads(json.dumps(manifest)) == manifest
    assert manifest["seed"] == 17
    assert manifest["dataset"] == {**spec.dataset, "split_hash": "abc", "classes": 10}
    assert manifest["command"] == ["sweeper", "run", "a.yaml", "--tracking-uri", "http://***@host"]
    assert set(manifest["versions"]) == {*PACKAGES, "python"}
    assert manifest["versions"]["python"] == platform.python_version()
    assert all(manifest["versions"][name] for name in ("torch", "ray", "numpy", "pyarrow"))
    assert datetime.datetime.fromisoformat(manifest["created"]).tzinfo is not None


def test_environment_variables_are_not_in_it(spec, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "hunter2")
    assert "hunter2" not in json.dumps(build_manifest(spec, {}))


def test_the_machine():
    found = hardware()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["memory_gib"] > 0 and found["processor"] and isinstance(found["gpus"], list)


@pytest.mark.parametrize("error", [FileNotFoundError("git"), module.subprocess.CalledProcessError(128, "git")])
def test_outside_a_repository_there_is_no_commit(monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(module.subprocess, "run", fail)
    assert module._git_commit() is None


def test_a_package_that_is_not_installed_has_no_version():
    assert module._version("there-is-no-such-package") is None
