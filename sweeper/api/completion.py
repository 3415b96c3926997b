"""Shell completion of arguments and options (the TAB key)."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces import packaged_files
from sweeper.storage.lookup import sweep_names
from trainables.files.stores.base import is_store_address

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def complete_space(context: CompletionContext) -> list[str]:
    """Return the shipped search spaces, and the YAML files and folders that start with the typed text."""
    begun = context.incomplete
    folder, _, beginning = begun.rpartition("/")
    place = Path(folder or ("/" if begun.startswith("/") else "."))
    files = sorted(place.glob(f"{glob.escape(beginning)}*")) if place.is_dir() else []
    near = [path for path in files if path.is_dir() or path.suffix in (".yaml", ".yml")]
    # The shell replaces the whole word, so completions repeat the folder as it was typed.
    prefix = begun[: len(begun) - len(beginning)]
    return [*packaged_files()] + [f"{prefix}{path.name}{'/' if path.is_dir() else ''}" for path in near]


def complete_sweep(context: CompletionContext) -> list[str]:
    """Return the sweeps below `--output` or its environment variable."""
    output = str(_typed(context, "output") or "results")
    # A store would answer too slowly for a key press.
    return [] if is_store_address(output) or not Path(output).is_dir() else sorted(sweep_names(output))


def complete_method(context: CompletionContext) -> list[str]:
    """Return the names of the post-hoc methods."""
    from trainables.posthoc import POSTHOC

    return sorted(POSTHOC)


def complete_setting(context: CompletionContext) -> list[str]:
    """Return `key=` for each key of the search space; after the `=`, the names of components."""
    from sweeper.space.catalogue import keys_of, values_of

    key, equals, _ = context.incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in values_of(key)]
    return [f"{name}=" for name in keys_of(_typed(context, "space"))]


def _typed(context: CompletionContext, name: str) -> str | None:
    """Return the text typed for another argument, or its environment variable's value."""
    argument = context.get(name)
    return argument.raw if argument is not None else None
