"""The user's own components in a sweep: find their names in a search space, locate their code, and keep a copy."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from search_spaces import FOLDER
from sweeper.core.domains.values import Plain
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, allow, is_allowed
from sweeper.space.catalogue import installed_registries
from sweeper.space.spec import SweepSpec
from trainables.extensions.code import ExtensionCode, archive_digest, gathered, take_up
from trainables.extensions.targets import look_in
from trainables.files.atomic import read_bytes, write_bytes
from trainables.registry import OWN, ExtensionError, Registry, is_import_path, permit_only

#: Key of the manifest's entry on a sweep's own components: the digest of their code, and the object behind each name.
MANIFEST_KEY = "extensions"


def set_code_root(space: Path | None) -> None:
    """Look up import paths next to a search space file, then in the working directory, then among installed packages.

    Own components that were imported before are forgotten.
    """
    try:
        # Unlike `Path.resolve`, this accepts circular links. Reading the file reports them with a better message.
        folder = Path(os.path.realpath(space)).parent if space is not None else FOLDER
    except ValueError:  # a NUL in the name, which is reported when the file is read
        folder = FOLDER
    folders = [folder, Path.cwd().resolve()] if folder != FOLDER else [Path.cwd().resolve()]
    look_in([*dict.fromkeys(folders)])
    # In a notebook, the code may have been edited since the last sweep.
    _forget()


def own_names(spec: SweepSpec) -> Iterator[tuple[Registry, str]]:
    """Yield each of the user's own names in a search space once, with its registry."""
    places = installed_registries().components
    names = {(registry.kind, name): registry for registry, name in _named(spec.resolved(), None, places)}
    for (_, name), registry in names.items():
        if registry.is_own(name) and name != OWN:
            yield registry, name


def code_of(spec: SweepSpec) -> ExtensionCode | None:
    """Collect the code of a search space's own components, `None` if there are none.

    Raises:
        SweeperError: the code cannot be shipped.
    """
    try:
        return gathered(own_names(spec))
    except (ExtensionError, OSError) as error:
        raise SweeperError(f"cannot ship the code of your own components: {error}") from error


def manifest_entry(own: ExtensionCode | None) -> dict[str, object]:
    """Return the manifest's entry on the code; empty if there is none."""
    return {} if own is None else {MANIFEST_KEY: own.facts}


def keep(own: ExtensionCode | None, paths: SweepPaths) -> None:
    """Write the code into a sweep's folder, from which its processes and `resume` load it."""
    if own is not None:
        write_bytes(paths.extensions, own.archive)
        # This user started the sweep with this code, so `resume` must not ask for approval.
        allow(_identified(own.archive, own.components))


def kept_archive(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, Any]) -> bytes | None:
    """Read the code of a sweep's own components from its folder; `None` if the space or the manifest names none.

    Raises:
        SweeperError: the digest of the copy is not the one in the manifest.
    """
    facts = manifest.get(MANIFEST_KEY)
    # The user approves only names in the space (`take_up_kept`), so no other code must reach a process.
    if not facts or not os.path.lexists(paths.extensions) or next(own_names(spec), None) is None:
        return None
    archive = read_bytes(paths.extensions)
    try:
        same = archive_digest(archive) == facts.get("digest")
    except (zipfile.BadZipFile, OSError, RuntimeError):
        same = False
    if not same:
        raise SweeperError(
            f"{paths.extensions} differs from the code that the sweep started with, by the digest in the manifest",
            "restore both from a backup; the code was not run",
        )
    return archive


def take_up_kept(paths: SweepPaths, spec: SweepSpec, manifest: Mapping[str, object], *, trust: bool) -> None:
    """Import a sweep's own components from the copy in its folder; without a copy, from this machine.

    Raises:
        SweeperError: this user has not run the folder's components before, and `trust` is false.
    """
    # A folder from elsewhere can name any program, so its names are not imported before the user has approved them.
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
            f"the code was not run; review it ({paths.extensions}), and pass --trust if you trust its author "
            "(remembered for this code)",
        )
    allow(identified)
    if archive is not None:
        take_up(archive, names, [Path.cwd()])
        _forget()
        permit_only(names)


def _identified(archive: bytes, names: Iterable[str]) -> str:
    """Return the identity of approved code: its digest, and the names that can be called."""
    # The names are included, because the same archive with other names could call another function of an approved
    # package.
    return " ".join([hashlib.sha256(archive).hexdigest(), *sorted(names)])


def _named(value: Plain, registry: Registry | None, places: Mapping[str, Registry]) -> Iterator[tuple[Registry, str]]:
    """Yield every name of a component anywhere in `value`, with its registry. Domains and short forms are included.

    Args:
        value: a resolved search space, or a part of one.
        registry: registry of the component that `value` names; `None` if `value` itself names none.
        places: keys below which components are named → registry.
    """
    # The whole specification is searched, not only known keys, because a component's settings can name further
    # components (`Hyperparameter.names`), such as the base of a loss or the data set of a shift.
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
            kinds = {known.kind: known for known in places.values()}
            settings = {h.name: kinds[h.names] for h in component.hyperparameters if h.names} if component else {}
            registry = None  # the other keys next to a name are settings
        for key, inner in value.items():
            if key != "name":
                # Not `or`: a registry without built-in members is falsy.
                known = [r for r in (settings.get(key), places.get(key), registry) if r is not None]
                yield from _named(inner, known[0] if known else None, places)


def _forget() -> None:
    for registry in installed_registries().components.values():
        registry.forget_own()
