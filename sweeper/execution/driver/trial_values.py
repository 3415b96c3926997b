"""The values of configurations, for the processes that train them, and their digests, for the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweeper.core.ids import config_hash
from sweeper.journal.state import SweepState


class TrialValues:
    """Knows configurations by index, and which digests the journal lacks."""

    def __init__(self, configurations: Sequence[dict[str, Any]], state: SweepState) -> None:
        """Take the configurations, and the state of the sweep, which continues changing."""
        self._configurations, self._state = configurations, state
        self._hashes: dict[int, str] = {}

    def of(self, index: int) -> dict[str, Any]:
        """Return a configuration's values, and remember their digest until its first report is journaled."""
        values = self._configurations[index]
        if self._state.trials[index].config_hash is None:
            self._hashes[index] = config_hash(values)
        return values

    def digest(self, index: int) -> str | None:
        """Return the digest of a configuration's values for its first report; `None` where the journal has it."""
        if self._state.trials[index].config_hash is not None:
            return None
        return self._hashes.pop(index, None) or config_hash(self._configurations[index])
