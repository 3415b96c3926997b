"""A search space whose training loop is the user's own: its free hyperparameters, and what does not go with it."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.core.domains import Constant, Fields, Node, parse
from sweeper.core.errors import Fault
from sweeper.core.json_types import Plain, Values, join_path, mappings, part_of
from sweeper.space.catalogue import Registries
from sweeper.space.components import PART, WORD, resolve_component
from trainables.registry import OWN

SHARED = ("sequential", "trials")
"""Packings that do not look into a network."""


def loop_nodes(space: Mapping[str, Plain], loop: str, registries: Registries, faults: list[Fault]) -> dict[str, Node]:
    """Return the parts of a loop's space, resolved; `loss`, `architecture` and `optimizer` name components of ours.

    Parts that the space does not name are the loop's own business: each stands there as `{name: own}`. A loop that
    takes `configuration` may have any other names; of one that takes them one by one the signature is kept to.

    Args:
        space: as the file has it.
        loop: the loop's import path.
        registries: what can be named.
        faults: takes every rule that is broken.
    """
    from trainables.training.own_loop import takes_all  # brings torch along

    nodes: dict[str, Node] = {}
    for part, registry in registries.space.items():
        own = space.get(part, {"name": OWN})
        place = join_path("space", part)
        nodes[part] = (
            Fields({"name": Constant(OWN)}) if own == {"name": OWN} else resolve_component(own, registry, place, faults)
        )
    free = {key: value for key, value in space.items() if key not in nodes and key != PART}
    for key in (key for key in free if not WORD.fullmatch(str(key))):
        rule = f"{key!r} cannot be part of a column's name"
        faults.append(Fault(join_path("space", key), rule, "use lower-case letters, digits and _, a letter first"))
    known, trusted = registries.loops, registries.loops.trusts(loop)
    unusable = None if trusted else known.fault(loop)
    if unusable is not None:
        faults.append(Fault("loop", unusable.partition("; known: ")[0], "write module.file:Name, e.g. my_code:Loop"))
        return nodes
    if trusted or takes_all(known[loop].build):
        return nodes | {key: parse(value, join_path("space", key), faults) for key, value in free.items()}
    found = resolve_component({"name": loop, **free}, known, "space", faults)
    return nodes | {key: node for key, node in getattr(found, "nodes", {}).items() if key != "name"}


def loop_faults(values: Values, *, rehearsed: bool) -> list[Fault]:
    """Return what a search space asks for that only this program's own training loop can do.

    Args:
        values: of the file, `loop` among them; values of a wrong type are the structure's business.
        rehearsed: whether a rehearsal is asked for.
    """
    packing, workers = part_of(values, "replicates", "packing"), part_of(values, "resources", "workers")
    trajectory, shifts = part_of(values, "evaluation", "trajectory"), mappings(part_of(values, "evaluation", "splits"))
    asked = [
        ("replicates.packing", packing not in (None, *SHARED), f"packing = {packing}", "choose sequential or trials"),
        ("resources.workers", workers not in (None, 1), f"workers = {workers}", "set workers: 1"),
        ("evaluation.trajectory", trajectory, "a trajectory", "return it from train_epoch"),
        ("evaluation.splits", shifts, "shifted data", "name splits that the loop predicts"),
        ("training", values.get("training"), "settings of training steps", "leave them to the loop"),
        ("rehearsal", rehearsed or values.get("rehearsal"), "a rehearsal", "use fewer epochs"),
    ]
    return [
        Fault(place, f"{what} needs this program's own training loop, and loop names another", remedy)
        for place, wanted, what, remedy in asked
        if wanted
    ]
