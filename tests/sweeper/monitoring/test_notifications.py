"""What a sweep tells of itself, and that neither it nor another target waits for one that hangs."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time

import pytest

from sweeper.core.errors import SweeperError
from sweeper.journal.state import SweepState
from sweeper.monitoring import notifications as notify_delivery
from sweeper.monitoring.notifications import FAILURE_SECONDS, Notifier, deliver
from sweeper.space.loading import load_spec
from sweeper.space.notify import Target
from sweeper.storage.sweeps import create_sweep
from tests.alive import wait_for_ends
from tests.faults.processes import wait_until
from tests.patience import patient
from tests.receiver import receiver
from tests.sweeper.journal.test_state import Script
from tests.sweeper.records import made_record
from tests.sweeper.storage.test_sweeps import SPACE

ALL = frozenset({"end", "failure", "budget"})


class Scene:
    """A sweep of six trials, its notifier, and what was sent to whom."""

    def __init__(self, folder, *targets, answer=None):
        path = folder / "small.yaml"
        path.write_text(SPACE)
        self.sweep = create_sweep(load_spec(path), "small", None, folder, {})
        self.state = SweepState(6)
        self.now = 0.0
        self.sent = []
        self.answer = answer or (lambda target, message: None)
        self.notifier = Notifier(
            targets or [Target("webhook 1", ALL, url="http://x")],
            self.sweep,
            self.state,
            "results/small",
            send=self._send,
            clock=lambda: self.now,
        )

    def _send(self, target, message):
        self.sent.append((target.label, json.loads(message)))
        return self.answer(target, message)

    def play(self, script):
        for record in script.records:
            self.state.apply(record)
            self.notifier.append(record)
            self.notifier.flush_if_due()

    def messages(self):
        assert self.notifier.wait() == []
        return [message for _, message in self.sent]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


def test_the_end_is_reported_with_counts_the_best_trial_and_how_to_resume(scene):
    scene.play(Script().attempt(1).report(0, 9, "completed", objective=0.25).report(1, 1, "early_stopped", rung=1))
    scene.now = 125.0
    scene.notifier.ended("stopped", "`sweeper stop` was called")
    [message] = scene.messages()
    assert (message["event"], message["outcome"], message["sweep"]) == ("end", "stopped", "small")
    assert message["reason"] == "`sweeper stop` was called"
    assert message["trials"]["completed"] == message["trials"]["early_stopped"] == 1
    assert message["best"]["trial"] == "c00000" and message["best"]["value"] == 0.25
    assert message["best"]["configuration"] == scene.sweep.describe(0)
    assert message["results"] == "results/small", "as the user wrote it"
    assert message["resume"] == f"sweeper resume {scene.sweep.paths.in_commands}" and " --output " in message["resume"]
    assert message["text"].startswith("small stopped after 2 min 5 s: 4 waiting, 1 completed, 1 early stopped; best")
    assert message["rehearsal"] is False


def test_the_first_failure_is_reported_at_once_and_later_ones_together(scene):
    scene.play(Script().attempt(1).failed(0, final=False))
    assert scene.sent == [], "it is tried again"
    scene.play(Script().attempt(1).failed(0, final=True).failed(1, final=True).failed(2, final=True))
    scene.now = FAILURE_SECONDS
    scene.notifier.flush_if_due()
    first, second = scene.messages()
    assert first["event"] == second["event"] == "failure"
    assert first["failures"] == [{"trial": "c00000", "kind": "crash", "reason": "its process died"}]
    assert [failure["trial"] for failure in second["failures"]] == ["c00001", "c00002"]
    assert second["text"].endswith("and 1 more") and second["failed"] == 2


def test_unreported_failures_come_before_the_end(scene):
    scene.play(Script().attempt(1).failed(0, final=True).failed(1, final=True))
    scene.notifier.ended("finished")
    assert [message["event"] for message in scene.messages()] == ["failure", "failure", "end"]


def test_a_report_that_fails_is_a_failure_too(scene):
    scene.play(Script().attempt(1).report(3, 2, "failed"))
    [message] = scene.messages()
    assert message["failures"][0]["trial"] == "c00003" and message["failures"][0]["reason"] == "because of fail"


def test_an_exhausted_budget_is_reported(scene):
    scene.notifier.budget_reached("the budget is reached: gpu_hours 2 of 2")
    [message] = scene.messages()
    assert message["event"] == "budget" and message["reason"] == "the budget is reached: gpu_hours 2 of 2"


def test_every_target_gets_the_events_it_asked_for(tmp_path):
    ends = Target("webhook 1", frozenset({"end"}), url="http://x")
    fails = Target("command 2", frozenset({"failure"}), command=("true",))
    scene = Scene(tmp_path, ends, fails)
    scene.play(Script().attempt(1).failed(0, final=True))
    scene.notifier.ended("finished")
    scene.messages()
    assert sorted((label, message["event"]) for label, message in scene.sent) == [
        ("command 2", "failure"),
        ("webhook 1", "end"),
    ]


@pytest.mark.parametrize("on", ["end", "failure"])
def test_an_error_that_ends_the_sweep_is_reported_without_secrets(tmp_path, on):
    scene = Scene(tmp_path, Target("webhook 1", frozenset({on}), url="http://x"))
    with pytest.raises(SweeperError), scene.notifier:
        raise SweeperError("the cluster at http://me:s3cr3t@head is gone", "start it")
    [message] = scene.messages()
    assert (message["event"], message["outcome"]) == ("failure", "failed")
    assert message["reason"] == "the cluster at http://***@head is gone" and "s3cr3t" not in json.dumps(message)


def test_an_error_after_the_end_was_reported_reports_nothing_more(scene):
    with pytest.raises(RuntimeError), scene.notifier:
        scene.notifier.ended("finished")
        raise RuntimeError("while MLflow was waited for")
    assert [message["event"] for message in scene.messages()] == ["end"]


def test_one_that_hangs_holds_up_neither_the_sweep_nor_another(tmp_path, caplog):
    release = threading.Event()

    def answer(target, message):
        return release.wait(patient(30)) and None if target.label == "webhook 1" else None

    hangs, works = (Target(f"webhook {n}", ALL, url="http://x") for n in (1, 2))
    scene = Scene(tmp_path, hangs, works, answer=answer)
    began = time.monotonic()
    scene.play(Script().attempt(1).failed(0, final=True))
    scene.notifier.ended("finished")
    assert time.monotonic() - began < 30, "the one that hangs was not waited for"
    wait_until(lambda: len([label for label, _ in scene.sent if label == "webhook 2"]) == 2)
    with caplog.at_level(logging.WARNING, "sweeper.monitoring.notifications"):
        notes = scene.notifier.wait(0.5)
    assert notes == ["webhook 1 did not receive the notification of failure: not delivered in time"]
    assert notes[0] in caplog.text
    assert [message["event"] for label, message in scene.sent if label == "webhook 2"] == ["failure", "end"]
    release.set()


def test_what_a_target_missed_is_noted_and_nothing_a_delivery_raises_stops_a_sweep(tmp_path):
    def answer(target, message):
        if json.loads(message)["event"] == "end":
            raise ValueError("s3cr3t")
        return "it answered 500"

    scene = Scene(tmp_path, answer=answer)
    scene.play(Script().attempt(1).failed(0, final=True))
    scene.notifier.ended("finished")
    assert scene.notifier.wait() == [
        "webhook 1 did not receive the notification of failure: it answered 500",
        "webhook 1 did not receive the notification of end: ValueError",
    ]
    assert scene.notifier.wait() == [], "a note is given once"


def test_a_sweep_without_targets_does_nothing(tmp_path):
    scene = Scene(tmp_path)
    quiet = Notifier([], scene.sweep, scene.state, "results/small")
    with quiet:
        quiet.append(made_record(0, "ended", 0.0, {}))
        quiet.ended("finished")
    assert quiet.wait() == []


EVENTS = frozenset({"end"})
MESSAGE = json.dumps({"event": "end", "text": "γ"}, ensure_ascii=False).encode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(notify_delivery, "PAUSES", (0.01, 0.01))
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def _webhook(url):
    return Target("webhook 1", EVENTS, url=url)


def _program(text):
    return Target("command 1", EVENTS, command=(sys.executable, "-c", text))


def test_a_webhook_gets_the_message():
    with receiver() as server:
        assert deliver(_webhook(f"{server.url}/s3cr3t"), MESSAGE) is None
    assert server.messages == [("/s3cr3t", {"event": "end", "text": "γ"})]


def test_a_webhook_that_is_busy_is_tried_again():
    with receiver(500, 503, 200) as server:
        assert deliver(_webhook(server.url), MESSAGE) is None
    assert len(server.messages) == 3


@pytest.mark.parametrize(("code", "tries"), [(500, 3), (429, 3), (404, 1), (302, 1)])
def test_an_error_response_is_reported(code, tries):
    with receiver(code) as server:
        assert deliver(_webhook(f"{server.url}/s3cr3t"), MESSAGE) == f"it returned HTTP {code}"
    assert [path for path, _ in server.messages] == ["/s3cr3t"] * tries, "and no redirect is followed"


def test_a_webhook_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(notify_delivery, "TRY_SECONDS", 0.3)
    began = time.monotonic()
    with receiver(hangs=True) as server:
        assert deliver(_webhook(f"{server.url}/s3cr3t"), MESSAGE) == "it did not answer within 0.3 s"
        assert time.monotonic() - began < 30, "the receiver answers after 30 s"


def test_an_unreachable_webhook_is_reported_in_the_systems_words():
    with receiver() as server:
        url = server.url
    assert deliver(_webhook(f"{url}/s3cr3t"), MESSAGE) == "Connection refused"
    assert deliver(_webhook("http://127.0.0.1:1\x00/s3cr3t"), MESSAGE) not in (None, "")


def test_a_command_reads_the_message_from_its_standard_input_and_has_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WHERE", str(tmp_path / "got"))
    program = "import os, sys, pathlib; pathlib.Path(os.environ['WHERE']).write_bytes(sys.stdin.buffer.read())"
    assert deliver(_program(program), MESSAGE) is None
    assert (tmp_path / "got").read_bytes() == MESSAGE


def test_a_failing_command_is_reported_and_its_output_is_discarded(capfd):
    text = "import sys; print('s3cr3t'); print('s3cr3t', file=sys.stderr); sys.exit(3)"
    assert deliver(_program(text), MESSAGE) == "it exited with status 3"
    assert deliver(Target("command 1", EVENTS, command=("/no/such/program",)), MESSAGE) == "No such file or directory"
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path, monkeypatch):
    seconds, child = round(patient(0.5)), tmp_path / "child"
    monkeypatch.setattr(notify_delivery, "COMMAND_SECONDS", seconds)
    text = (
        f"import subprocess, time; p = subprocess.Popen(['sleep', '60']); open({str(child)!r}, 'w').write(str(p.pid))"
    )
    assert deliver(_program(f"{text}; time.sleep(60)"), MESSAGE) == f"it ran longer than {seconds} s and was killed"
    wait_for_ends(int(child.read_text()), seconds=5)


def test_a_command_that_reads_nothing_is_fine():
    assert deliver(Target("command 1", EVENTS, command=("true",)), b"x" * 1_000_000) is None
