"""A sweep on disk: claiming its name, recording what it is, and reopening it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, flatten_configuration, is_sweep_name
from sweeper.space.configurations import Configurations, varying_columns
from sweeper.space.loading import reopened_spec
from sweeper.space.models import SweepSpec
from sweeper.space.suggested import JournaledSuggestions, SuggestedConfigurations, configurations_of
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import read_specification
from sweeper.text.labels import describe, in_order
from trainables.files.atomic import write_text


@dataclass(frozen=True)
class Sweep:
    """A search space that has been given a name and a results folder."""

    paths: SweepPaths
    spec: SweepSpec
    configurations: Configurations | SuggestedConfigurations

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.paths.name

    def describe(self, index: int) -> str:
        """Return a configuration in a few words: what varies, e.g. `focal (γ 1.9) · resnet8 · lr 0.12`."""
        return describe(flatten_configuration(self.configurations[index]), in_order(varying_columns(self.spec.space)))


def create_sweep(
    spec: SweepSpec,
    stem: str,
    name: str | None,
    output: Path,
    manifest: Mapping[str, Any],
    taken: Callable[[str], bool] = lambda name: False,
) -> Sweep:
    """Claim a name and write `sweep.yaml` and `manifest.json` into its folder.

    Without `name` the search space file's stem is taken, and -2, -3 … where that is taken already: in `output`, or
    elsewhere as `taken` says.
    Raises SweeperError when an explicit name is taken or cannot be a folder's name.
    """
    paths = SweepPaths(_claim_folder(stem, name, output, taken))
    text = yaml.safe_dump(spec.resolved(), sort_keys=False, allow_unicode=True)
    write_text(paths.sweep_file, text)
    write_text(paths.manifest, json.dumps(manifest, indent=2) + "\n")
    return Sweep(paths, spec, configurations_of(spec, JournaledSuggestions(paths.journal)))


def open_sweep(name: str, output: Path) -> Sweep:
    """Open the sweep `name` below `output` (or at a path). Raises SweeperError when there is none to be read."""
    paths = find_sweep(name, output)
    values = read_specification(paths.sweep_file, required=True)
    spec = reopened_spec(values, str(paths.sweep_file))
    return Sweep(paths, spec, configurations_of(spec, JournaledSuggestions(paths.journal)))


def _claim_folder(stem: str, name: str | None, output: Path, taken: Callable[[str], bool]) -> Path:
    wanted = name if name is not None else _name_of(stem)
    if not is_sweep_name(wanted):
        raise SweeperError(
            f"{wanted!r} is not a valid sweep name",
            "use 1 to 100 letters, digits, '_', '.' and '-', starting with a letter or digit",
        )
    number = 1
    while True:
        folder = output / (wanted if number == 1 else f"{wanted}-{number}")
        if not folder.exists() and not taken(folder.name) and _make(folder):
            return folder.resolve()
        if name is not None:
            raise SweeperError(
                f"the name {name!r} is taken in {output}",
                f"continue it with `sweeper resume {name}`, or choose another --name",
            )
        number += 1


def _make(folder: Path) -> bool:
    """Make the folder and tell whether it is this caller's. Raises SweeperError when it cannot be made."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
    except FileExistsError:
        if folder.exists():
            return False
        raise SweeperError(f"the output {folder.parent} is a file", "choose a folder with --output") from None
    except OSError as error:
        raise SweeperError(
            f"the output folder {folder.parent} cannot be written to: {error.strerror}",
            "make it writable, or choose another with --output",
        ) from error
    return True


def _name_of(stem: str) -> str:
    """Return a search space file's stem as a sweep's name, with room left for a number."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in stem)
    return name.lstrip("_.-")[:90] or "sweep"
