"""Names of objects, which strangers choose, and the files that they become."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, is_table_file
from sweeper.storage.places import local_path, require_plain

PARTS = st.sampled_from(["..", ".", "", "tables", "journal", "epochs", "recalibrations", "sweep.yaml", "a.parquet"])
TEXT = st.text(string.ascii_letters + "./\\\x00é -_", max_size=30)


@given(st.one_of(st.lists(PARTS, min_size=1, max_size=7).map("/".join), TEXT))
def test_no_name_leaves_the_folder(name: str) -> None:
    root = Path("/nowhere/sweep")
    try:
        path = local_path(SweepPaths(root), name)
    except SweeperError as error:
        assert repr(name) in str(error)
        return
    assert path is None or (path.is_relative_to(root) and ".." not in path.parts)


@pytest.mark.parametrize(
    "name",
    ["../../victim/.bashrc", "/etc/passwd", "tables/../../x.parquet", "tables//x", "a\\b", "sweep.yaml/", "a\nb"],
)
def test_names_that_would_leave_are_refused(name: str) -> None:
    with pytest.raises(SweeperError, match="would leave the sweep's folder") as raised:
        require_plain(name)
    assert repr(name) in str(raised.value)


def test_what_sweeps_put_becomes_files(tmp_path: Path) -> None:
    paths = SweepPaths(tmp_path / "s")
    assert local_path(paths, "sweep.yaml") == paths.sweep_file
    assert local_path(paths, "tables/epochs/c00001-e00003.parquet") == paths.tables / "epochs/c00001-e00003.parquet"
    assert local_path(paths, "tables/recalibrations/abc.parquet") == paths.recalibrations / "abc.parquet"
    kept = "0000000007-report-c00001-e00003.json.damaged"
    assert local_path(paths, f"journal/{kept}") == paths.journal / kept
    for other in (
        ".bashrc",
        "notes.txt",
        "tables/epochs/.hidden.parquet",
        "tables/other/x.parquet",
        "terms/00001.json",
    ):
        assert local_path(paths, other) is None
    assert is_table_file("predictions", "c00001-r0-e00003.parquet")
    assert not is_table_file("predictions", "../x.parquet") and not is_table_file("..", "x.parquet")
