"""The entries of `evaluation.splits`: a data set's own splits by name, and shifts, each a mapping of a name to options.

E.g. `splits: [val, test, {corrupted: {severities: [1, 3, 5]}}, {other: {dataset: svhn}}]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space.components import resolve_plain_component
from sweeper.space.registries import Registries

NAMED_DATASET = "dataset"
"""The option of a shift that names a data set, as text or with options of its own."""


def resolve_shifts(given: Sequence[Plain], registries: Registries, path: str, faults: list[Fault]) -> list[Plain]:
    """Return the entries with every mapping as `{name: …, option: value}`, defaults filled in; faults are added."""
    found: list[Plain] = []
    for index, entry in enumerate(given):
        if isinstance(entry, dict):
            resolved = _resolved(entry, registries, join_path(path, index), faults)
            if resolved:
                found.append(resolved)
        else:
            found.append(entry)
    return found


def _resolved(
    entry: Mapping[str, Plain], registries: Registries, path: str, faults: list[Fault]
) -> dict[str, Plain] | None:
    if "name" in entry:
        named = dict(entry)
    else:
        if len(entry) != 1:
            known = ", ".join(registries.shifts)
            rule = f"{entry!r} must have one key, the name of an evaluation split: {known}"
            faults.append(Fault(path, rule, "write each as an entry of its own, e.g. - {other: {dataset: svhn}}"))
            return None
        ((name, options),) = entry.items()
        if options is not None and not isinstance(options, dict):
            faults.append(Fault(join_path(path, name), f"{options!r} must be a mapping of options", "e.g. {}"))
            return None
        named = {"name": name, **(options or {})}
    other = named.get(NAMED_DATASET)
    if isinstance(other, dict):
        named[NAMED_DATASET] = str(other.get("name", ""))
    before = len(faults)
    resolved = resolve_plain_component(named, registries.shifts, path, faults)
    if other is not None and len(faults) == before:
        resolved[NAMED_DATASET] = resolve_plain_component(
            other, registries.datasets, join_path(path, NAMED_DATASET), faults
        )
    return resolved if len(faults) == before else None


def shift_faults(entries: Sequence[object], path: str) -> list[Fault]:
    """Return a fault for each resolved shift of which a split is called as another's, or needs `test` and lacks it."""
    from trainables.datasets.shifts import build_shift  # brings torch along

    faults: list[Fault] = []
    names: set[str] = {each for each in entries if isinstance(each, str)}
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            continue
        shift = build_shift(entry)
        twice = sorted(names.intersection(shift.names))
        if twice:
            rule = f"{', '.join(twice)} is measured twice"
            faults.append(Fault(join_path(path, index), rule, "name each split once, or give one of them a label"))
        names |= set(shift.names)
        if shift.detected and "test" not in entries:
            rule = f"{entry['name']} is compared with the test split, which is not measured"
            faults.append(Fault(join_path(path, index), rule, "add test to the splits"))
    return faults
