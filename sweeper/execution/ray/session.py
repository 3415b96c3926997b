"""Join or start a Ray cluster, leave it, and report errors in plain words.

Ray reads its environment when it is imported: call `sweeper.core.ray_environment.prepare` before this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import ray
from ray.tune.execution import class_cache

from sweeper.execution.ray.address import check_answers, unavailable

START_ATTEMPTS, SLOW_START = 3, "timed out during startup"
"""How often a cluster is started on this machine, and Ray 2.60's words for one that took longer than half a minute:
so it does on a machine that is busy with other things."""

CREDENTIALS = {name for name in class_cache.ENV_VARS_TO_PROPAGATE if name.startswith("AWS_")}
"""What Tune 2.60 hands to trials as part of their runtime environment, which Ray's agents write into their logs.

Trials have no need of it: processes of this machine's own cluster inherit the driver's environment, and the nodes of
any other have credentials of their own, by secrets or by role.
"""


@contextmanager
def ray_session(address: str | None, cpus: int | None) -> Iterator[dict[str, float]]:
    """Connect to a Ray cluster, or start one on this machine, and yield its resources; leave it afterwards.

    Args:
        address: of a running cluster (`auto` for the one this machine belongs to), or `None` to start one.
        cpus: how many cores a started one may use; `None` for all.

    Raises RayUnavailable when no cluster answers at `address`, or none could be started.
    """
    if ray.is_initialized():
        yield dict(ray.cluster_resources())
        return
    if address is not None:
        check_answers(address)
    _connect(address, cpus)
    class_cache.ENV_VARS_TO_PROPAGATE.difference_update(CREDENTIALS)
    try:
        yield dict(ray.cluster_resources())
    finally:
        ray.shutdown()
        class_cache.ENV_VARS_TO_PROPAGATE.update(CREDENTIALS)


def _connect(address: str | None, cpus: int | None) -> None:
    """Join the cluster at `address`, or start one; one that is slow to start is given another chance."""
    # Without an address Ray would join whatever cluster was last started on this machine.
    local = {"address": "local", "num_cpus": cpus, "include_dashboard": False}
    where = local if address is None else {"address": address}
    for attempt in range(1, START_ATTEMPTS + 1):
        before = _children()
        try:
            ray.init(**where, log_to_driver=False, logging_level="warning")
            return
        except Exception as error:  # Ray raises ConnectionError, RuntimeError and plain Exception alike
            ray.shutdown()
            _end(_children() - before)  # Ray leaves what it has started until this process ends
            if attempt == START_ATTEMPTS or address is not None or SLOW_START not in str(error):
                raise unavailable(address, error) from error


def _children() -> set[psutil.Process]:
    """Return this process's own children; theirs end with them, and other children's are nobody's business here."""
    return set(psutil.Process().children())


def _end(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=10)
