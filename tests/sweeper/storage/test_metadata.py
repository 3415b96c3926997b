"""What a sweep wrote of itself: read, absent, or refused with a reason."""

import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

import pytest
import yaml

from sweeper.core.errors import SweeperError
from sweeper.space.loading import build_spec
from sweeper.storage import metadata
from sweeper.storage.metadata import PACKAGES, build_manifest, read_manifest, read_specification
from tests.sweeper.held import held
from tests.sweeper.small_registries import MINIMAL, REGISTRIES


def test_what_is_sound_is_read_and_what_is_missing_is_empty(quickstart_folder: Path, tmp_path: Path) -> None:
    results = held(quickstart_folder)
    assert results.specification["samples"] == 48 and results.manifest["versions"]["python"]
    assert read_specification(tmp_path / "sweep.yaml") == {} == read_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("manifest.json", b"", "Expecting value"),
        ("manifest.json", b"[1]", "is not a mapping"),
        ("manifest.json", b'{"created": 5}', "created is not valid"),
        ("manifest.json", b'{"created": "2026-11-21T20:4>:17"}', "Invalid isoformat"),
        ("manifest.json", b"[" * 100_000, "recursion"),
        ("manifest.json", b"\xff\xfe", "decode"),
        ("sweep.yaml", b"a: [", "line 2: not valid YAML"),
        ("sweep.yaml", b"\x00", "not valid YAML"),
        ("sweep.yaml", b"text", "is not a mapping"),
        ("sweep.yaml", b"objective: {metric: 3}", "objective.metric is not valid"),
        ("sweep.yaml", b"samples: yes", "samples: 'yes' is not true or false"),
        ("sweep.yaml", b"samples: true", "samples is not valid"),
    ],
)
def test_what_is_damaged_is_refused_in_one_sentence(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SweeperError, match=reason) as raised:
        (read_manifest if name.endswith("json") else read_specification)(tmp_path / name)
    if name.endswith("json"):
        assert read_manifest(tmp_path / name, unknown_if_damaged=True) == {}
    assert "\n" not in raised.value.message and str(tmp_path / name) in raised.value.message and raised.value.remedy


@pytest.mark.parametrize("name", ["manifest.json", "sweep.yaml"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(SweeperError, match="not a regular file"):
        (read_manifest if name.endswith("json") else read_specification)(tmp_path / name)


BOMB = "\n".join(
    ["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}], y{n}: 1}}" for n in range(1, 30))]
)
ALIASES = "\n".join(["a0: &a0 [1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30))])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (BOMB, "tag|merge|after expanding aliases"),
        (ALIASES, "after expanding aliases"),
        ("a: &a {b: *a}", "an alias that contains itself"),
        ("[" * 100, "levels deep"),
        ("a: 2026-01-01", "tag"),
        ("a: !!python/object/apply:os.system [ls]", "tag"),
        ("a: " + "x" * 10_000_001, "larger than"),
    ],
    ids=["merge bomb", "billion laughs", "circle", "deep", "date", "object", "large"],
)
def test_a_strangers_search_space_is_read_within_limits(content: str, reason: str, tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "sweep.yaml").write_text(content)
    with pytest.raises(SweeperError, match=reason):
        read_specification(tmp_path / "sweep.yaml")
    assert time.monotonic() - began < 30, "where it ran for ever"


def test_what_a_sweep_writes_is_read_as_it_was(tmp_path: Path) -> None:
    """YAML 1.1's and 1.2's plain scalars differ: what was text stays text."""
    shared = [1.5e-05, float("inf"), -3, True, None]
    texts = ["1e-3", "08", "no", "on", "12:30", "2026-01-01", "", "null", "0x1F", "1_000", "<<", "=", "- a", "ä\n b"]
    values = {"texts": texts, "shared": [shared, shared], "nested": {"08": {"no": "1e5"}}}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(values, allow_unicode=True))
    assert read_specification(tmp_path / "sweep.yaml") == values


@pytest.mark.parametrize(
    "created", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2026-13-01", "today", 5, None, ["x"], True]
)
def test_a_manifest_of_no_time_is_refused(created: object, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"created": created}))
    with pytest.raises(SweeperError, match=r"manifest.json is damaged"):
        read_manifest(tmp_path / "manifest.json")


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


@pytest.mark.parametrize("error", [FileNotFoundError("git"), metadata.subprocess.CalledProcessError(128, "git")])
def test_outside_a_repository_there_is_no_commit(monkeypatch, error):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr(metadata.subprocess, "run", fail)
    assert metadata._git_commit() is None
