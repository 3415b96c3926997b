"""A sweep's own components: which names of a search space are the user's, where their code is looked for, and kept."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from search_spaces import FOLDER
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.core.trust import CODE, allow, is_allowed
from sweeper.space.configurations import named_components
from sweeper.space.registries import Registries, installed_registries
from sweeper.space.spec import SweepSpec
from trainables.extensions.code import ExtensionCode, archive_digest, gathered, take_up
from trainables.extensions.targets import look_in
from trainables.files.atomic import write_bytes
from trainables.registry import ExtensionError, Registry

MANIFEST_KEY = "extensions"
"""The manifest's `digest` of the code of a sweep's own components, and what each name stands for."""


def look_beside(space: Path | None) -> None:
    """Look for import paths next to a search space file, then in the working directory, then among what is installed.

    Everything of the user's is imported again from here on: it may have been edited since the last sweep.
    """
    try:
        # Unlike `Path.resolve`, this takes links that lead in a circle: reading the file says what is wrong with them.
        folder = Path(os.path.realpath(space)).parent if space is not None else FOLDER
    except ValueError:  # a NUL in the name: likewise
        folder = FOLDER
    beside = [folder] if folder != FOLDER else []
    look_in([*dict.fromkeys([*beside, Path.cwd().resolve()])])
    _forget()


def own_names(spec: SweepSpec) -> Iterator[tuple[Registry, str]]:
    """Yield every name of a search space that is the user's own, once, with the registry it belongs to."""
    registries = installed_registries()
    seen = set()
    for registry, name in _all_names(spec, registries):
        if registry.is_own(name) and (registry.kind, name) not in seen:
            seen.add((registry.kind, name))
            yield registry, name


def code_of(spec: SweepSpec) -> ExtensionCode | None:
    """Return the code of a search space's own components; `None` where all are the project's. Raises SweeperError."""
    try:
        return gathered(own_names(spec))
    except (ExtensionError, OSError) as error:
        raise SweeperError(f"the code of your own components cannot be shipped: {error}") from error


def manifest_part(own: ExtensionCode | None) -> dict[str, object]:
    """Return what a manifest says of the code; nothing where there is none."""
    return {} if own is None else {MANIFEST_KEY: own.facts}


def keep(own: ExtensionCode | None, paths: SweepPaths) -> None:
    """Write the code into a sweep's folder, from where its processes and `resume` take it."""
    if own is not None:
        write_bytes(paths.extensions, own.archive)
        allow(CODE, _identified(own.archive, own.components))


def kept_archive(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, Any]) -> bytes | None:
    """Return the code of a sweep's own components as its folder has it; `None` where space or manifest name none.

    Only code that the space names is asked about (`take_up_kept`), so nothing else may reach a process.

    Raises SweeperError when the copy is not the code that the manifest names.
    """
    facts = manifest.get(MANIFEST_KEY)
    if not facts or not paths.extensions.is_file() or next(own_names(spec), None) is None:
        return None
    archive = paths.extensions.read_bytes()
    try:
        same = archive_digest(archive) == facts.get("digest")
    except (zipfile.BadZipFile, OSError, RuntimeError):
        same = False
    if not same:
        raise SweeperError(
            f"{paths.extensions} differs from the code that the sweep started with: its digest is not the manifest's",
            "restore both from a backup; it was not run",
        )
    return archive


def take_up_kept(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, Any], *, trust: bool) -> None:
    """Import a sweep's user-defined components from the copy in its folder, if any; everything else from here.

    Raises SweeperError when the folder names components that this user has not run before, unless `trust` allows them:
    a folder from elsewhere could name any program.
    """
    look_beside(None)
    names = [name for _, name in own_names(spec)]
    if not names:
        return
    archive = kept_archive(paths, spec, manifest)
    identified = _identified(archive or b"", names)
    if not trust and not is_allowed(CODE, identified):
        raise SweeperError(
            f"the sweep {paths.name!r} would run code that came with its folder: {', '.join(names)}",
            f"it was not run; review it ({paths.extensions}), and give --trust if you trust its author "
            "(remembered for this code)",
        )
    allow(CODE, identified)
    if archive is not None:
        take_up(archive, [Path.cwd()])
        _forget()


def _identified(archive: bytes, names: Iterable[str]) -> str:
    """Return what was allowed: the code, and the names in it that may be called."""
    return " ".join([hashlib.sha256(archive).hexdigest(), *sorted(names)])


def _all_names(spec: SweepSpec, registries: Registries) -> Iterator[tuple[Registry, str]]:
    for part, registry in registries.space.items():
        yield from ((registry, name) for name in named_components(spec.space.nodes[part]))
    yield registries.datasets, spec.dataset["name"]
    yield from ((registries.posthoc, method["name"]) for method in spec.evaluation.posthoc)
    yield from ((registries.further_metrics, metric["name"]) for metric in spec.evaluation.metrics)


def _forget() -> None:
    registries = installed_registries()
    for registry in (*registries.space.values(), registries.datasets, registries.posthoc, registries.further_metrics):
        registry.forget_own()
