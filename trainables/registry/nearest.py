"""Suggestions for misspelled names in error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CUTOFF = 0.5
"""How alike two names must be, from 0 to 1 (`difflib.SequenceMatcher.ratio`): `gama` and `gamma` are .89 alike."""


def nearest(value: str, names: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `names`, or nothing."""
    near = difflib.get_close_matches(str(value), list(names), n=1, cutoff=CUTOFF)
    return f"; did you mean {near[0]!r}?" if near else ""


def did_you_mean(value: str, names: tuple[str, ...]) -> str:
    """Return `; did you mean 'x'?` with the nearest of `names`, else the list of them, else nothing."""
    known = f"; known: {', '.join(names)}" if names else ""
    return nearest(value, names) or known
