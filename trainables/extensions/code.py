"""The code of user-defined components as one archive: a sweep keeps it, and its processes import from it.

An archive contains the modules that import paths name, and every module that these import from the same folders. It
also contains the entry points of installed packages, so that plain names mean the same everywhere. Equal code gives
equal bytes.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import site
import stat
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

from trainables.extensions.targets import (
    GROUP,
    OUR_PACKAGES,
    entry_points,
    import_target,
    look_first_in,
    looks_first_in,
    package_place,
    provenance,
)
from trainables.registry import ExtensionError, Registry, is_import_path

#: Limit of an archive. Code and its small tables travel to every process; data and weights belong on the machines.
MOST_BYTES = 32 * 2**20

#: Folders inside a package that are not code: caches, environments and version control.
LEFT_OUT = frozenset({"__pycache__", ".git", ".venv", "node_modules", ".ipynb_checkpoints"})

#: The modification time of every file in an archive, so that equal code gives equal bytes. It is the earliest time that
#: a zip file can store.
_EARLIEST = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class ExtensionCode:
    """The code of a sweep's user-defined components.

    Attributes:
        archive: bytes of a zip file.
        components: name → `kind`, and `package` with its version if it is installed.
    """

    archive: bytes
    components: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the code."""
        return archive_digest(self.archive)

    @property
    def facts(self) -> dict[str, str | dict[str, dict[str, str]]]:
        """The facts that the manifest records."""
        return {"digest": self.digest, "components": self.components}


def gathered(named: Iterable[tuple[Registry, str]]) -> ExtensionCode | None:
    """Collect the code of the user-defined components among `named`; `None` if there are none.

    Raises:
        ExtensionError: a name cannot be imported, or the code is larger than `MOST_BYTES`.
    """
    components: dict[str, dict[str, str]] = {}
    tops: list[str] = []
    files: dict[str, bytes] = {}
    for registry, name in named:
        if not registry.is_own(name):
            continue
        path = registry.installed().get(name, name) if not is_import_path(name) else name
        import_target(path)  # so that broken code is reported here, before anything starts
        package = provenance(registry.group, name)
        components[name] = {"kind": registry.kind, **({"package": package} if package else {})}
        if package:
            files |= _entry_points_of(registry.group, name)
        tops.append(path.partition(":")[0].partition(".")[0])
    if not components:
        return None
    size = 0
    for inside, file in _files(tops):
        size += file.stat().st_size
        if size > MOST_BYTES:
            raise ExtensionError(
                f"the code of {', '.join(components)} is larger than {MOST_BYTES >> 20} MiB with {inside}; move data "
                "out of the code's folder, or install the package on every machine"
            )
        files[inside] = file.read_bytes()
    return ExtensionCode(_zipped(files), dict(sorted(components.items())))


def archive_digest(archive: bytes) -> str:
    """Return 16 hexadecimal digits of an archive's names and contents."""
    # The digest covers the contents, not the file: zlib versions compress differently, and the machines of a cluster
    # can have different versions.
    digest = hashlib.sha256()
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        for name in sorted(file.namelist()):
            content = file.read(name)
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def take_up(archive: bytes, names: Iterable[str], others: Sequence[Path] = ()) -> None:
    """Make this process import user-defined components from `archive`. A second call changes nothing.

    Args:
        archive: archive of an `ExtensionCode`.
        names: names of the components.
        others: folders to search last.
    """
    folder = unpacked(archive)
    if not looks_first_in(folder):
        look_first_in(folder, _modules_in(folder, {*names}), others)


def _modules_in(folder: Path, names: Collection[str]) -> set[str]:
    """Return the top-level modules that an archive provides before all other places.

    These are the modules in the components' import paths and their helpers, even if an installed package now has
    another version of them. A helper with the name of an installed package, such as `torch.py`, does not replace it.
    """
    points = [point for package in metadata.distributions(path=[str(folder)]) for point in package.entry_points]
    paths = [*filter(is_import_path, names), *(point.value for point in points if point.name in names)]
    named = {path.partition(":")[0].partition(".")[0] for path in paths}
    tops = {entry.name.removesuffix(".py") for entry in folder.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    installed = [str(place) for place in _installed_folders()]
    helpers = {
        top for top in tops - sys.stdlib_module_names if top.isidentifier() and not PathFinder.find_spec(top, installed)
    }
    return named | helpers - {*OUR_PACKAGES}


def unpacked(archive: bytes) -> Path:
    """Unpack `archive` into a folder that this user's processes on this machine share, and return it."""
    parent = _own_folder()
    folder = parent / archive_digest(archive)
    if not folder.is_dir():
        # Unpacked under another name and then renamed, so that no process imports from an incomplete folder.
        temporary = Path(tempfile.mkdtemp(dir=parent))
        unpack_into(archive, temporary)
        try:
            temporary.rename(folder)
        except OSError:
            return folder if folder.is_dir() else temporary  # another process was first
    return folder


def unpack_into(archive: bytes, folder: Path) -> None:
    """Write the files of `archive` below `folder`."""
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        file.extractall(folder)


def _own_folder() -> Path:
    """Return a folder that only this user can write to, since code runs from it."""
    folder = Path(tempfile.gettempdir()) / f"sweeper-extensions-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The name in /tmp can be guessed: another user may have made the folder, or a link of that name, before.
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
        return folder
    return Path(tempfile.mkdtemp(prefix="sweeper-extensions-"))


def _files(tops: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield (name in the archive, file) for the modules `tops`, and for modules of their folders that they import."""
    waiting, seen = [*dict.fromkeys(tops)], set[str]()
    installed = _installed_folders()
    while waiting:
        top = waiting.pop(0)
        if top in seen or top in OUR_PACKAGES:
            continue
        seen.add(top)
        place = package_place(top)
        if place is None:
            continue
        own = [*_files_below(place)]
        yield from ((file.relative_to(place.parent).as_posix(), file) for file in own)
        if place.parent in installed:
            continue  # pip has installed its dependencies
        imported = {name for file in own if file.suffix == ".py" for name in _imports(file)}
        waiting += sorted(name for name in imported - seen if _lies_in(name, place.parent))


def _lies_in(top: str, folder: Path) -> bool:
    """Return whether an import of `top` finds it in `folder`, not an installed module of the same name."""
    there = (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()
    place = package_place(top) if there else None
    return place is not None and place.parent == folder


def _files_below(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for path in sorted(place.iterdir()):
        if path.name in LEFT_OUT or path.suffix == ".pyc" or (path.is_symlink() and not path.exists()):
            continue
        if path.is_dir() or path.is_file():
            yield from _files_below(path)


def _imports(file: Path) -> set[str]:
    """Return the top-level modules that a source file imports anywhere in it."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # a file in the folder that nothing imports may be broken
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules.add(node.module.partition(".")[0])
    return modules


def _installed_folders() -> set[Path]:
    places = [*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()]
    return {Path(place).resolve() for place in places}


def _entry_points_of(group: str, name: str) -> dict[str, bytes]:
    """Return the files of an installed package's metadata that declare its entry points."""
    package = entry_points(group)[name].dist
    assert package is not None
    lines = [
        f"[{point.group}]\n{point.name} = {point.value}\n"
        for point in package.entry_points
        if point.group.startswith(f"{GROUP}.")
    ]
    folder = f"{package.name.replace('-', '_')}-{package.version}.dist-info"
    described = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
    return {f"{folder}/METADATA": described.encode(), f"{folder}/entry_points.txt": "".join(lines).encode()}


def _zipped(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.external_attr = 0o644 << 16  # Unix permissions are in the upper half; 0 would make files unreadable
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED)
    return held.getvalue()
