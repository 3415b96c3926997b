"""Shell completion of search spaces and names of sweeps."""

from __future__ import annotations

from pathlib import Path

import typer

from search_spaces import packaged_files
from sweeper.storage.lookup import sweep_names
from trainables.files.stores.base import is_store_address


def complete_space(incomplete: str) -> list[str]:
    """Return the shipped search spaces, YAML files and folders whose names begin with `incomplete`."""
    shipped = [name for name in packaged_files() if name.startswith(incomplete)]
    folder, _, beginning = incomplete.rpartition("/")
    place = Path(folder or ("/" if incomplete.startswith("/") else "."))
    found = sorted(place.glob(f"{_literally(beginning)}*")) if place.is_dir() else []
    near = [path for path in found if path.is_dir() or path.suffix in (".yaml", ".yml")]
    prefix = incomplete[: len(incomplete) - len(beginning)]
    return shipped + [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in near]


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """Return the sweeps below `--output` (or its variable) whose names begin with `incomplete`."""
    output = str(context.params.get("output") or "results")
    if is_store_address(output) or not Path(output).is_dir():
        return []
    return sorted(name for name in sweep_names(output) if name.startswith(incomplete))


def _literally(text: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def complete_format(incomplete: str) -> list[str]:
    """Return the output formats of rows."""
    from sweeper.text.display import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def complete_method(incomplete: str) -> list[str]:
    """Return the post-hoc methods whose names begin with `incomplete`."""
    from trainables.posthoc import POSTHOC

    return sorted(name for name in POSTHOC if name.startswith(incomplete))


def complete_setting(context: typer.Context, incomplete: str) -> list[str]:
    """Return `key=` for each key of the search space that begins with `incomplete`; names of components as values."""
    from sweeper.space.catalogue import keys_of, values_of

    key, equals, begun = incomplete.partition("=")
    space = context.params.get("space")
    if equals:
        return [f"{key}={value}" for value in values_of(key) if value.startswith(begun)]
    return [f"{name}=" for name in keys_of(space) if name.startswith(incomplete)]
