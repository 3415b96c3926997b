"""A journal that is lost is missed before anything is trained again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.journal_repair import refuse_lost_journal
from sweeper.execution.options import RunOptions
from sweeper.execution.runner import resume_sweep
from sweeper.storage.lookup import find_sweep
from tests.sweeper.inline_sweep import Inline


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder with the sweep `small`, which has ended."""
    inline = Inline(tmp_path_factory.mktemp("finished"))
    inline.run("small")
    return inline.output


@pytest.fixture
def paths(finished: Path, tmp_path: Path) -> SweepPaths:
    """A copy to lose parts of."""
    shutil.copytree(finished, tmp_path / "results", symlinks=True)
    return find_sweep("small", tmp_path / "results")


@pytest.mark.parametrize("lost", ["folder", "records", "folder and link"])
def test_a_lost_journal_is_missed_and_nothing_is_run(paths: SweepPaths, lost: str) -> None:
    shutil.rmtree(paths.journal)
    if lost == "records":
        paths.journal.mkdir()
    if lost == "folder and link":
        paths.tables.unlink()
    before = sorted(paths.root.rglob("*"))
    with pytest.raises(SweeperError, match=r"results in its tables, and no journal(.|\n)*backup(.|\n)*sweeper run"):
        resume_sweep("small", RunOptions(paths.root.parent, executor="ray"))
    assert sorted(paths.root.rglob("*")) == before


def test_checkpoints_alone_tell_of_a_lost_journal(paths: SweepPaths) -> None:
    for folder in (paths.journal, paths.generations):
        shutil.rmtree(folder)
    paths.tables.unlink()
    refuse_lost_journal(paths)
    paths.trial_checkpoints(3).mkdir(parents=True)
    (paths.trial_checkpoints(3) / "e00001.pt").touch()
    with pytest.raises(SweeperError, match="has checkpoints, and no journal"):
        refuse_lost_journal(paths)


def test_a_sweep_that_has_not_begun_or_whose_records_are_quarantined_is_none(paths: SweepPaths) -> None:
    refuse_lost_journal(paths)
    for record in paths.journal.iterdir():
        record.rename(f"{record}.damaged")
    refuse_lost_journal(paths)


def test_a_damaged_manifest_is_refused_before_anything_is_run(paths: SweepPaths) -> None:
    paths.manifest.write_text("{ damaged")
    before = sorted(paths.root.rglob("*"))
    with pytest.raises(SweeperError, match=r"manifest\.json is damaged"):
        resume_sweep("small", RunOptions(paths.root.parent, executor="ray"))
    assert sorted(paths.root.rglob("*")) == before
