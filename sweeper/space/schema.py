"""The JSON schema of search space files. Editors use it to complete keys and names, explain them and mark mistakes.

`sweeper init` writes the schema next to a search space file, whose first line names it. The schema is generated from
the models and registries that check a file, and accepts every file that they accept. `sweeper validate` also checks
rules over the whole file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from sweeper.core.domains.base import DOMAINS, Interval
from sweeper.core.domains.nodes import Members
from sweeper.core.domains.space import DATASET
from sweeper.scheduling import DEFAULT
from sweeper.space.catalogue import Registries
from sweeper.space.components import LISTED
from sweeper.space.file import SHORT_FORMS
from sweeper.space.spec import MAY_BE_EMPTY, ORDER, SweepSpec
from trainables.registry import FITTED_ON, LABEL, OWN, Component, Hyperparameter, Registry

JsonSchema: TypeAlias = dict[str, Any]

#: Name of the schema's file, and the line by which a search space file refers to it.
FILE = "sweeper.schema.json"
FIRST_LINE = f"# yaml-language-server: $schema={FILE}\n"

DRAFT = "http://json-schema.org/draft-07/schema#"  # the draft that yaml-language-server reads

#: Domains whose members can be any values.
LISTS = [kind for kind, domain in DOMAINS.items() if issubclass(domain, Members)]

_NULL, _TEXT, _OBJECT = ({"type": name} for name in ("null", "string", "object"))
_IMPORT_PATH = {"type": "string", "pattern": ":"}
_TYPES = {"number": "number", "integer": "integer", "text": "string", "boolean": "boolean"}


def json_schema(registries: Registries) -> JsonSchema:
    """Return the JSON Schema (draft 7) of search space files that name components of these registries.

    Example:
        >>> from sweeper.space.catalogue import installed_registries
        >>> json_schema(installed_registries())["required"]
        ['scheduler', 'space']
    """
    schema = SweepSpec.model_json_schema()
    keys, models = schema["properties"], schema["$defs"]
    # pydantic knows the long forms only: each short form is added as an alternative.
    for key, inner in SHORT_FORMS.items():
        model = keys.get(key, {}).get("$ref")
        if model is not None:
            keys[key] = _any(keys[key], models[model.rpartition("/")[2]]["properties"][inner])
    # A loop that loads its own data has `dataset: {name: own}` in its resolved file.
    left_out = _OBJECT | {"properties": {"name": {"const": OWN}}, "required": ["name"]}
    keys["dataset"] = _any(_component(registries.datasets, LISTED), left_out)
    ordered = models["SchedulerSettings"]["properties"]
    keys["scheduler"] = _component(registries.schedulers, default=DEFAULT, more={key: ordered[key] for key in ORDER})
    keys["searcher"] = _component(registries.searchers)
    for key in MAY_BE_EMPTY:
        keys[key] = _any(keys[key], _NULL)
    for part, registry in registries.space.items():
        models[part] = _varied(_component(registry, [*DOMAINS]), {"$ref": f"#/$defs/{part}"})
    parts = {part: {"$ref": f"#/$defs/{part}"} for part in registries.space}
    keys["space"] = _OBJECT | {"properties": {**parts, DATASET: _OBJECT}}
    keys["which"] = _any(keys["which"], _listed(_TEXT))
    models["Keep"]["properties"]["per"] = _listed(_TEXT)
    _describe_evaluation(models["Evaluation"]["properties"], registries)
    # A user's training loop can have any parts in its space, and can leave out all others.
    kept = {"properties": dict.fromkeys([*parts, DATASET], True), "additionalProperties": False, "required": [*parts]}
    ours = {"properties": {"space": kept}, "required": ["dataset"]}
    schema["required"] = ["scheduler", "space"]
    return {"$schema": DRAFT, **schema, "if": {"required": ["loop"]}, "else": ours}


def _describe_evaluation(keys: JsonSchema, registries: Registries) -> None:
    """Fill in the evaluation's keys that depend on the registries."""
    keys["posthoc"] = _listed(_component(registries.posthoc, more=dict.fromkeys((LABEL, FITTED_ON), _TEXT)))
    keys["metrics"] = _listed(_component(registries.further_metrics))
    shifts = dict.fromkeys(registries.shifts, _any(_OBJECT, _NULL))
    keys["splits"]["items"] = _any(_TEXT, _OBJECT | {"properties": shifts})
    (curvature,) = registries.curvature.built_in()
    keys["curvature"] = _any({"type": "boolean"}, _NULL, _mapping(curvature, (), curvature.name, {}))


def _any(*schemas: JsonSchema) -> JsonSchema:
    return {"anyOf": [*schemas]}


def _listed(member: JsonSchema) -> JsonSchema:
    """Return the schema of a list. The file can also contain a single member or null instead."""
    return _any({"type": "array", "items": member}, member, _NULL)


def _varied(value: JsonSchema, member: JsonSchema, kinds: Sequence[str] = LISTS) -> JsonSchema:
    """Return the schema of a value, or a domain of these kinds over `member`."""
    forms = {kind: _domain(DOMAINS[kind], member) for kind in kinds}
    return _any(value, _OBJECT | {"properties": forms, "additionalProperties": False, "minProperties": 1})


def _domain(domain: type[Members | Interval], member: JsonSchema) -> JsonSchema:
    """Return the schema of a domain's list: of members, or of an interval's numbers."""
    if issubclass(domain, Members):
        return {"type": "array", "items": member, "minItems": 1}
    length = domain.form.count(",") + 1
    return {"type": "array", "items": {"type": "number"}, "minItems": length, "maxItems": length}


def _component(
    registry: Registry[Any],
    domains: Sequence[str] = (),
    *,
    default: str = "",
    more: Mapping[str, JsonSchema] | None = None,
) -> JsonSchema:
    """Return the schema of a component: its name, or a mapping with its name and hyperparameters.

    Args:
        registry: registry of the component's kind.
        domains: kinds of domains that a hyperparameter can have instead of a value.
        default: name of the component if a mapping gives none; empty if there is no default.
        more: further keys of the mapping, with their schemas.
    """
    known = [_mapping(component, domains, default, more or {}) for component in registry.built_in()]
    # Hyperparameters of user code and installed packages are unknown without importing them, so any are accepted.
    own_name = _any(_IMPORT_PATH, *({"const": name} for name in registry.installed()))
    own = _OBJECT | {"properties": {"name": own_name}, "required": ["name"]}
    return _any({"enum": [*registry]}, _IMPORT_PATH, *known, own)


def _mapping(component: Component, domains: Sequence[str], default: str, more: Mapping[str, JsonSchema]) -> JsonSchema:
    taken = {h.name: _value(h, domains) for h in component.hyperparameters}
    required = [h.name for h in component.hyperparameters if h.required]
    return _OBJECT | {
        "description": component.summary,
        "properties": {"name": {"const": component.name}, **taken, **more},
        "required": required if component.name == default else ["name", *required],
        "additionalProperties": False,
    }


def _value(hyperparameter: Hyperparameter, domains: Sequence[str]) -> JsonSchema:
    """Return the schema of a hyperparameter with its description."""
    kind = hyperparameter.kind
    value = _of_one(hyperparameter, kind.removesuffix("s"))
    if kind.endswith("s"):
        value = {"type": "array", "items": value}
    if hyperparameter.default is None and not hyperparameter.required:
        value = _any(value, _NULL)
    if domains:
        numeric = kind in ("number", "integer")
        fitting = [domain for domain in domains if numeric or domain in LISTS]
        value = _varied(value, _any(value, _OBJECT), fitting)
    text = " ".join(filter(None, (hyperparameter.reason, hyperparameter.source)))
    return value | {"description": text, "default": hyperparameter.default}


def _of_one(hyperparameter: Hyperparameter, kind: str) -> JsonSchema:
    """Return the schema of a single value, or of one member of a list."""
    schema: JsonSchema = {"type": _TYPES[kind]}
    if hyperparameter.choices:
        schema["enum"] = [*hyperparameter.choices]
    if hyperparameter.minimum is not None:
        schema["exclusiveMinimum" if hyperparameter.open_minimum else "minimum"] = hyperparameter.minimum
    if hyperparameter.maximum is not None:
        schema["exclusiveMaximum" if hyperparameter.open_maximum else "maximum"] = hyperparameter.maximum
    return schema
