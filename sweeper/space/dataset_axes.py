"""Options of the data set that a sweep varies, such as label noise: part of the space like any other hyperparameter.

`dataset: {name: digits, label_noise: {choice: [0, 0.1]}}` becomes the part `dataset` of the space, and the sweep's own
data set is the one of first values. Each configuration then names its data set in full, and every data set is loaded
once a node: so options take `choice` and `grid`, and not ranges, of which each trial would draw another data set.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from sweeper.core.errors import Fault
from sweeper.core.key_paths import join_path
from sweeper.core.plain import Plain
from sweeper.space.domains.domains import DOMAINS, Fields, extremes, plain

PART = "dataset"
LISTED = ("choice", "grid")
"""Domains that an option of a data set may have."""


def split_axes(dataset: Plain, space: Mapping[str, Plain], faults: list[Fault]) -> tuple[Plain, Mapping[str, Plain]]:
    """Return the data set of first values, and the space with the data set as a part; as they are without domains.

    Args:
        dataset: as the file has it, its short form written out.
        space: as the file has it.
        faults: takes what is wrong with the domains.
    """
    axes = domains_of(dataset)
    if not isinstance(dataset, dict) or not axes or set(dataset) <= set(DOMAINS):
        return dataset, space
    first = dict(dataset)
    for key, (kind, members) in axes.items():
        place = join_path(PART, key)
        if key == "name":
            faults.append(Fault(place, "the name of the data set is the same for the whole sweep", "vary its options"))
        elif kind not in LISTED:
            rule = f"{key} takes choice or grid: with a {kind}, each trial would draw and load a different data set"
            faults.append(Fault(place, rule, f"write e.g. {key}: {{choice: [0, 0.1, 0.2]}}"))
        if not isinstance(members, list) or not members:
            members = [None]
        first[key] = members[0]
    return first, {**space, PART: dataset}


def domains_of(dataset: Plain) -> dict[str, tuple[str, Plain]]:
    """Return the options of a data set that are domains, each with its kind and its members or ends."""
    found: dict[str, tuple[str, Plain]] = {}
    for key, value in dataset.items() if isinstance(dataset, dict) else ():
        if isinstance(value, dict) and len(value) == 1 and (kind := next(iter(value))) in DOMAINS:
            found[key] = (kind, value[kind])
    return found


def variants(space: Fields) -> list[dict[str, Plain]]:
    """Return every data set that configurations name, each as `{name: …, option: value}`; none without axes."""
    part = space.nodes.get(PART)
    if not isinstance(part, Fields):
        return []
    values = [[(key, value) for _, value in extremes(node) or [("", plain(node))]] for key, node in part.nodes.items()]
    return [dict(combination) for combination in itertools.product(*values)]


def rehearsed_axes(
    axes: Mapping[str, Plain], stand_in: Mapping[str, Plain], known: tuple[str, ...], said: list[str]
) -> dict[str, Plain] | None:
    """Return the part `dataset` of a rehearsal's space: the axes that its stand-in has; None where it has none.

    Args:
        axes: the part of the real space, domains and all.
        stand_in: the rehearsal's data set.
        known: the options that the stand-in takes.
        said: takes what is left out.
    """
    if stand_in.get("name") == axes.get("name"):
        return dict(axes)
    domains = domains_of(dict(axes))
    lost = [key for key in domains if key not in known]
    said += [f"no {key}: the stand-in for the data has none" for key in lost]
    kept = {key: axes[key] for key in domains if key in known}
    return {**stand_in, **kept} if kept else None
