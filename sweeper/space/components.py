"""Check the components of a search space (losses, architectures, optimisers …) against their registries.

A component is written as its name, as `{name: …, hyperparameter: value or domain}`, or as a choice, grid or one_of over
these. Checking expands short forms, fills in every default and converts numbers to their hyperparameter's type. So a
resolved space states every hyperparameter that is used.

Options of the data set, such as label noise, can also vary: `dataset: {name: digits, label_noise: {choice: [0, 0.1]}}`
becomes the part `dataset` of the space, and the sweep's own data set has the first value of each option. Each
configuration then contains its whole data set. Options take `choice` and `grid` only: each node loads every data set
once, and with a range each trial would need a different data set.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.domains.base import DOMAINS, Interval, parse, plain_node
from sweeper.core.domains.nodes import INVALID, Constant, Fields, Members, Node, refused
from sweeper.core.domains.space import DATASET
from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault
from trainables.registry import LABEL, Component, Hyperparameter, Registry, entry_label
from trainables.registry.names import hint, nearest

#: Largest number of combinations of ends and members for which a joint rule is checked. They take a few milliseconds
#: per component.
_MAXIMUM_COMBINATIONS = 4096

#: Names that can be part of a column's name.
WORD = re.compile(r"[a-z][a-z0-9_]*")


def resolve_component(value: Plain, registry: Registry, path: str, faults: list[Fault]) -> Node:
    """Parse the component at `path`, or a list of components, and fill in defaults; add broken rules to `faults`.

    Example:
        >>> from trainables.losses import LOSSES
        >>> faults = []
        >>> node = resolve_component({"name": "focal", "gama": 2}, LOSSES, "space.loss", faults)
        >>> faults[0].path, faults[0].rule, faults[0].remedy
        ('space.loss.gama', "focal takes no hyperparameter 'gama'", "did you mean 'gamma'?")
    """

    def read(value: Plain, path: str, faults: list[Fault]) -> Node:
        named = {"name": value} if isinstance(value, str) else value
        if isinstance(named, dict):
            return _resolve_named(named, registry, path, faults)
        return nameless(repr(value), path, faults)

    def nameless(shown: str, path: str, faults: list[Fault]) -> Node:
        rule = f"{shown} does not name a{_n(registry.kind)} {registry.kind}"
        return refused(faults, path, rule, f"known: {', '.join(registry)}")

    return parse(value, path, faults, read, lambda node, *place: nameless(f"the domain {node.kind}", *place))


def _resolve_named(given: Mapping[str, Plain], registry: Registry, path: str, faults: list[Fault]) -> Node:
    options = dict(given)
    name = options.pop("name", None)
    if name is None:
        remedy = _misspelled_domain(given) or f"write {{name: …}}; known: {', '.join(registry)}"
        return refused(faults, path, f"the {registry.kind} has no name", remedy)
    if not isinstance(name, str):
        rule = f"{name!r} is not the name of a{_n(registry.kind)} {registry.kind}"
        remedy = "a name is plain text; to try several, wrap it in choice, grid or one_of"
        return refused(faults, join_path(path, "name"), rule, remedy)
    # User code that may not be imported here was checked when the sweep began.
    if registry.trusts(name):
        return plain_node({"name": name, **options}, path, faults)
    if (refusal := registry.refusal(name)) is not None:
        return refused(faults, join_path(path, "name") if options else path, *refusal)
    return _resolve_hyperparameters(registry[name], options, path, faults)


def _resolve_hyperparameters(component: Component, given: Mapping[str, Plain], path: str, faults: list[Fault]) -> Node:
    known = tuple(h.name for h in component.hyperparameters)
    own_faults: list[Fault] = []
    for key in (key for key in given if key not in known):
        remedy = hint(key, known) or "remove it"
        own_faults.append(Fault(join_path(path, key), f"{component.name} takes no hyperparameter {key!r}", remedy))
    nodes: dict[str, Node] = {"name": Constant(component.name)}
    for description in component.hyperparameters:
        place, value = join_path(path, description.name), given.get(description.name)
        if description.name not in given and description.required:
            rule = f"{component.name} needs {description.name}"
            own_faults.append(Fault(place, rule, f"valid: {description.range_text}"))
        elif description.name not in given and description.default is not None:
            default = description.default
            own = [*default] if isinstance(default, tuple) else default
            nodes[description.name] = Constant(_typed(own, description))
        elif description.name in given:
            node = _Hyperparameter(description).parsed(value, place, own_faults)
            # `null` leaves the value to the component, as if it were omitted.
            if value is not None:
                nodes[description.name] = node
    # Joint rules assume values of the right types.
    if not own_faults:
        own_faults += _joint_faults(component, nodes, path)
    faults += own_faults
    return INVALID if own_faults else Fields(nodes)


@dataclass(frozen=True)
class _Hyperparameter:
    """Parses the values and domains of one hyperparameter, and gives its numbers their type."""

    description: Hyperparameter

    def parsed(self, value: Plain, path: str, faults: list[Fault]) -> Node:
        """Return the node of a value; append each broken rule to `faults`."""
        return parse(value, path, faults, self._value, self._interval)

    def _value(self, value: Plain, path: str, faults: list[Fault]) -> Node:
        known = self.description
        if isinstance(value, dict):
            remedy = _misspelled_domain(value) or f"valid: {known.range_text}, or a domain: {', '.join(DOMAINS)}"
            return refused(faults, path, f"{known.name} is a mapping but not a domain", remedy)
        before, node = len(faults), plain_node(value, path, faults)
        if len(faults) == before and (fault := self._fault(value, path)) is not None:
            faults.append(fault)
        return INVALID if len(faults) > before else Constant(_typed(node.plain(), known))

    def _interval(self, node: Interval, path: str, faults: list[Fault]) -> Node:
        known, before = self.description, len(faults)
        # Valid values are intervals or lists, so a domain whose ends are valid draws only valid values.
        ends = (self._fault(end, join_path(path, node.kind)) for end in (node.low, node.high))
        faults += [fault for fault in ends if fault is not None]
        if known.kind == "integer" and not node.whole:
            rule = f"{known.name} must be a whole number, but {node.kind} draws real numbers"
            faults.append(Fault(path, rule, "use randint: [low, high]"))
        if len(faults) > before:
            return INVALID
        typed = node.typed(int if known.kind == "integer" else float) if known.kind in _NUMBERS else node
        # The ends can have become equal.
        return typed if typed.fault is None else typed.refused(path, typed.fault, faults)

    def _fault(self, value: Plain, path: str) -> Fault | None:
        known = self.description
        rule = known.fault(value)
        if rule is None:
            return None
        shown = known.choices or known.range_text in rule  # the rule lists choices itself
        return Fault(path, rule, "" if shown else f"valid: {known.range_text}")


_NUMBERS = ("number", "integer", "numbers")


def _typed(value: Plain, description: Hyperparameter) -> Plain:
    """Convert numbers to the hyperparameter's type."""
    # Otherwise `3` and `3.0` would be two configurations with two hashes.
    if description.kind not in _NUMBERS:
        return value
    number: type[int] | type[float] = int if description.kind == "integer" else float
    if isinstance(value, list):
        return [number(v) for v in value if isinstance(v, (int, float))]
    return number(value) if isinstance(value, (int, float)) else value


def _joint_faults(component: Component, nodes: Mapping[str, Node], path: str) -> list[Fault]:
    """Return the first fault of a rule over several hyperparameters, over combinations of ends and members."""
    if component.check is None:
        return []
    names = [name for name in nodes if name != "name"]
    values: list[list[tuple[str, Plain]]] = [nodes[name].extremes() for name in names]
    # If there are too many combinations, only first and last members are checked: most joint rules are inequalities,
    # which these break first.
    if math.prod(map(len, values)) > _MAXIMUM_COMBINATIONS:
        values = [[v[0], v[-1]] for v in values]
    for combination in itertools.islice(itertools.product(*values), _MAXIMUM_COMBINATIONS):
        broken = component.check({name: value for name, (_, value) in zip(names, combination, strict=True)})
        if broken is not None:
            name, rule = broken
            places = {name: place for name, (place, _) in zip(names, combination, strict=True)}
            return [Fault(join_path(path, name) + places.get(name, ""), rule)]
    return []


def _misspelled_domain(value: Mapping[str, Plain]) -> str:
    """Return `did you mean 'uniform'?` if a mapping looks like a misspelled domain, otherwise an empty text."""
    return nearest(next(iter(value)), DOMAINS).removeprefix("; ") if len(value) == 1 else ""


def resolve_plain_component(value: Plain, registry: Registry, path: str, faults: list[Fault]) -> dict[str, Plain]:
    """Resolve a component that cannot vary (a data set, a post-hoc method) to `{name: …, option: value}`.

    Example:
        >>> from trainables.datasets.base import DATASETS
        >>> resolve_plain_component("digits", DATASETS, "dataset", [])["name"]
        'digits'
    """
    given: dict[str, Plain] = value if isinstance(value, dict) else {"name": value}
    same = f"the {registry.kind} is the same for the whole sweep"
    if len(given) == 1 and next(iter(given)) in DOMAINS:
        faults.append(Fault(path, same, "vary what is under `space`"))
        return {}
    varied = [key for key, option in given.items() if isinstance(option, dict)]
    if varied:
        faults += [Fault(join_path(path, key), f"{key} takes a plain value; {same}") for key in varied]
        return {}
    resolved = _resolve_named(given, registry, path, faults).plain()
    return resolved if isinstance(resolved, dict) else {}


def resolve_components(
    value: Plain, registry: Registry, path: str, faults: list[Fault], extra_keys: Sequence[str] = ()
) -> Plain:
    """Resolve a list of components that cannot vary. A single component, or null, is accepted as a list.

    Columns are named after the components, so each name must be unique, as must each `label` if labels are allowed.

    Args:
        value: the list as written in the file.
        registry: registry of the components.
        path: path of the list in the file.
        faults: list to which each broken rule is appended.
        extra_keys: further keys that a member can have. Their values are plain words.
    """
    if isinstance(value, (str, dict)) or value is None:
        value = [value] if value else []
    if not isinstance(value, list):  # the structure's check reports the wrong type
        return value
    resolved: list[Plain] = []
    labels: set[str] = set()
    for index, component in enumerate(value):
        place = join_path(path, index)
        given: dict[str, Plain] = dict(component) if isinstance(component, dict) else {"name": component}
        own = {key: given.pop(key) for key in extra_keys if key in given}
        entry = resolve_plain_component(given, registry, place, faults)
        for key, word in own.items():
            if not isinstance(word, str) or not WORD.fullmatch(word):
                rule = f"{key} = {word!r} must be a word of lower-case letters, digits and _"
                faults.append(Fault(join_path(place, key), rule))
        entry = {**entry, **own} if entry else entry
        resolved.append(entry)
        if entry:
            label = entry_label(entry)
            if label in labels:
                remedy = "give one of them a label" if LABEL in extra_keys else "columns are named after it"
                faults.append(Fault(place, f"{own.get(LABEL, entry['name'])} is given twice", remedy))
            labels.add(label)
    return resolved


def _n(noun: str) -> str:
    return "n" if noun[:1] in "aeiou" else ""


#: Domains that an option of a data set can have.
LISTED = [kind for kind, domain in DOMAINS.items() if issubclass(domain, Members) and domain.member_fault(0) is None]


def split_axes(dataset: Plain, space: Mapping[str, Plain], faults: list[Fault]) -> tuple[Plain, Mapping[str, Plain]]:
    """Move a data set with varying options into the space.

    Args:
        dataset: the data set as written in the file, with its short form expanded.
        space: the space as written in the file.
        faults: list to which each fault of the domains is appended.

    Returns:
        The data set with the first value of each option, and the space with the data set as a part; both unchanged if
        no option varies.
    """
    axes = domains_of(dataset)
    if not isinstance(dataset, dict) or not axes or set(dataset) <= set(DOMAINS):
        return dataset, space
    first = dict(dataset)
    for key, (kind, members) in axes.items():
        place = join_path(DATASET, key)
        if key == "name":
            faults.append(Fault(place, "the name of the data set is the same for the whole sweep", "vary its options"))
        elif kind not in LISTED:
            rule = f"{key} takes {' or '.join(LISTED)}: with {kind}, each trial would load a data set of its own"
            faults.append(Fault(place, rule, f"write e.g. {key}: {{choice: [0, 0.1, 0.2]}}"))
        if not isinstance(members, list) or not members:
            members = [None]  # the domain's own check reports it
        first[key] = members[0]
    return first, {**space, DATASET: dataset}


def domains_of(dataset: Plain) -> dict[str, tuple[str, Plain]]:
    """Return the varying options of a data set: option → (kind of domain, members or ends)."""
    return {
        key: (kind, value[kind])
        for key, value in (dataset.items() if isinstance(dataset, dict) else ())
        if isinstance(value, dict) and len(value) == 1 and (kind := next(iter(value))) in DOMAINS
    }
