"""What a sweep wrote of itself: read, absent, or refused with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.storage.metadata import read_manifest, read_specification


def test_what_is_sound_is_read_and_what_is_missing_is_empty(quickstart_folder: Path, tmp_path: Path) -> None:
    results = Results(quickstart_folder)
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
        ("sweep.yaml", b"a: [", "while parsing"),
        ("sweep.yaml", b"\x00", "special characters"),
        ("sweep.yaml", b"text", "is not a mapping"),
        ("sweep.yaml", b"objective: {metric: 3}", "objective.metric is not valid"),
        ("sweep.yaml", b"samples: yes", "samples is not valid"),
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
