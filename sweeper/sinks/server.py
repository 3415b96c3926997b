"""MLflow's own server over a store, for browsing: on this machine's loopback address only."""

from __future__ import annotations

import socket
import subprocess
import sys

from sweeper.errors import SweeperError


def serve(tracking_uri: str, port: int) -> int:
    """Run MLflow's server until it is interrupted; return its exit status.

    Args:
        tracking_uri: the store; an `http` address is a server already and needs none.
        port: on 127.0.0.1.

    Raises SweeperError when the store is a server already, or the port is taken.
    """
    if tracking_uri.startswith("http"):
        raise SweeperError(f"{tracking_uri} is a server already", "open it in a browser")
    if _taken(port):
        raise SweeperError(f"port {port} of 127.0.0.1 is taken", "choose another with --port")
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking_uri]
    process = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"])
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        return 0


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
