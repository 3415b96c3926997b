"""What was edited in a started sweep's search space: compared with the one that its journal has.

Every driver journals the resolved space that it drives. A resume with another one would give trials that are trained
the hyperparameters of others in every table, or mix two schedules; so each difference is named, and only what says
nothing about the measurements may differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.json_types import Plain, join_path
from sweeper.journal.journal import read_kind, record_names
from sweeper.journal.records import Attempt
from sweeper.space.loading import reopened_spec
from sweeper.storage.sweeps import Sweep

_LIMITS = ("max_concurrent", "priority", "retries", "trial_timeout", "hang_timeout")

AMENDABLE = ("budget", "checkpoint", "confirm", "keep", *_LIMITS, "notify", "resources")
"""The keys of a search space that say nothing about what is measured."""

GROWING = "samples"
"""The key that may become larger: the configurations so far stay what they are, and more follow."""

_UNMEASURED = (*AMENDABLE, "header", "rehearsal")

_LONGEST = 60
_REMEDY = "restore the value, or start a new sweep with it"
_CONFIGURATION = re.compile(r"-c(\d+)")
_ABSENT = object()


def edited(sweep: Sweep) -> list[Fault]:
    """Return what differs between a sweep's space and the journaled one, and may not; empty where nothing does.

    The journals of older releases have no space: there, only trials that the space does not have any more are found.

    Raises SweeperError when the journal is damaged.
    """
    journaled = _journaled(sweep.paths.journal)
    if journaled is None:
        return _trials_beyond(sweep)
    now = _plain(sweep.spec.resolved())
    if now == journaled:
        return []
    before = _by_this_release(journaled)
    if _count(now) < _count(before):
        rule = f"{GROWING} = {_count(now)}, but the sweep was driven with {_count(before)}: it can only grow"
        return [*_differences(before, now), Fault(GROWING, rule, _REMEDY)]
    return [*_differences(before, now)]


def _journaled(journal: Path) -> Mapping[str, Plain] | None:
    """Return the space that the last driver journaled; `None` where none did."""
    spaces = [record.body.space for record in read_kind(journal, Attempt) if isinstance(record.body, Attempt)]
    return next((space for space in reversed(spaces) if space is not None), None)


def _by_this_release(journaled: Mapping[str, Plain]) -> Mapping[str, Plain]:
    """Return a journaled space with what later releases have added to it at its default."""
    try:
        return _plain(reopened_spec(dict(journaled), "the journal").resolved())
    except InvalidSearchSpace:
        return journaled  # it says what this release does not know: that shows as a difference


def _plain(values: Mapping[str, Plain]) -> Mapping[str, Plain]:
    """Return values as they come back from a journal."""
    plain: Mapping[str, Plain] = json.loads(json.dumps(values))
    return plain


def _count(space: Mapping[str, Plain]) -> int:
    samples = space.get(GROWING)
    return samples if isinstance(samples, int) else 1


def _trials_beyond(sweep: Sweep) -> list[Fault]:
    found = (_CONFIGURATION.search(name) for name in record_names(sweep.paths.journal))
    last = max((int(match[1]) for match in found if match), default=-1)
    if last < len(sweep.configurations):
        return []
    rule = f"the space has {len(sweep.configurations)} configurations, and the journal has records of number {last}"
    return [Fault(GROWING, rule, _REMEDY)]


def _differences(before: Mapping[str, Plain], now: Mapping[str, Plain]) -> Iterator[Fault]:
    for key in dict.fromkeys([*before, *now]):
        if key not in (*_UNMEASURED, GROWING):
            yield from _between(before.get(key, _ABSENT), now.get(key, _ABSENT), key)


def _between(before: object, now: object, path: str) -> Iterator[Fault]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _between(before.get(key, _ABSENT), now.get(key, _ABSENT), join_path(path, str(key)))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (first, second) in enumerate(zip(before, now, strict=True)):
            yield from _between(first, second, join_path(path, index))
    elif before != now:
        yield Fault(path, f"it is {_shown(now)}, and the sweep was driven with {_shown(before)}", _REMEDY)


def _shown(value: object) -> str:
    text = "missing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def changed_trials(journaled: Mapping[int, str | None], now: Sequence[str | None]) -> list[int]:
    """Return the configurations that are not what they were, by the digests in the journal and those of now.

    Where either is unknown, nothing is compared. The space being the same, it is the code that draws from it that
    has changed.
    """
    known = ((index, digest) for index, digest in journaled.items() if digest is not None)
    return [index for index, digest in known if now[index] not in (None, digest)]
