"""`run --continue`: one command that starts a sweep or goes on with it, for scripts that are run again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.space.loading import load_spec
from sweeper.space.rehearsal import rehearsal_name
from sweeper.storage.metadata import read_specification
from sweeper.storage.places import DRIVING, place_of

FIXED = ("dataset", "space", "objective", "objectives", "constraints", "scheduler", "searcher", "replicates", "seed")
"""Keys that no resume may change: a sweep with others is another sweep."""


def to_continue(
    space: Path | str | Mapping[str, Any], overrides: Sequence[str], name: str | None, output: str, *, rehearse: bool
) -> tuple[str, bool]:
    """Return the name that a sweep has or is to have, and whether there is one to go on with.

    Raises InvalidSearchSpace, and SweeperError where the sweep of that name was started from another search space.
    """
    spec = load_spec(space, overrides, rehearse=rehearse)
    name = name or ("sweep" if isinstance(space, Mapping) else Path(space).stem)
    name = rehearsal_name(name) if spec.is_rehearsal else name
    place = place_of(output, DRIVING)
    if place.store is not None:
        return name, place.has(name)
    file = SweepPaths(place.folder / name).sweep_file
    if not file.exists():
        return name, False
    kept, given = read_specification(file, required=True), spec.resolved()
    different = [key for key in FIXED if kept.get(key) != given.get(key)]
    if different:
        raise SweeperError(
            f"the sweep {name!r} was started from another search space: {', '.join(different)} differ",
            "choose another --name; limits of a sweep change with `sweeper resume --set`",
        )
    return name, True
