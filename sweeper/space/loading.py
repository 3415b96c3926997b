"""Load a search space file as a checked `SweepSpec`, or report all faults of the file at once.

    spec = load_spec("search_spaces/quickstart.yaml", ["scheduler.max_epochs=9"])

pydantic checks the structure (`sweeper.space.spec`), the registries check names and hyperparameters
(`sweeper.space.components`). The faults of both are collected before an error is raised.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from search_spaces import locate
from sweeper.core.domains.base import parse
from sweeper.core.domains.nodes import Constant, Fields, Node
from sweeper.core.domains.space import DATASET, Space
from sweeper.core.domains.values import Plain, Values, join_path, mappings, part_of
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.scheduling.base import DEFAULT, IGNORES_SETTINGS, WITHIN
from sweeper.search.base import Searcher, written_method
from sweeper.space.catalogue import Registries, installed_registries
from sweeper.space.checks import count_faults, cross_entropy_at_zero, line_faults, size_faults, within_faults
from sweeper.space.components import WORD, resolve_component, resolve_plain_component, split_axes
from sweeper.space.evaluation import check_evaluation, objective_faults, write_out_objective
from sweeper.space.file import Document, apply_overrides, apply_rehearsal, read_document
from sweeper.space.spec import ARRIVAL, ORDER, SearcherSettings, SweepSpec, gpu_faults, structural_faults, written_out
from sweeper.space.user_code import set_code_root
from trainables.registry import OWN, Registry, importing_nothing
from trainables.registry.names import hint, nearest


def check_searcher(values: Values, nodes: dict[str, Node], registry: Registry, faults: list[Fault]) -> dict[str, Node]:
    """Check the searcher against the space, fill in its defaults, and return the space adapted to it.

    Args:
        values: values of the file; `searcher` is completed in place. The structure's check reports wrong types.
        nodes: resolved parts of the space.
        registry: registry of searchers.
        faults: list to which each broken rule is appended.
    """
    given = values.get("searcher")
    if not isinstance(given, dict):
        return nodes
    named = {"name": SearcherSettings().name}
    given = named | {key: value for key, value in given.items() if value not in (None, [])}
    values["searcher"] = resolve_plain_component(given, registry, "searcher", faults)
    return written_method(values["searcher"]).adapt(nodes, faults) if values["searcher"] else nodes


def searcher_for(spec: SweepSpec) -> Searcher:
    """Return a new searcher of `spec`, without observations. The searcher must be one that learns.

    Example:
        >>> searcher_for(load_spec("quickstart", ["searcher=optuna"])).maker.split()[0]
        'optuna'
    """
    return spec.searcher.method.begin(spec.space, mode=spec.objective.mode, seed=spec.seed)


__all__ = ["SweepSpec", "build_spec", "load_spec"]


def load_spec(
    path: str | Path | Mapping[str, Plain],
    overrides: Sequence[str] = (),
    registries: Registries | None = None,
    *,
    rehearse: bool = False,
) -> SweepSpec:
    """Read, override and check a search space file.

    Args:
        path: path of a file, name of a shipped file such as `quickstart`, or the values of a file.
        overrides: `key=value` texts, e.g. `space.loss.one_of[1].gamma=3`; values are YAML.
        registries: names to check against; by default those built into the project.
        rehearse: whether to apply the file's changes under `rehearsal`, before the overrides.

    Raises:
        InvalidSearchSpace: the file, an override or the rehearsal has faults; it lists all of them.

    Example:
        >>> spec = load_spec("quickstart", ["scheduler.max_epochs=9", "scheduler.grace_epochs=1"])
        >>> spec.dataset["name"], spec.schedule.rungs
        ('digits', (1, 3, 9))
    """
    if isinstance(path, Mapping):
        set_code_root(None)
        # Copied, because overrides and short forms are applied in place.
        document, path = Document(values=copy.deepcopy(dict(path))), "search space"
    else:
        file = locate(path)
        set_code_root(file)
        document = read_document(file)
    if rehearse and not document.faults:
        apply_rehearsal(document)
    if overrides and not document.faults:
        apply_overrides(document, overrides)
    # Checked before the loop's code is imported: these rules need only its name.
    if document.values.get("loop") is not None:
        _refuse(loop_faults(document.values), document, str(path))
    spec = _checked(document, str(path), registries)
    # Not part of `_checked`: a sweep that began with such a setting can still be read, and resumed with another
    # setting.
    _refuse(gpu_faults(spec), document, str(path))
    _refuse(size_faults(spec), document, str(path))
    return spec


def _refuse(faults: Sequence[Fault], document: Document, source: str) -> None:
    """Raise InvalidSearchSpace if there are faults, each with its line of the file."""
    if faults:
        lined = [f if f.line is not None else dataclasses.replace(f, line=document.line_of(f.path)) for f in faults]
        raise InvalidSearchSpace(lined, source)


def build_spec(
    values: Mapping[str, Plain], registries: Registries | None = None, source: str = "search space"
) -> SweepSpec:
    """Check the values of a search space that are already in memory.

    Raises:
        InvalidSearchSpace: the values have faults.

    Example:
        >>> from sweeper.core.errors import InvalidSearchSpace
        >>> try:
        ...     build_spec({"dataset": "digit", "scheduler": {"max_epochs": 9}, "samples": 1, "space": {}})
        ... except InvalidSearchSpace as error:
        ...     [fault.path for fault in error.faults]
        ['dataset', 'space.loss', 'space.architecture', 'space.optimizer']
    """
    return _checked(Document(values=dict(values)), source, registries)


def reopened_spec(values: Mapping[str, Plain], source: str) -> SweepSpec:
    """Check the values of an existing sweep without importing its own components.

    Raises:
        InvalidSearchSpace: the values have faults.
    """
    # A results folder can come from somebody else. Reading its status must not run that person's code.
    with importing_nothing():
        return build_spec(values, None, source)


def _checked(document: Document, source: str, registries: Registries | None) -> SweepSpec:
    faults = list(document.faults)
    # A file that could not be read has no values; its other rules would only add noise.
    if not faults or document.values:
        values = written_out({key: value for key, value in document.values.items() if key != "space"})
        registries = registries or installed_registries()
        space, broken = _check_names(values, document.values.get("space"), registries)
        write_out_objective(values, registries)
        faults += broken
        try:
            spec = SweepSpec.model_validate({**values, "space": space} if "space" in document.values else values)
        except ValidationError as error:
            faults += structural_faults(error)
        faults += objective_faults(values, registries)
    _refuse(faults, document, source)
    return spec


def _check_names(values: dict[str, Plain], space: Plain, registries: Registries) -> tuple[Space | Plain, list[Fault]]:
    """Check data set, space and evaluation against the registries, and resolve them in `values`.

    Returns:
        The space as the tree that the spec keeps (unchanged if it is not a mapping), and the faults.
    """
    faults: list[Fault] = []
    loop = values.get("loop")
    own_data = loop is not None and values.setdefault("dataset", {"name": OWN}) == {"name": OWN}
    if "dataset" in values and isinstance(space, dict):
        values["dataset"], parts = split_axes(values["dataset"], space, faults)
        space = dict(parts)
    checked: Space | Plain = space
    if "dataset" in values and not own_data:
        # If options of the data set vary, the space contains the same faults, so they are dropped here.
        known = [] if isinstance(space, dict) and DATASET in space else faults
        values["dataset"] = resolve_plain_component(values["dataset"], registries.datasets, "dataset", known)
    scheduler = values.get("scheduler")
    if isinstance(scheduler, dict):
        values["scheduler"] = check_scheduler(scheduler, registries.schedulers, faults)
    if isinstance(space, dict):
        nodes = _check_space(space, loop, registries, faults)
        nodes = check_searcher(values, nodes, registries.searchers, faults)
        checked = tree = Space(nodes)
        faults += count_faults(values, tree)
        faults += line_faults(values, tree)
        values["cross_entropy_at_zero"] = cross_entropy_at_zero(tree, registries.space["loss"])
        faults += within_faults(part_of(scheduler, WITHIN.name), tree)
        if (per := part_of(values, "keep", "per")) != []:
            faults += within_faults(per, tree, "keep.per")
    evaluation = values.get("evaluation", {})
    if isinstance(evaluation, dict):
        values["evaluation"] = check_evaluation(dict(evaluation), registries, values.get("dataset"), faults)
    return checked, faults


def check_scheduler(given: Mapping[str, Plain], registry: Registry, faults: list[Fault]) -> dict[str, Plain]:
    """Fill in the scheduler's defaults; append each broken rule to `faults`."""
    # The order of judgements is not the scheduler's own setting; the structure's check completes and checks it.
    order: dict[str, Plain] = {key: value for key, value in given.items() if key in ORDER and value is not None}
    if order.get("order") == ARRIVAL:
        rule = "width belongs to the canonical order; processes that report in order of arrival have none"
        faults += [Fault("scheduler.width", rule, "omit width, or write order: canonical")] if "width" in order else []
        order["width"] = None
    settings: dict[str, Plain] = {"name": DEFAULT, **{key: value for key, value in given.items() if key not in ORDER}}
    name = settings["name"]
    if isinstance(name, str) and name in registry and IGNORES_SETTINGS in registry[name].tags:
        kept = {h.name for h in registry[name].hyperparameters}
        others = {h.name for component in registry.values() for h in component.hyperparameters} - kept
        settings = {key: value for key, value in settings.items() if key not in others}
    resolved = resolve_plain_component(settings, registry, "scheduler", faults)
    # If there are faults, a valid scheduler is returned, so that the structure's check does not report them again.
    return (resolved or {"name": name if isinstance(name, str) else DEFAULT, "max_epochs": 1}) | order


def _check_space(
    space: Mapping[str, Plain], loop: Plain, registries: Registries, faults: list[Fault]
) -> dict[str, Node]:
    parts = registries.space
    nodes = loop_nodes(space, loop, registries, faults) if isinstance(loop, str) else {}
    unknown = [key for key in space if key not in (*parts, DATASET)] if loop is None else []
    faults += [Fault(join_path("space", key), f"unknown key {key!r}", hint(key, parts)) for key in unknown]
    for key, registry in parts.items() if loop is None else ():
        if key in space:
            nodes[key] = resolve_component(space[key], registry, join_path("space", key), faults)
        else:
            known = ", ".join(registry)
            faults.append(Fault(join_path("space", key), f"the space has no {key}", f"name one of: {known}"))
    if DATASET in space:
        nodes[DATASET] = resolve_component(space[DATASET], registries.datasets, DATASET, faults)
    return nodes


#: Packings that work with any training loop, because they do not look inside a network.
SHARED = ("sequential", "trials")


def loop_nodes(space: Mapping[str, Plain], loop: str, registries: Registries, faults: list[Fault]) -> dict[str, Node]:
    """Resolve the space of a user's training loop; `loss`, `architecture` and `optimizer` name registered components.

    A part that the space omits is left to the loop and becomes `{name: own}`. If the loop's constructor takes
    `configuration`, the space can have any other keys. Otherwise the keys are checked against its signature.

    Args:
        space: the space as the file has it.
        loop: import path of the loop.
        registries: names to check against.
        faults: list to which each broken rule is appended.
    """
    from trainables.training.own_loop import takes_all  # brings torch along

    nodes: dict[str, Node] = {}
    for part, registry in registries.space.items():
        nodes[part] = Fields({"name": Constant(OWN)})
        if part in space and space[part] != {"name": OWN}:
            nodes[part] = resolve_component(space[part], registry, join_path("space", part), faults)
    free = {key: value for key, value in space.items() if key not in nodes and key != DATASET}
    for key in (key for key in free if not WORD.fullmatch(str(key))):
        rule = f"{key!r} cannot be part of a column's name"  # each key becomes the column config_<key>
        faults.append(Fault(join_path("space", key), rule, "use lower-case letters, digits and _, a letter first"))
    # The loop is trusted when imports are disabled (`reopened_spec`), because its signature was checked when the sweep
    # began.
    known, trusted = registries.loops, registries.loops.trusts(loop)
    refusal = None if trusted else known.refusal(loop)
    if refusal is not None:
        rule = f"{refusal[0]}{nearest(loop, known)}"
        # Only an unknown name has a remedy of its own; a module that cannot be imported says what is wrong with it.
        faults.append(Fault("loop", rule, refusal[1] and "write module.file:Name, e.g. my_code:Loop"))
        return nodes
    if trusted or takes_all(known[loop].build):
        return nodes | {key: parse(value, join_path("space", key), faults) for key, value in free.items()}
    resolved = resolve_component({"name": loop, **free}, known, "space", faults)
    return nodes | {key: node for key, node in getattr(resolved, "nodes", {}).items() if key != "name"}


def loop_faults(values: Values) -> list[Fault]:
    """Return a fault for each feature that a user's training loop does not support.

    Args:
        values: values of the file, `loop` included; the structure's check reports wrong types.
    """
    packing = part_of(values, "replicates", "packing")
    trajectory, shifts = part_of(values, "evaluation", "trajectory"), mappings(part_of(values, "evaluation", "splits"))
    asked = [
        ("replicates.packing", packing not in (None, *SHARED), f"packing = {packing}", "choose sequential or trials"),
        ("evaluation.trajectory", trajectory, "a trajectory", "return it from train_epoch"),
        ("evaluation.splits", shifts, "shifted data", "name splits that the loop predicts"),
        ("training", values.get("training"), "settings of training steps", "leave them to the loop"),
        ("dataset.weight", part_of(values, "dataset", "weight"), "a column of weights", "weight samples in the loop"),
    ]
    return [
        Fault(place, f"{what} needs the built-in training loop, but loop names another", remedy)
        for place, wanted, what, remedy in asked
        if wanted
    ]
