"""Turn a warning that this machine will be taken away into a drain of its Ray node, so that trials leave in time.

`drain_on_warning.py aws` (or `gcp`) asks the cloud's metadata service every two seconds and drains once it warns;
`drain_on_warning.py now` is itself the warning: a pod's preStop hook, which waits until the node has ended.
A Ray node is found by the command line of its raylet, which names the node, its address and the head's: nothing to
configure, and nothing that a busy head must answer. Logs to stderr; exits with 1 if a node did not become drained.
"""

import argparse
import datetime
import fcntl
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

LOOK_SECONDS = 2.0  # AWS advises to look every 5 s; Google leaves only 30 s, so looks are closer
AWS_NOTICE, GCP_NOTICE, GCP_MAINTENANCE_NOTICE = 120, 30, 60  # seconds to the end that the clouds document; no later
CALL_SECONDS = 30  # `ray drain-node` may take; importing Ray takes seconds on a busy machine
Warned = tuple[str, int]  # why this machine is taken away, and in how many seconds


def say(text: str) -> None:
    """Log a line."""
    print(f"{datetime.datetime.now():%F %T} drain: {text}", file=sys.stderr, flush=True)


def ray_nodes(host: str | None) -> Iterator[tuple[str, str]]:
    """Yield id and head's address of each Ray node that runs here, or only of that of the address `host`."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command, *options = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        named = dict(option[2:].split("=", 1) for option in options if option.startswith("--") and "=" in option)
        if Path(command).name == "raylet" and host in (None, named.get("node_ip_address")):
            yield named["node_id"], named["gcs-address"]


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str:
    """Return what the metadata service answers; nothing where it has nothing under this address (404)."""
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=2) as reply:
            return str(reply.read().decode()).strip()
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return ""


def warning_of_aws(service: str) -> Warned | None:
    """Return AWS's spot interruption notice, if there is one. Each look has a token of its own (IMDSv2)."""
    token = ask(f"{service}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    notice = ask(f"{service}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    if not notice:
        return None
    told = json.loads(notice)
    left = datetime.datetime.fromisoformat(told["time"]) - datetime.datetime.now(datetime.UTC)
    seconds = max(1, min(AWS_NOTICE, int(left.total_seconds())))
    return f"AWS will {told['action']} this spot instance at {told['time']}", seconds


def warning_of_gcp(service: str) -> Warned | None:
    """Return Google's warning that this machine ends, if there is one; a live migration is none."""
    base, headers = f"{service}/computeMetadata/v1/instance", {"Metadata-Flavor": "Google"}
    if ask(f"{base}/preempted", headers) == "TRUE":
        return "Google preempts this machine", GCP_NOTICE
    if ask(f"{base}/maintenance-event", headers) == "TERMINATE_ON_HOST_MAINTENANCE":
        return "Google ends this machine for maintenance of its host", GCP_MAINTENANCE_NOTICE
    return None


CLOUDS = {"aws": (warning_of_aws, "169.254.169.254"), "gcp": (warning_of_gcp, "metadata.google.internal")}


def wait_for_warning(look: Callable[[], Warned | None]) -> Warned:
    """Look until there is a warning. A service that does not answer is said once, and asked again."""
    said = ""
    while True:
        try:
            warned, fault = look(), ""
        except (OSError, ValueError, KeyError, TypeError) as error:
            warned, fault = None, f"{type(error).__name__}: {error}"
        if warned:
            return warned
        if fault != said:
            say(f"the metadata service: {fault or 'answers again'}")
            said = fault
        time.sleep(LOOK_SECONDS)


def drain(node: str, head: str, reason: str, left: int) -> bool:
    """Ask the head to drain a node, which has `left` seconds; tell whether the head accepted."""
    command = ["ray", "drain-node", f"--address={head}", f"--node-id={node}"]
    command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", f"--reason-message={reason}"]
    command.append(f"--deadline-remaining-seconds={left}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS)
        fault = f"exit {done.returncode}: {done.stderr.strip()[-300:]}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        fault = str(error)
    say(f"node {node} " + (f"is not draining yet: {fault}" if fault else f"is draining, {left} s are left"))
    return not fault


def leave(warned: Warned, host: str | None, *, until_gone: bool) -> bool:
    """Drain each Ray node of this machine once, trying until the end; return whether all that run are drained.

    `until_gone` waits until none runs: a drained node ends by itself once nothing runs on it.
    """
    reason, seconds = warned
    deadline = time.monotonic() + seconds
    say(f"{reason}, in {seconds} s")
    nodes, drained = set[tuple[str, str]](), set[tuple[str, str]]()
    while (left := int(deadline - time.monotonic())) >= 1:
        nodes = set(ray_nodes(host))
        drained |= {node for node in nodes - drained if drain(*node, reason, left)}
        if not nodes if until_gone else nodes and nodes <= drained:
            break
        time.sleep(LOOK_SECONDS)
    say(f"{len(nodes)} Ray nodes run here, {len(nodes & drained)} of them drained")
    return nodes <= drained


def main() -> None:
    """Watch, or not, and drain."""
    parser = argparse.ArgumentParser(description="Drain this machine's Ray node when the machine is to be taken away.")
    parser.add_argument("warned_by", choices=(*CLOUDS, "now"))
    parser.add_argument("--metadata", help="the metadata service's address, if not the cloud's own")
    parser.add_argument("--host", help="drain only the Ray node of this address")
    parser.add_argument("--seconds", type=int, default=100, help="with now: how long trials may take to leave")
    asked = parser.parse_args()
    if asked.warned_by == "now":
        sys.exit(not leave(("this pod is to end", asked.seconds), asked.host, until_gone=True))
    with Path(tempfile.gettempdir(), "drain_on_warning.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another watcher runs on this machine already")
        look, usual = CLOUDS[asked.warned_by]
        service = asked.metadata or f"http://{usual}"
        say(f"watching {service}")
        sys.exit(not leave(wait_for_warning(lambda: look(service)), asked.host, until_gone=False))


if __name__ == "__main__":
    main()
