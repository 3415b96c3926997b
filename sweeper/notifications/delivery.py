"""Delivering a message: a POST to a webhook, or a command with the message on its standard input; each bounded in time.

Addresses are secrets. So what is said of a failure is put together from status codes and system errors alone, never
from the text of an exception, which may repeat the address.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

from sweeper.space.notify import Target

TRY_SECONDS = 5.0
"""Seconds to wait for a webhook's answer: receivers acknowledge first and work afterwards."""

PAUSES = (1.0, 2.0)
"""Seconds before a webhook that was busy or unreachable is retried."""

COMMAND_SECONDS = 10.0
"""Seconds after which a command and its children are killed."""

_PASSING = (429, 500, 502, 503, 504)
"""HTTP statuses worth a retry."""


def deliver(target: Target, message: bytes) -> str | None:
    """Hand a message, JSON, to a target; return why it could not be delivered, without secrets, or `None`."""
    return _run(target.command, message) if target.command else _post(target.url, message)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a webhook's secret belongs to the configured address only."""

    def redirect_request(self, *request: object) -> None:
        return None


def _post(url: str, message: bytes) -> str | None:
    opener = urllib.request.build_opener(_NoRedirect)
    headers = {"Content-Type": "application/json", "User-Agent": "calibration-sweeper"}
    reason: str | None = None
    for pause in (*PAUSES, None):
        request = urllib.request.Request(url, data=message, headers=headers, method="POST")
        try:
            with opener.open(request, timeout=TRY_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            reason = f"it returned HTTP {error.code}"
            error.close()
            if error.code not in _PASSING:
                return reason
        except (OSError, HTTPException) as error:
            reason = _system_reason(error)
        except ValueError:
            return "its address is invalid"
        if pause is not None:
            time.sleep(pause)
    return reason


def _system_reason(error: Exception) -> str:
    """Return the system's message for a failed connection."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"it did not answer within {TRY_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.errno is not None and cause.strerror:
        return cause.strerror
    return type(cause).__name__


def _run(command: Sequence[str], message: bytes) -> str | None:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # what it prints may hold its secrets, and this process's output is a log
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        return error.strerror or type(error).__name__
    try:
        process.communicate(message, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it ran longer than {COMMAND_SECONDS:g} s and was killed"
    return f"it exited with status {process.returncode}" if process.returncode else None
