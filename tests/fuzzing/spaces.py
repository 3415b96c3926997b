"""Search spaces that nobody meant to write: shipped files with their structure or bytes changed, and what must hold."""

import copy
import math
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from search_spaces import packaged_files
from sweeper.core.domains.base import DOMAINS
from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.plan import plan
from sweeper.space.configurations import configurations
from sweeper.space.loading import SweepSpec, build_spec, load_spec
from tests.fuzzing.damage import damages

VALID, REFUSED = "valid", "refused"
RESOLVED_ONE_IN, SIMULATED_ONE_IN = 4, 16
"""Writing and reading a space takes ten times as long as checking it, simulating successive halving a hundred times:
one valid space in so many."""


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) below a value."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in list(members):
        yield value, key
        yield from places(member)


SHIPPED = [yaml.load(path.read_text("utf-8"), yaml.CSafeLoader) for path in packaged_files().values()]
TEXTS = [path.read_bytes() for path in packaged_files().values()]
KEYS = {key for space in SHIPPED for _, key in places(space) if isinstance(key, str)}
NAMES = sorted(KEYS | {*DOMAINS, "lr", "gamma", "mlp", "focal", "digits", "nmae", "", "γ", "a.b", "x[0]", "os:sep"})
EXTREMES: list[Any] = [
    None, True, False, 0, 1, -1, 3, 2**63 - 1, 2**63, -(2**70), 0.0, -0.0, 0.5, 1e-308, 1e308, math.inf, -math.inf,
    math.nan, "", " ", "null", "1e3", "~", "\x00", "é", "${HOME}", "../..", "a" * 300, [], {}, [[]], [{}], {"": None},
]  # fmt: skip

values = st.one_of(
    st.sampled_from(EXTREMES),
    st.sampled_from(NAMES),
    st.integers(-10, 10**6),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.sampled_from(EXTREMES), max_size=4),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(EXTREMES), max_size=3),
    st.tuples(st.sampled_from([*DOMAINS]), st.lists(st.floats(-1, 9), max_size=4)).map(lambda pair: dict([pair])),
)
CHANGES = ("replace", "delete", "rename", "repeat", "wrap", "graft")
changes = st.lists(
    st.tuples(st.sampled_from(CHANGES), st.integers(0, 2**16), st.sampled_from(NAMES), values), min_size=1, max_size=4
)


def changed(space: dict[str, Any], kind: str, position: int, name: str, value: Any) -> dict[str, Any]:
    """Return a space with one thing changed at the place that `position` chooses; it is the caller's to change."""
    value = copy.deepcopy(value)
    found = list(places(space))
    if not found:
        return {name: value}
    container, key = found[position % len(found)]
    if kind == "replace":
        container[key] = value
    elif kind == "delete":
        del container[key]
    elif kind == "rename" and isinstance(container, dict):
        container[name] = container.pop(key)
    elif kind == "repeat" and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))
    elif kind == "wrap":
        container[key] = {name: [container[key], value]}
    else:
        other = list(places(SHIPPED[position % len(SHIPPED)]))
        donor, at = other[position // 7 % len(other)]
        container[key] = copy.deepcopy(donor[at])
    return space


def _restructured(base: int, found: list[tuple[str, int, str, Any]]) -> dict[str, Any]:
    space = copy.deepcopy(SHIPPED[base])
    for change in found:
        space = changed(space, *change)
    return space


def _damaged(base: int, damage: Callable[[bytes], bytes]) -> bytes:
    return damage(TEXTS[base])


_bases = st.integers(0, len(SHIPPED) - 1)
structured = st.builds(_restructured, _bases, changes)
"""Shipped spaces with up to four things replaced, deleted, renamed, repeated, wrapped or taken from another file."""
garbled = st.one_of(st.builds(_damaged, _bases, damages), st.binary(max_size=200))
"""Shipped files with damaged bytes, and bytes that were never a file."""


def check_values(values: dict[str, Any]) -> str:
    """Check a search space's values as `check_bytes` does a file's."""
    return _checked(lambda: build_spec(values), values, zlib.crc32(repr(values).encode("utf-8", "surrogatepass")))


def check_bytes(content: bytes, folder: Path) -> str:
    """Read a search space file; return whether it is valid. An exception other than `InvalidSearchSpace` is a fault.

    A valid one must come back equal from its resolved form, give its first and last configuration, and be planned.
    """
    path = folder / "fuzzed.yaml"
    path.write_bytes(content)
    return _checked(lambda: load_spec(path), content, zlib.crc32(content))


def _checked(read: Callable[[], SweepSpec], given: object, draw: int) -> str:
    try:
        spec = read()
    except InvalidSearchSpace as error:
        assert error.faults and all(fault.rule for fault in error.faults) and str(error), given
        return REFUSED
    drawn = configurations(spec)
    assert len(drawn) >= 1 and drawn[0] and drawn[len(drawn) - 1], given
    if draw % RESOLVED_ONE_IN == 0:
        again = build_spec(yaml.safe_load(yaml.safe_dump(spec.resolved(), allow_unicode=True)))
        assert yaml.safe_dump(again.resolved()) == yaml.safe_dump(spec.resolved()), given
    if spec.scheduler.name == "none" or draw % SIMULATED_ONE_IN == 0:
        assert plan(spec, workers=2).trials == len(drawn), given
    return VALID
