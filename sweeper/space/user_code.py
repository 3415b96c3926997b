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
from sweeper.core.ids import SweepPaths, allow, is_allowed
from sweeper.core.json_types import Plain
from sweeper.space.catalogue import installed_registries
from sweeper.space.spec import SweepSpec
from trainables.extensions.code import ExtensionCode, archive_digest, gathered, take_up
from trainables.extensions.targets import look_in
from trainables.files.atomic import write_bytes
from trainables.files.regular import read_bytes
from trainables.registry import OWN, ExtensionError, Registry, is_import_path, permit_only

#: The manifest's `digest` of the code of a sweep's own components, and what each name stands for.
MANIFEST_KEY = "extensions"


def set_code_root(space: Path | None) -> None:
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
    places = installed_registries().components
    found = {(registry.kind, name): registry for registry, name in _named(spec.resolved(), None, places)}
    for (_, name), registry in found.items():
        if registry.is_own(name) and name != OWN:
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
        allow(_identified(own.archive, own.components))


def kept_archive(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, Any]) -> bytes | None:
    """Return the code of a sweep's own components as its folder has it; `None` where space or manifest name none.

    Only code that the space names is asked about (`take_up_kept`), so nothing else may reach a process.

    Raises SweeperError when the copy is not the code that the manifest names.
    """
    facts = manifest.get(MANIFEST_KEY)
    if not facts or not os.path.lexists(paths.extensions) or next(own_names(spec), None) is None:
        return None
    archive = read_bytes(paths.extensions)
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


def take_up_kept(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, object], *, trust: bool) -> None:
    """Import a sweep's user-defined components from the copy in its folder, if any; everything else from here.

    Raises SweeperError when the folder names components that this user has not run before, unless `trust` allows them:
    a folder from elsewhere could name any program.
    """
    set_code_root(None)
    names = [name for _, name in own_names(spec)]
    permit_only(names)
    if not names:
        return
    archive = kept_archive(paths, spec, manifest)
    identified = _identified(archive or b"", names)
    if not trust and not is_allowed(identified):
        raise SweeperError(
            f"the sweep {paths.name!r} would run code that came with its folder: {', '.join(names)}",
            f"it was not run; review it ({paths.extensions}), and give --trust if you trust its author "
            "(remembered for this code)",
        )
    allow(identified)
    if archive is not None:
        take_up(archive, names, [Path.cwd()])
        _forget()
        permit_only(names)


def _identified(archive: bytes, names: Iterable[str]) -> str:
    """Return what was allowed: the code, and the names in it that may be called."""
    return " ".join([hashlib.sha256(archive).hexdigest(), *sorted(names)])


def _named(value: Plain, registry: Registry | None, places: Mapping[str, Registry]) -> Iterator[tuple[Registry, str]]:
    """Yield every name of a component anywhere in `value`, with its registry, domains and short forms included.

    The whole specification is walked, not the places where names are known to stand: a component's own settings may
    name others (`Hyperparameter.names`), such as the base of a loss or another data set of an evaluation split.

    Args:
        value: of a resolved search space, or a part of one.
        registry: of what `value` names; `None` where it names nothing by itself.
        places: the keys below which components are named.
    """
    if isinstance(value, str) and registry is not None and (is_import_path(value) or value in registry.installed()):
        yield registry, value
    elif isinstance(value, list):
        for member in value:
            yield from _named(member, registry, places)
    elif isinstance(value, dict):
        name = value.get("name")
        settings = {}
        if isinstance(name, str) and registry is not None:
            yield registry, name
            component = None if registry.is_own(name) else registry[name]
            kinds = {each.kind: each for each in places.values()}
            settings = {h.name: kinds[h.names] for h in component.hyperparameters if h.names} if component else {}
            registry = None  # what stands beside a name is a setting
        for key, inner in value.items():
            if key != "name":
                known = (settings.get(key), places.get(key), registry)  # one without members of ours counts, too
                yield from _named(inner, next((each for each in known if each is not None), None), places)


def _forget() -> None:
    for registry in installed_registries().components.values():
        registry.forget_own()
