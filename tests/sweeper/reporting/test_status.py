"""An onlooker's view of a sweep that another process drives, from the growing journal alone."""

import io
import shutil

import pytest
from rich.console import Console

from sweeper.journal.journal import Journal
from sweeper.reporting.status import UNDRIVEN_LOOKS, SweepWatch, WatchUpdate, watch
from sweeper.space.loading import load_spec
from sweeper.storage.lease import Lease
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


def test_on_a_terminal_the_panel_is_redrawn():
    stream = io.StringIO()
    looks = _looks("one", "two")
    watch(looks.__next__, 1.0, Console(file=stream, force_terminal=True, width=80), sleep=lambda seconds: None)
    assert "one" in stream.getvalue() and "two" in stream.getvalue() and "\x1b[" in stream.getvalue()


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
