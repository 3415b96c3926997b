"""Checking the named parts of a search space (losses, architectures, optimisers …) against their registries.

A component is written as its name, as `{name: …, hyperparameter: value or domain}`, or as a choice, grid or one_of over
those. Checking writes the short form out, fills every default in and gives numbers their hyperparameter's type, so a
resolved space states every hyperparameter that is used.

Options of the data set, such as label noise, may vary, too: `dataset: {name: digits, label_noise: {choice: [0, 0.1]}}`
becomes the part `dataset` of the space, and the sweep's own data set is the one of first values. Each configuration
then names its data set in full, and every data set is loaded once a node: so options take `choice` and `grid`, and not
ranges, of which each trial would draw another data set.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

from sweeper.core import domains
from sweeper.core.domains import DOMAINS, INVALID, Constant, Fields, Interval, Members, Node, extremes, parse, plain
from sweeper.core.errors import Fault
from sweeper.core.json_types import Plain, join_path
from trainables.registry import LABEL, Component, Hyperparameter, Registry, entry_label
from trainables.registry.names import hint, nearest

_MAXIMUM_COMBINATIONS = 4096

#: What a column's name can be made of.
WORD = re.compile(r"[a-z][a-z0-9_]*")


def resolve_component(value: Plain, registry: Registry, path: str, faults: list[Fault]) -> Node:
    """Return the component at `path` with its defaults filled in; what it breaks is added to `faults`."""
    return _resolve(parse(value, path, faults), registry, path, faults)


def _resolve(node: Node, registry: Registry, path: str, faults: list[Fault]) -> Node:
    if node is INVALID:
        return node
    if isinstance(node, Members):
        inner = join_path(path, node.kind)
        nodes = (_resolve(each, registry, join_path(inner, index), faults) for index, each in enumerate(node.nodes))
        return Members(node.kind, tuple(nodes))
    if isinstance(node, Constant) and isinstance(node.value, str):
        node = Fields({"name": node})
    if isinstance(node, Fields):
        return _resolve_named(node, registry, path, faults)
    shown = f"the domain {node.kind}" if isinstance(node, Interval) else repr(node.value)
    rule = f"{shown} does not name a{_n(registry.kind)} {registry.kind}"
    return domains.refused(faults, path, rule, f"known: {', '.join(registry)}")


def _resolve_named(node: Fields, registry: Registry, path: str, faults: list[Fault]) -> Node:
    given = dict(node.nodes)
    name = given.pop("name", None)
    if name is None:
        remedy = _misspelled_domain(node) or f"write {{name: …}}; known: {', '.join(registry)}"
        return domains.refused(faults, path, f"the {registry.kind} has no name", remedy)
    if name is INVALID:
        return INVALID
    if not isinstance(name, Constant) or not isinstance(name.value, str):
        rule = f"{plain(name)!r} is not the name of a{_n(registry.kind)} {registry.kind}"
        remedy = "a name is plain text; to try several, wrap it in choice, grid or one_of"
        return domains.refused(faults, join_path(path, "name"), rule, remedy)
    if registry.trusts(name.value):
        return Fields({"name": name, **given})
    if (refusal := registry.refusal(name.value)) is not None:
        return domains.refused(faults, join_path(path, "name") if len(given) else path, *refusal)
    return _resolve_hyperparameters(registry[name.value], given, path, faults)


def _resolve_hyperparameters(component: Component, given: dict[str, Node], path: str, faults: list[Fault]) -> Node:
    known = tuple(h.name for h in component.hyperparameters)
    found: list[Fault] = []
    for key in (key for key in given if key not in known):
        remedy = hint(key, known) or "remove it"
        found.append(Fault(join_path(path, key), f"{component.name} takes no hyperparameter {key!r}", remedy))
    nodes: dict[str, Node] = {"name": Constant(component.name)}
    for description in component.hyperparameters:
        place = join_path(path, description.name)
        node = given.get(description.name)
        if node is None:
            if description.required:
                rule = f"{component.name} needs {description.name}"
                found.append(Fault(place, rule, f"valid: {description.range_text}"))
            elif description.default is not None:
                default = description.default
                value = [*default] if isinstance(default, tuple) else default
                nodes[description.name] = _typed(Constant(value), description)
        elif node is not INVALID:
            found += _value_faults(node, description, place)
            if not (isinstance(node, Constant) and node.value is None):  # null: the component decides
                nodes[description.name] = node if found else _typed(node, description)
    if not found:
        found += _joint_faults(component, nodes, path)
    faults += found
    return INVALID if found else Fields(nodes)


def _value_faults(node: Node, description: Hyperparameter, path: str) -> list[Fault]:
    """Return the rules that a hyperparameter's value or any end or member of its domain breaks."""
    if isinstance(node, Fields):
        remedy = _misspelled_domain(node) or f"valid: {description.range_text}, or a domain: {', '.join(DOMAINS)}"
        return [Fault(path, f"{description.name} is a mapping but not a domain", remedy)]
    faults: list[Fault] = []
    for place, value in extremes(node):
        rule = "an empty mapping" if isinstance(value, dict) else description.fault(value)
        if rule is not None and not any(f.path == path + place and f.rule == rule for f in faults):
            remedy = "" if description.choices else f"valid: {description.range_text}"  # else the rule lists them
            faults.append(Fault(path + place, rule, "" if description.range_text in rule else remedy))
    for place, inner in domains.walk(node, path):
        if isinstance(inner, Fields):
            faults.append(Fault(place, f"{description.name} is a mapping but not a domain", _misspelled_domain(inner)))
        elif isinstance(inner, Interval) and description.kind == "integer" and not _draws_integers(inner):
            rule = f"{description.name} must be a whole number, but {inner.kind} draws real numbers"
            faults.append(Fault(place, rule, "use randint: [low, high]"))
    return faults


def _draws_integers(node: Interval) -> bool:
    whole = all(float(end).is_integer() for end in (node.low, node.high, node.step or 0))
    return whole and node.kind in ("randint", "quniform")


def _joint_faults(component: Component, nodes: Mapping[str, Node], path: str) -> list[Fault]:
    """Return the rule over several hyperparameters that some combination of ends and members breaks."""
    if component.check is None:
        return []
    names = [name for name in nodes if name != "name"]
    values: list[list[tuple[str, Plain]]] = [extremes(nodes[name]) for name in names]
    if math.prod(map(len, values)) > _MAXIMUM_COMBINATIONS:  # then the first and last member of each
        values = [[v[0], v[-1]] for v in values]
    for combination in itertools.islice(itertools.product(*values), _MAXIMUM_COMBINATIONS):
        rule = component.check({name: value for name, (_, value) in zip(names, combination, strict=True)})
        if rule is not None:
            subject = rule.split()[0]  # a rule that begins with a hyperparameter is that one's fault
            places = {name: join_path(path, name) + place for name, (place, _) in zip(names, combination, strict=True)}
            return [Fault(places.get(subject, path), rule)]
    return []


def _typed(node: Node, description: Hyperparameter) -> Node:
    """Return the node with its numbers in the hyperparameter's type, so that `3` and `3.0` are one value."""
    if description.kind not in ("number", "integer", "numbers"):
        return node
    number: type[int] | type[float] = int if description.kind == "integer" else float
    if isinstance(node, Members):
        return Members(node.kind, tuple(_typed(member, description) for member in node.nodes))
    if isinstance(node, Interval):
        step = None if node.step is None else number(node.step)
        return Interval(node.kind, number(node.low), number(node.high), step)
    value = node.value if isinstance(node, Constant) else None
    if isinstance(value, list):
        return Constant([number(v) for v in value if isinstance(v, (int, float))])
    return Constant(number(value)) if isinstance(value, (int, float)) else node


def _misspelled_domain(node: Fields) -> str:
    """Return `did you mean 'uniform'?` when a mapping looks like a misspelled domain, else nothing."""
    if len(node.nodes) != 1:
        return ""
    return nearest(next(iter(node.nodes)), DOMAINS).removeprefix("; ")


def resolve_plain_component(value: Plain, registry: Registry, path: str, faults: list[Fault]) -> dict[str, Plain]:
    """Return a component that no domain may vary (a data set, a post-hoc method) as `{name: …, option: value}`."""
    given: dict[str, Plain] = value if isinstance(value, dict) else {"name": value}
    same = f"the {registry.kind} is the same for the whole sweep"
    if len(given) == 1 and next(iter(given)) in DOMAINS:
        faults.append(Fault(path, same, "vary what is under `space`"))
        return {}
    varied = [key for key, option in given.items() if isinstance(option, dict)]
    if varied:
        faults += [Fault(join_path(path, key), f"{key} takes a plain value; {same}") for key in varied]
        return {}
    constants: dict[str, Node] = {key: Constant(option) for key, option in given.items()}
    resolved = plain(_resolve_named(Fields(constants), registry, path, faults))
    return resolved if isinstance(resolved, dict) else {}


def resolve_components(
    value: Plain, registry: Registry, path: str, faults: list[Fault], besides: Sequence[str] = ()
) -> Plain:
    """Return a list of components that no domain may vary; one alone, or none, is a list, too.

    Their columns are called after them, so no two may have one name, or one `label` where they may have labels.

    Args:
        value: as the file has it.
        registry: of the components.
        path: of the list in the file.
        faults: those found so far; further ones are added.
        besides: the keys that a member may have besides its name and hyperparameters, each a plain word.
    """
    if isinstance(value, (str, dict)) or value is None:
        value = [value] if value else []
    if not isinstance(value, list):
        return value
    resolved: list[Plain] = []
    labels: set[str] = set()
    for index, component in enumerate(value):
        place = join_path(path, index)
        given: dict[str, Plain] = dict(component) if isinstance(component, dict) else {"name": component}
        own = {key: given.pop(key) for key in besides if key in given}
        found = resolve_plain_component(given, registry, place, faults)
        for key, word in own.items():
            if not isinstance(word, str) or not WORD.fullmatch(word):
                rule = f"{key} = {word!r} must be a word of lower-case letters, digits and _"
                faults.append(Fault(join_path(place, key), rule))
        resolved.append({**found, **own} if found else found)
        if found:
            label = entry_label({**found, **own})
            if label in labels:
                remedy = "give one of them a label" if LABEL in besides else "columns are named after it"
                faults.append(Fault(place, f"{own.get(LABEL, found['name'])} is given twice", remedy))
            labels.add(label)
    return resolved


def _n(noun: str) -> str:
    return "n" if noun[:1] in "aeiou" else ""


PART = "dataset"
#: Domains that an option of a data set may have.
LISTED = ("choice", "grid")


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
