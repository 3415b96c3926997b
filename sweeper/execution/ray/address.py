"""Whether anybody answers at a cluster's address, found out in seconds; and the error when Ray cannot be had.

Does not import ray, so that it is known before anything is begun.
"""

from __future__ import annotations

import socket

from sweeper.core.errors import SweeperError

ANSWER_SECONDS = 10.0
"""How long the machine of a cluster's head may take to accept a connection; Ray itself would try for minutes."""

CLIENT = "ray://"
"""How addresses for Ray's client begin; the server there accepts connections as a head does."""


class RayUnavailable(SweeperError):  # noqa: N818 - says what is unavailable
    """Ray could not be started or joined; what the sweep has so far is kept."""

    exit_code = 1


def check_answers(address: str) -> None:
    """Raise RayUnavailable when no cluster can be at `address`, or it names a host and a port where nobody answers."""
    scheme, _, rest = address.partition("://")
    if rest and f"{scheme}://" != CLIENT:
        raise unavailable(address, ValueError(f"{scheme}:// is not an address that a driver can join"))
    place = address.removeprefix(CLIENT).rstrip("/")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise unavailable(address, error) from error


def unavailable(address: str | None, error: Exception) -> RayUnavailable:
    """Return the error for a cluster that cannot be joined at `address`, or not be started, for the reason `error`."""
    said = next(iter(str(error).splitlines()), "") or type(error).__name__
    if address is None:
        return RayUnavailable(
            f"Ray could not be started on this machine: {said}",
            "check with `sweeper doctor` whether the machine is overloaded or out of memory or disk space",
        )
    return RayUnavailable(
        f"no Ray cluster could be joined at {address}: {said}",
        "give the address and port that `ray start --head` printed (port 6379 by default), "
        "or omit --address to start a cluster on this machine",
    )
