"""What a release promises to keep, as data: `docs/reference/contracts.json`. `docs/stability.md` explains it.

    python -m tests.release.contracts

writes the file anew; its diff in a review shows what is added, renamed or taken away.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from cyclopts import App
from pydantic import BaseModel

import sweeper
from search_spaces import FOLDER
from sweeper.api import SUBCOMMANDS
from sweeper.api.main import program
from sweeper.core.columns import evaluation_columns
from sweeper.core.schemas import table_schemas
from sweeper.exporting.folder import DESCRIPTION
from sweeper.space.catalogue import KINDS, installed_registries
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from tests.release.distribution import ROOT
from trainables.registry import Registry

FILE = ROOT / "docs/reference/contracts.json"


def commands() -> dict[str, dict[str, str]]:
    """Return command → argument → its default, as the command line takes them."""
    app = program()
    named = {(name,): app[name] for name in app if not name.startswith("-") and name not in SUBCOMMANDS}
    named |= {(name, inner): app[name][inner] for name in SUBCOMMANDS for inner in app[name] if inner[0] != "-"}
    return {" ".join(words): dict(_arguments(command)) for words, command in sorted(named.items())}


def _arguments(command: App) -> Iterator[tuple[str, str]]:
    for argument in command.assemble_argument_collection():
        if not argument.parse:
            continue
        default = argument.field_info.default
        required = argument.required or default is inspect.Parameter.empty
        flags = ", ".join(name for name in argument.names if not name.startswith(("--no-", "--empty-")))
        yield flags, "required" if required else str(default)


def python() -> dict[str, list[str]]:
    """Return each name of `import sweeper` with its parameters, and the fields of what it returns if they are data."""
    found = {name: getattr(sweeper, name) for name in sorted(sweeper.__all__)}
    return {name: _parameters(value) for name, value in found.items() if callable(value)}


def _parameters(function: Any) -> list[str]:
    if isinstance(function, type) and issubclass(function, Exception):
        return []
    every = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in every if parameter.kind is not parameter.VAR_KEYWORD]


def search_space() -> dict[str, str]:
    """Return key of a search space file, dotted → its default."""
    return dict(sorted(_keys(SweepSpec, "")))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        plain = "…" if isinstance(default, BaseModel) else "required" if field.is_required() else repr(default)
        yield f"{prefix}{name}", plain
        for inner in _models(field.annotation):
            yield from _keys(inner, f"{prefix}{name}.")


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def components() -> dict[str, dict[str, list[str]]]:
    """Return kind → name of each built-in component → its hyperparameters."""
    registries = installed_registries()
    found: dict[str, dict[str, list[str]]] = {}
    for kind in KINDS:
        registry = getattr(registries, kind)
        if isinstance(registry, Registry):
            built_in = sorted(registry.built_in(), key=lambda member: member.name)
            found[kind] = {member.name: [one.name for one in member.hyperparameters] for member in built_in}
        else:
            found[kind] = {str(name): [] for name in sorted(registry)}
    return found


def tables() -> dict[str, dict[str, str]]:
    """Return table → column → type, for the quickstart."""
    spec = load_spec(FOLDER / "quickstart.yaml")
    measured = spec.evaluation
    columns = evaluation_columns(measured.posthoc, (), spec.cross_fitted, measured.own_splits, measured.curvature)
    schemas = table_schemas(spec.space.column_types, 10, columns)
    return {name: {field.name: str(field.type) for field in schema} for name, schema in schemas.items()}


def exported_model(folder: Path) -> dict[str, list[str]]:
    """Return the names of an exported model's files, and the dotted keys of its description."""
    description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    return {
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
        "keys": sorted(_paths(description, "")),
    }


#: Parts of a description whose keys depend on the network, and are not promised.
_OF_THIS_MODEL = (
    "posthoc.parameters",
    "posthoc.options",
    "source.configuration",
    "source.dataset",
    "source.standing.verdict",
    "source.versions",
)


def _paths(value: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, inner in value.items():
        yield prefix + key
        if isinstance(inner, dict) and not (prefix + key).startswith((*_OF_THIS_MODEL, "source.git")):
            yield from _paths(inner, f"{prefix}{key}.")


def without_a_model() -> dict[str, Any]:
    """Return all contracts but the exported model's, which needs a trained network."""
    return {
        "commands": commands(),
        "python": python(),
        "search_space": search_space(),
        "components": components(),
        "tables": tables(),
    }


def main() -> None:
    """Train a small network, export it, and write the file."""
    with tempfile.TemporaryDirectory() as folder:
        space = yaml.safe_load((FOLDER / "quickstart.yaml").read_text("utf-8"))
        one = {"samples": 1, "which": [], "replicates": 1, "scheduler": {"name": "none", "max_epochs": 1}}
        space |= one | {"space": space["space"] | {"architecture": "mlp", "loss": "cross_entropy"}}
        (path := Path(folder) / "one.yaml").write_text(yaml.safe_dump(space), encoding="utf-8")
        done = sweeper.run(path, output=Path(folder) / "results", mlflow=False, executor="local")
        sweeper.export(done.name, Path(folder) / "model", output=Path(folder) / "results")
        promised = {**without_a_model(), "exported_model": exported_model(Path(folder) / "model")}
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(promised, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
