"""The JSON schema of search space files, by which an editor completes keys and names, explains them and marks mistakes.

`sweeper init` writes it beside a file whose first line names it. It is made of the models and registries that check a
file, and takes every file that these take; what only a look at the whole file finds, `sweeper validate` reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sweeper.core.domains import INTERVAL_DOMAINS, MEMBER_DOMAINS
from sweeper.scheduling import DEFAULT
from sweeper.space.catalogue import Registries
from sweeper.space.components import LISTED, PART
from sweeper.space.file import SHORT_FORMS
from sweeper.space.spec import MAY_BE_EMPTY, SweepSpec
from trainables.registry import FITTED_ON, LABEL, OWN, Component, Hyperparameter, Registry

JsonSchema: TypeAlias = dict[str, Any]

#: The schema's file, and the line by which a search space names it.
FILE = "sweeper.schema.json"
FIRST_LINE = f"# yaml-language-server: $schema={FILE}\n"

DRAFT = "http://json-schema.org/draft-07/schema#"  # what yaml-language-server reads

_NULL, _TEXT, _OBJECT = ({"type": each} for each in ("null", "string", "object"))
_IMPORT_PATH = {"type": "string", "pattern": ":"}
_TYPES = {"number": "number", "integer": "integer", "text": "string", "boolean": "boolean"}


def json_schema(registries: Registries) -> JsonSchema:
    """Return the schema (JSON Schema, draft 7) of search space files that name components of these registries."""
    schema = SweepSpec.model_json_schema()
    keys, models = schema["properties"], schema["$defs"]
    for key, inner in SHORT_FORMS.items():
        model = keys.get(key, {}).get("$ref")
        if model is not None:
            keys[key] = _any(keys[key], models[model.rpartition("/")[2]]["properties"][inner])
    left_out = _OBJECT | {"properties": {"name": {"const": OWN}}, "required": ["name"]}
    keys["dataset"] = _any(_component(registries.datasets, LISTED), left_out)
    keys["scheduler"] = _component(registries.schedulers, default=DEFAULT)
    keys["searcher"] = _component(registries.searchers)
    for key in MAY_BE_EMPTY:
        keys[key] = _any(keys[key], _NULL)
    for part, registry in registries.space.items():
        models[part] = _varied(_component(registry, (*MEMBER_DOMAINS, *INTERVAL_DOMAINS)), {"$ref": f"#/$defs/{part}"})
    parts = {part: {"$ref": f"#/$defs/{part}"} for part in registries.space}
    keys["space"] = _OBJECT | {"properties": {**parts, PART: _OBJECT}}
    keys["objectives"]["items"] = _any(keys["objectives"]["items"], _TEXT)
    keys["constraints"] = _listed(keys["constraints"]["items"])
    models["Guard"]["properties"]["within"]["anyOf"].append(_TEXT)
    models["Keep"]["properties"]["per"] = _listed(_TEXT)
    _describe_evaluation(models["Evaluation"]["properties"], registries)
    # A training loop of the user's own has parts of its own, and may leave all others to itself.
    kept = {"properties": dict.fromkeys([*parts, PART], True), "additionalProperties": False, "required": [*parts]}
    ours = {"properties": {"space": kept}, "required": ["dataset"]}
    schema["required"] = ["scheduler", "space"]
    return {"$schema": DRAFT, **schema, "if": {"required": ["loop"]}, "else": ours}


def _describe_evaluation(keys: JsonSchema, registries: Registries) -> None:
    """Fill in what only registries know of an evaluation's keys."""
    keys["posthoc"] = _listed(_component(registries.posthoc, more=(LABEL, FITTED_ON)))
    keys["metrics"] = _listed(_component(registries.further_metrics))
    shifts = dict.fromkeys(registries.shifts, _any(_OBJECT, _NULL))
    keys["splits"]["items"] = _any(_TEXT, _OBJECT | {"properties": shifts})
    (curvature,) = registries.curvature.built_in()
    keys["curvature"] = _any({"type": "boolean"}, _NULL, _mapping(curvature, (), curvature.name, ()))


def _any(*schemas: JsonSchema) -> JsonSchema:
    return {"anyOf": [*schemas]}


def _listed(member: JsonSchema) -> JsonSchema:
    """Return the schema of a list, of one member alone or of none."""
    return _any({"type": "array", "items": member}, member, _NULL)


def _varied(value: JsonSchema, member: JsonSchema, kinds: Sequence[str] = MEMBER_DOMAINS) -> JsonSchema:
    """Return the schema of a value or a domain of these kinds; a `member` of one may be a domain itself."""
    ends = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}
    members = {"type": "array", "items": member, "minItems": 1}
    forms = {kind: members if kind in MEMBER_DOMAINS else ends for kind in kinds}
    return _any(value, _OBJECT | {"properties": forms, "additionalProperties": False, "minProperties": 1})


def _component(
    registry: Registry[Any], domains: Sequence[str] = (), *, default: str = "", more: Sequence[str] = ()
) -> JsonSchema:
    """Return the schema of a component: its name, or a mapping that also holds its hyperparameters.

    Args:
        registry: of its kind.
        domains: that a hyperparameter may have in the place of a value.
        default: the component whose mapping needs no name; empty for none.
        more: keys that a mapping may have besides.
    """
    known = [_mapping(each, domains, default, more) for each in registry.built_in()]
    own_name = _any(_IMPORT_PATH, *({"const": name} for name in registry.installed()))
    own = _OBJECT | {"properties": {"name": own_name}, "required": ["name"]}
    return _any({"enum": [*registry]}, _IMPORT_PATH, *known, own)


def _mapping(component: Component, domains: Sequence[str], default: str, more: Sequence[str]) -> JsonSchema:
    taken = {each.name: _value(each, domains) for each in component.hyperparameters}
    required = [each.name for each in component.hyperparameters if each.required]
    return _OBJECT | {
        "description": component.summary,
        "properties": {"name": {"const": component.name}, **taken, **dict.fromkeys(more, _TEXT)},
        "required": required if component.name == default else ["name", *required],
        "additionalProperties": False,
    }


def _value(hyperparameter: Hyperparameter, domains: Sequence[str]) -> JsonSchema:
    """Return the schema of a hyperparameter, with what it says of itself."""
    kind = hyperparameter.kind
    value = _of_one(hyperparameter, kind.removesuffix("s"))
    if kind.endswith("s"):
        value = {"type": "array", "items": value}
    if hyperparameter.default is None and not hyperparameter.required:
        value = _any(value, _NULL)
    if domains:
        numeric = kind in ("number", "integer")
        fitting = [each for each in domains if numeric or each in MEMBER_DOMAINS]
        value = _varied(value, _any(value, _OBJECT), fitting)
    said = " ".join(filter(None, (hyperparameter.reason, hyperparameter.source)))
    return value | {"description": said, "default": hyperparameter.default}


def _of_one(hyperparameter: Hyperparameter, kind: str) -> JsonSchema:
    """Return the schema of a value, or of a member of its list."""
    schema: JsonSchema = {"type": _TYPES[kind]}
    if hyperparameter.choices:
        schema["enum"] = [*hyperparameter.choices]
    if hyperparameter.minimum is not None:
        schema["exclusiveMinimum" if hyperparameter.open_minimum else "minimum"] = hyperparameter.minimum
    if hyperparameter.maximum is not None:
        schema["exclusiveMaximum" if hyperparameter.open_maximum else "maximum"] = hyperparameter.maximum
    return schema
