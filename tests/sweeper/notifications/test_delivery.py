"""Messages reach real servers and real commands, or a sentence says why not, in bounded time and without secrets."""

from __future__ import annotations

import json
import sys
import time

import pytest

from sweeper.notifications import delivery as notify_delivery
from sweeper.notifications.delivery import deliver
from sweeper.space.notify import Target
from tests.alive import wait_for_ends
from tests.patience import patient
from tests.receiver import receiver

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
