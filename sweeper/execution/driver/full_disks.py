"""What a full disk means: the end of the sweep where it is the driver's own, else a node that trials keep away from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path

from sweeper.execution.driver.failures import Failure
from trainables.files.atomic import temporary_file

LEAST_BYTES = 64 * 2**20
"""With less than this left, the driver's own storage is taken for what was full: a checkpoint may not fit any more."""

PROBE_BYTES = 2**20

OtherNodes = Callable[[AbstractSet[str]], bool]
"""Returns whether a living node that holds a trial is not one of those named."""


class FullDisks:
    """Knows the nodes whose disks are full, until the sweep is resumed."""

    def __init__(self, folder: Path, other_nodes: OtherNodes) -> None:
        """Begin with none; `folder` is on the driver's own storage."""
        self.nodes: set[str] = set()
        self._folder, self._other_nodes = folder, other_nodes

    def met(self, failure: Failure) -> str | None:
        """Take in a failure caused by a lack of storage; return why the sweep has to stop, if it has to.

        It has not where the driver itself can write, the trial's node is known, and there are others.
        """
        if failure.node is None or not _has_room(self._folder):
            return failure.reason
        self.nodes.add(failure.node)
        return None if self._other_nodes(self.nodes) else f"{failure.reason}; there is no other node"


def _has_room(folder: Path) -> bool:
    """Return whether something can be written to a folder, and to its disk."""
    try:
        if shutil.disk_usage(folder).free < LEAST_BYTES:
            return False
        with temporary_file(folder) as probe, probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return False
    return True
