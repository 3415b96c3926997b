"""Ask the Ray node of this container whether it is well; with --head also its store. Exit 0 if so, else 1 and why."""

from __future__ import annotations

import os
import sys
import urllib.request

RAYLET = "http://127.0.0.1:{}/api/local_raylet_healthz"
HEAD = "http://127.0.0.1:{}/api/gcs_healthz"


def main() -> None:
    """Ask."""
    addresses = [RAYLET.format(os.environ.get("RAY_AGENT_PORT", "52365"))]
    if "--head" in sys.argv:
        addresses.append(HEAD.format(os.environ.get("RAY_DASHBOARD_PORT", "8265")))
    for address in addresses:
        request = urllib.request.Request(address)
        if os.environ.get("RAY_AUTH_TOKEN"):
            request.add_header("Authorization", f"Bearer {os.environ['RAY_AUTH_TOKEN']}")
        try:
            with urllib.request.urlopen(request, timeout=4) as reply:
                reply.read()
        except OSError as error:
            sys.exit(f"{address}: {error}")


if __name__ == "__main__":
    main()
