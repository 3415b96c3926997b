"""An onlooker's view of a sweep that another process drives, from the growing journal alone."""

import contextlib
import io
import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.core.display import as_text
from sweeper.core.errors import SweeperError
from sweeper.journal.journal import Journal
from sweeper.journal.state import COMPLETED, EARLY_STOPPED, FAILED
from sweeper.reporting.status import (
    UNDRIVEN_LOOKS,
    SweepStatus,
    SweepWatch,
    WatchUpdate,
    audit_all,
    audit_sweep,
    status_of,
    statuses_table,
    watch,
)
from sweeper.space.loading import load_spec
from sweeper.storage import lookup
from sweeper.storage.lease import Lease
from sweeper.storage.lookup import UnknownSweepError, entries, find_sweep
from sweeper.storage.sweeps import create_sweep
from tests.running import typed
from tests.sweeper.journal.test_state import Script
from tests.sweeper.storage.test_sweeps import SPACE


class Driven:
    """A sweep of six trials whose driver is this test: it holds the lease and writes the journal."""

    def __init__(self, folder):
        path = folder / "small.yaml"
        path.write_text(SPACE)
        self.output = folder / "results"
        self.paths = create_sweep(load_spec(path), "small", None, self.output, {}).paths
        self.lease = Lease(self.paths.lease)
        self.now = 100.0

    def write(self, script):
        journal = Journal(self.paths.journal, clock=lambda: self.now, durable=False)
        for record in script.records:
            journal.append(record.body)

    def watch(self):
        return SweepWatch("small", str(self.output), clock=lambda: self.now)


@pytest.fixture
def driven(tmp_path):
    return Driven(tmp_path)


def _text(panel):
    console = Console(file=io.StringIO(), width=120)
    console.print(panel)
    return console.file.getvalue()


def test_what_is_new_in_the_journal_is_seen_at_the_next_look(driven):
    watched = driven.watch()
    with driven.lease:
        assert "small · starting · process" in watched.look().line
        driven.write(Script().attempt(1).report(0, 1, "early_stopped", rung=1).report(1, 3, objective=0.25))
        driven.now = 104.0
        seen = watched.look()
        assert not seen.over and "running" in seen.line
        assert "1 running" in seen.line and "1 early stopped" in seen.line and "4 waiting" in seen.line
        assert "best so far val_nll 0.2500 (c00001)" in seen.line
        assert "1.0 epochs/s" in seen.line, "4 epochs since the driver began 4 s ago"
        panel = _text(seen.panel)
        assert [line.split() for line in panel.splitlines() if line.strip().startswith("running")] == [
            ["running", "0", "0", "1"]
        ]
        assert ("rung 9" in panel and "focal (γ" in panel) or "cross_entropy" in panel


def test_throughput_leaves_out_what_earlier_drivers_did_and_the_pause_between(driven):
    driven.write(Script().attempt(1).report(0, 9, "completed"))
    driven.now = 10_000.0
    with driven.lease:
        driven.write(Script().attempt(2).report(1, 1))
        driven.now += 2
        assert "0.5 epochs/s" in driven.watch().look().line


def test_it_is_over_when_the_driver_has_left_not_when_the_last_trial_has_ended(driven):
    ended = Script().attempt(1)
    for index in range(6):
        ended.report(index, 9, "completed")
    driven.write(ended.add("ended", attempt=1, outcome="finished"))
    watched = driven.watch()
    with driven.lease:
        seen = watched.look()
        assert not seen.over and "finished, writing tables and report" in seen.line
    seen = watched.look()
    assert seen.over and seen.complete and "small · finished ·" in seen.line


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_sweep_with_failed_trials_or_trials_left_is_not_complete(driven, status):
    driven.write(Script().attempt(1).report(0, 9, status).add("ended", attempt=1, outcome="stopped"))
    seen = driven.watch().look()
    assert seen.over and not seen.complete


def test_a_sweep_whose_driver_died_is_given_up_after_some_looks(driven):
    driven.write(Script().attempt(1).report(0, 1))
    watched = driven.watch()
    looks = [watched.look() for _ in range(UNDRIVEN_LOOKS)]
    assert [look.over for look in looks] == [False] * (UNDRIVEN_LOOKS - 1) + [True]
    assert "interrupted" in looks[-1].line


def _looks(*lines):
    return iter(
        [*(WatchUpdate(line, line, over=False) for line in lines[:-1]), WatchUpdate(lines[-1], lines[-1], over=True)]
    )


def test_elsewhere_than_on_a_terminal_only_what_is_new_is_printed_and_the_end_at_once():
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=80)
    looks = _looks(*["a"] * 12, *[f"b{n}" for n in range(12)], "the end")
    seen = watch(looks.__next__, 1.0, console, sleep=sleep, clock=lambda: now[0])
    assert seen is not None and seen.over
    assert stream.getvalue().splitlines() == ["a", "b0", "b10", "the end"]


def test_ctrl_c_ends_watching_alone():
    def look():
        raise KeyboardInterrupt

    for terminal in (False, True):
        assert watch(look, 1.0, Console(file=io.StringIO(), force_terminal=terminal)) is None


def test_the_command_watches_one_sweep_or_all_and_says_how_it_ended(driven):
    finished = Script().attempt(1)
    for index in range(6):
        finished.report(index, 9, "completed")
    driven.write(finished.add("ended", attempt=1, outcome="finished"))
    where = ["--output", str(driven.output)]
    done = typed("status", "small", "--watch", *where)
    assert done.returncode == 0 and "6 completed" in done.stdout
    done = typed("status", "--watch", *where)
    assert done.returncode == 0 and "no sweep is running" in done.stdout
    shutil.rmtree(driven.paths.journal)
    driven.write(Script().attempt(1).add("ended", attempt=1, outcome="stopped"))
    assert typed("status", "small", "-w", *where).returncode == 1


@contextlib.contextmanager
def _refused(*places):
    """Take these files' and folders' rights away, and those that root has in spite of it."""
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places}
    for place in places:
        place.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for place, mode in modes.items():
            place.chmod(mode)


@pytest.fixture
def open_to_others():
    """A driven sweep in a folder that other users reach, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Driven(Path(folder))


@pytest.mark.parametrize("part", ["", "sweep.yaml", "journal"])
def test_a_colleagues_sweep_that_cannot_be_read_is_one_and_hides_no_other(open_to_others, part):
    driven = open_to_others
    driven.write(Script().attempt(1).report(0, 1, "early_stopped", rung=1))
    shutil.copytree(driven.paths.root, driven.output / "theirs")
    refused = driven.output / "theirs" / part
    with _refused(refused):
        statuses = {status.sweep: status.state for status in status_of(driven.output)}
        listed = [entry.name for entry in entries(driven.output)]
        with pytest.raises((SweeperError, PermissionError)) as caught:
            status_of(driven.output, "theirs")
    assert statuses["small"] == "interrupted" and listed == ["small"]
    assert statuses["theirs"].startswith("cannot be read: ") and "Permission denied" in statuses["theirs"]
    assert not isinstance(caught.value, UnknownSweepError) and str(refused.resolve()) in str(caught.value)


def test_a_linked_sweep_is_listed_and_found_by_the_links_name(driven, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    driven.paths.root.rename(tmp_path / "elsewhere" / "theirs")
    (driven.output / "linked").symlink_to(tmp_path / "elsewhere" / "theirs")
    assert [status.sweep for status in status_of(driven.output)] == ["linked"]
    for name in ("linked", driven.output / "linked", f"{driven.output}/../results/linked"):
        assert find_sweep(name, driven.output).root == driven.output.resolve() / "linked"
    assert SweepWatch("linked", str(driven.output)).sweep.name == "linked"
    assert lookup.sweep_fault(driven.output / "linked") is not None, "deleting and renaming leave links alone"


def test_an_audit_without_a_name_is_of_every_sweep(driven):
    driven.write(Script().attempt(1).report(0, 1, "early_stopped", rung=1))
    shutil.copytree(driven.paths.root, driven.output / "other")
    (driven.output / "copied" / "tables").mkdir(parents=True)
    one, both = audit_sweep("small", driven.output), audit_all(driven.output)
    assert one[0] and len(both[0]) == 2 * len(one[0]) + 1 and len(both[1]) == 2 * len(one[1])
    (driven.output / "other" / "sweep.yaml").write_text("space: [")
    assert len(audit_all(driven.output)[1]) == len(one[1]) + 1, "one that cannot be read is no sweep without faults"
    printed = typed("status", "--audit", "--output", driven.output)
    assert printed.returncode == 1 and all(f"{name}: " in printed.stdout for name in ("small", "other", "copied"))


def test_states_stay_whole_beside_a_long_name(driven):
    statuses = [SweepStatus("n" * 90, "interrupted", 4, dict.fromkeys((COMPLETED, EARLY_STOPPED, FAILED), 1), 1)]
    for width in (80, 100, 140):
        console = Console(file=io.StringIO(), width=width, force_terminal=True)
        console.print(statuses_table(statuses))
        assert "interrupted" in console.file.getvalue() and "…" not in console.file.getvalue()
    (heading, line) = as_text(statuses_table(statuses)).splitlines()
    assert line.split() == ["n" * 90, "interrupted", "4", "1", "1", "1", "1", "–", "–"] and heading.endswith("driver")
