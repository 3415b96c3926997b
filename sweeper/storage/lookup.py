"""Find, list, delete, rename and archive sweeps in a folder of results.

For reading, a sweep is a folder with a resolved search space, `sweep.yaml`, or only with `tables`, as in a partial
copy. Before a folder is removed or moved, `sweep_fault` checks its manifest and journal. Before anything is written
into a folder, `refuse_odd_files` checks its contents, since somebody else may have made it.

Sweeps are ordered by the start time in their manifest. Later changes of the folder (a resume, a report, a copy) do not
matter.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tarfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import RECALIBRATIONS, SweepPaths, is_sweep_name
from sweeper.journal.segments import piece_of
from sweeper.storage.lease import holder, process_of
from sweeper.storage.metadata import read_manifest, read_specification, require_format, started_at
from sweeper.storage.store_journal import INDEX
from trainables.files.atomic import creating, is_temporary, temporary_name
from trainables.files.stores.base import is_store_address
from trainables.registry.names import nearest

#: Most sweeps that an error message lists.
SHOWN_NAMES = 8


class UnknownSweepError(SweeperError):
    """No sweep of that name or at that path."""


def is_sweep(folder: Path) -> bool:
    """Return whether a folder holds a sweep: a search space, or tables alone.

    Example:
        >>> is_sweep(Path("nowhere"))
        False
    """
    paths = SweepPaths(folder)
    try:
        return paths.sweep_file.is_file() or paths.tables.is_dir()
    except (OSError, ValueError):  # a name that is too long, or has a NUL in it
        return False


def refusal(folder: Path) -> str | None:
    """Return why the system refuses to open a folder, such as a colleague's; `None` if it does not."""
    try:
        SweepPaths(folder).sweep_file.stat()
    except PermissionError as error:
        return error.strerror
    except (OSError, ValueError):
        return None
    return None


def unreadable_sweeps(output: str | Path) -> dict[str, str]:
    """Return the folders in `output` that this user cannot open and that can be sweeps, with the reason."""
    folders = Path(output).iterdir() if Path(output).is_dir() else []
    refused = {folder.name: refusal(folder) for folder in folders if is_sweep_name(folder.name)}
    return {name: reason for name, reason in sorted(refused.items()) if reason is not None}


def sweep_fault(folder: Path) -> str | None:
    """Return why a folder is not a sweep that can be removed or moved; `None` if it is one.

    A file `sweep.yaml` or a folder `tables` proves nothing. A sweep has a manifest with seed and versions or, if the
    manifest is damaged, a journal with records. Its journal contains only records.
    """
    paths = SweepPaths(folder)
    if folder.is_symlink():
        return "it is a link"
    if not paths.sweep_file.is_file() or paths.sweep_file.is_symlink():
        return f"it has no {paths.sweep_file.name}"
    records: list[str] = []
    if os.path.lexists(paths.journal):
        if paths.journal.is_symlink() or not paths.journal.is_dir():
            return "its journal is no folder"
        try:
            records = [name for name in os.listdir(paths.journal) if name != INDEX]  # a copy from a store has an index
        except PermissionError as error:
            return f"its journal cannot be read: {error.strerror}"
    for name in records:
        if piece_of(name.removesuffix(".damaged")) is None and not is_temporary(name):
            return f"its journal has a file {name!r}, which is no record"
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    if not records and not {"created", "seed", "versions"} <= manifest.keys():
        return "neither a manifest nor a journal says so"
    return None


def refuse_odd_files(paths: SweepPaths) -> None:
    """Raise SweeperError if a sweep's folder contains a file or link that no sweep creates.

    A sweep has files, folders and the links of `_OWN_LINKS`. Any other link could make sweeper overwrite or remove
    files elsewhere, and a pipe would block its writer.
    """
    remedy = "remove it, or put in its place what belongs there"
    every = (Path(where) / name for where, folders, files in os.walk(paths.root) for name in (*folders, *files))
    for odd in (path for path in every if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR)):
        place = odd.relative_to(paths.root).as_posix()
        if not odd.is_symlink():
            raise SweeperError(f"{odd} is neither file nor folder: nothing was written", remedy)
        if not any(pattern.fullmatch(f"{place} -> {odd.readlink()}") for pattern in _OWN_LINKS):
            raise SweeperError(
                f"{odd} is a link to {odd.readlink()}, and sweeps have no such link: nothing was written", remedy
            )
    for names, is_wrong, kind in ((_FILES, os.path.isdir, "file"), (_FOLDERS, os.path.isfile, "folder")):
        for path in (paths.root / name for name in names):
            if is_wrong(path):
                raise SweeperError(f"{path} is not a {kind}: nothing was written", remedy)


_FILES = (
    *("sweep.yaml", "manifest.json", "extensions.zip", "report.html", "sweeper.log", "mlflow.log", "stop"),
    *("driver.json", "mlflow.lock", "recalibrations.lock"),
)
_FOLDERS = ("journal", "checkpoints", "generations", "recalibrations", "data", "card_memory")

_OWN_LINKS = (
    re.compile(r"tables -> generations/\d{4,}/?"),
    re.compile(rf"generations/\d{{4,}}/{RECALIBRATIONS} -> \.\./\.\./{RECALIBRATIONS}/?"),
    # W&B (0.31) links each run to the log that its service keeps in the user's cache; nothing opens it by this name.
    re.compile(r"wandb/(offline-)?run-[\w-]+/logs/debug-core\.log -> .+"),
)


def sweep_names(output: str | Path = "results") -> list[str]:
    """Return the names of the sweeps in the folder `output`, newest first.

    Raises SweeperError if the folder is not readable.

    Example:
        >>> for name in ("first", "second"):
        ...     (Path("results") / name / "tables").mkdir(parents=True)
        >>> sorted(sweep_names("results"))
        ['first', 'second']
    """
    try:
        listed = [*Path(output).iterdir()]
    except PermissionError as error:
        raise SweeperError(f"{output} cannot be read: {error.strerror}", FOREIGN) from error
    except (OSError, ValueError):  # missing, not a folder, or not a valid name
        listed = []
    sweeps = [SweepPaths(path) for path in listed if not is_temporary(path.name) and is_sweep(path)]
    return [paths.name for paths in sorted(sweeps, key=_age, reverse=True)]


def find_sweep(name_or_path: str | Path, output: str | Path) -> SweepPaths:
    """Return the paths of an existing sweep, by its name in the folder `output` or by its folder's path.

    A link to a sweep's folder has the link's name.

    Raises UnknownSweepError, which lists the existing sweeps, if there is none; SweeperError for a folder that this
    user cannot open, and for a sweep of another format.
    """
    direct, below = Path(name_or_path), Path(output) / name_or_path
    # A bare name means first the sweep in `output`, then a folder of that name in the working directory.
    is_name = len(direct.parts) == 1 and direct.name != ".."
    for folder in (below, direct) if is_name else (direct, below):
        if is_sweep(folder):
            paths = SweepPaths(_absolute(folder))
            require_format(paths.manifest)
            return paths
        if (reason := refusal(folder)) is not None:
            raise SweeperError(f"{folder} cannot be read: {reason}", FOREIGN)
    names = sweep_names(output)
    hint = (
        f"no sweeps yet in {Path(output).resolve()}; --output names another folder, `sweeper run quickstart` starts one"
    )
    if names:
        hint = f"available sweeps: {', '.join(names[:SHOWN_NAMES])}{nearest(str(name_or_path), names)}"
    raise UnknownSweepError(f"there is no sweep {str(name_or_path)!r} in {output}", hint)


def _absolute(folder: Path) -> Path:
    """Return the absolute path of a folder; a link stays a link, so that its name finds it again."""
    return folder.resolve() if folder.name in ("", "..") else folder.parent.resolve() / folder.name


def _age(paths: SweepPaths) -> tuple[float, float]:
    """Return a sort key by start time in Unix seconds; file times order two sweeps of the same second."""
    manifest = read_manifest(paths.manifest, unknown_if_damaged=True)
    written = changed_at(paths.manifest)
    began = started_at(manifest)
    if began is not None:
        return began, written
    return changed_at(paths.sweep_file) or changed_at(paths.tables), written


def changed_at(path: Path) -> float:
    """Return when a file, or the entries of a folder, last changed, in Unix seconds; 0 if it does not exist."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


#: Size in bytes from which a file is examined for holes, and of the blocks that `stat` counts.
LARGE_FILE, BLOCK = 2**28, 512

#: Remedies for folders that this user cannot read, or cannot change.
FOREIGN = "ask its owner for access"
OWNED = "ask its owner, or work on a copy"


@dataclass(frozen=True)
class Entry:
    """One sweep in a folder of results.

    Attributes:
        name: Name of the sweep.
        began: Start time, as `2026-11-02 09:30`.
        dataset: Name of its data set.
        size: Bytes on disk.
        running: Whether a process drives it.
    """

    name: str
    began: str
    dataset: str
    size: int
    running: bool

    def row(self) -> tuple[str, str, str]:
        """Return the start time, data set and size as text."""
        return self.began, self.dataset, f"{self.size / 2**20:,.1f} MiB"


def entries(output: str | Path) -> list[Entry]:
    """Return the sweeps in a folder, newest first, without those that cannot be read."""
    sweeps = []
    for name in sweep_names(output):
        with suppress(SweeperError, PermissionError):  # its status says why
            sweeps += _entries_of(SweepPaths(Path(output) / name))
    return sweeps


def _entries_of(paths: SweepPaths) -> list[Entry]:
    if sweep_fault(paths.root) is not None:
        return []
    dataset = str(read_specification(paths.sweep_file).get("dataset", {}).get("name", ""))
    began = str(read_manifest(paths.manifest, unknown_if_damaged=True).get("created", ""))[:16].replace("T", " ")
    return [Entry(paths.name, began, dataset, size_of(paths.root), holder(paths.lease) is not None)]


def size_of(folder: Path) -> int:
    """Return the size in bytes of all files below a folder; do not follow links."""
    return sum((Path(where) / name).lstat().st_size for where, _, names in os.walk(folder) for name in names)


def at_rest(name: str, output: str | Path) -> SweepPaths:
    """Return the paths of a sweep that nobody drives, by its name or its path.

    Raises SweeperError if the sweep runs or is in an object store, or if its folder is not directly in `output`.
    """
    if is_store_address(name) or is_store_address(output):
        raise SweeperError("sweeps in an object store are managed with the store's own tools", "e.g. `aws s3 mv`")
    paths = SweepPaths(_folder_of(name, Path(output)))
    fault = sweep_fault(paths.root)
    if fault is not None:
        raise SweeperError(
            f"{str(paths.root)!r} is not a sweep: {fault}", "it was left as it is; use the system's own tools for it"
        )
    driver = holder(paths.lease)
    if driver is not None:
        said = f"the sweep {paths.name!r} is driven by {process_of(driver)}"
        raise SweeperError(said, f"run `sweeper stop {paths.name}` first")
    return paths


def _folder_of(name: str, output: Path) -> Path:
    """Return the folder of that name in `output`. Raises SweeperError if there is none, or it lies elsewhere."""
    folder = output / name if is_sweep_name(name) else Path(name)
    if not is_sweep_name(folder.name) or folder.parent.resolve() != output.resolve():
        find_sweep(name, output)  # raises where there is no such sweep at all
        raise SweeperError(
            f"{name!r} does not lie directly in {output}", "give its name, and the folder that it is in as --output"
        )
    if not os.path.lexists(folder):
        find_sweep(name, output)
        raise UnknownSweepError(f"there is no sweep {name!r} in {output}")
    return _absolute(folder)  # a link stays a link, which `sweep_fault` refuses


def delete(name: str, output: str | Path) -> int:
    """Delete a sweep's results folder; return its size in bytes. Raises as `at_rest`."""
    paths = at_rest(name, output)
    size = size_of(paths.root)
    # Rename the folder first: while it is being deleted, it must not look like a sweep.
    doomed = paths.root.with_name(temporary_name())
    with writing_to(paths.root.parent, OWNED):
        paths.root.rename(doomed)
        shutil.rmtree(doomed)
    return size


def rename(name: str, new: str, output: str | Path) -> Path:
    """Rename a sweep's results folder; return it. Raises as `at_rest`, and SweeperError if the name is not usable."""
    paths = at_rest(name, output)
    if not is_sweep_name(new):
        raise SweeperError(f"{new!r} is not a valid sweep name", "use letters, digits, dots, hyphens and underscores")
    target = paths.root.with_name(new)
    if os.path.lexists(target):
        raise SweeperError(f"the name {new!r} is taken", "choose another one")
    with writing_to(paths.root.parent, OWNED):
        paths.root.rename(target)
    return target


def archive(name: str, output: str | Path, to: Path | None) -> Path:
    """Write a sweep's results folder into a compressed tar file; return the file. The folder is kept.

    Args:
        name: Name of the sweep.
        output: Folder that holds the sweep.
        to: File to write; `<name>.tar.gz` beside the sweep by default.

    Raises:
        SweeperError: As for `at_rest`, or the file already exists.
    """
    paths = at_rest(name, output)
    file = to if to is not None else paths.root.with_name(f"{paths.name}.tar.gz")
    if os.path.lexists(file):
        raise SweeperError(f"{file} already exists", "remove it, or name another file with --to")
    _refuse_holes(paths.root)
    remedy = "free space, or name another file with --to"
    with writing_to(file, remedy), creating(file) as part, tarfile.open(fileobj=part, mode="w:gz") as packed:
        packed.add(paths.root, arcname=paths.name, filter=_packed)
    return file


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return a member of an archive, or `None` for a link out of the sweep's folder, such as W&B's to its own logs."""
    # The other machine lacks its target, and Python's tarfile refuses to unpack it (`filter="data"`).
    target = PurePosixPath(os.path.normpath(PurePosixPath(member.name).parent / member.linkname))
    return None if member.issym() and target.parts[0] != PurePosixPath(member.name).parts[0] else member


def _refuse_holes(folder: Path) -> None:
    """Raise SweeperError for a large file that is nearly all holes: packing its zeros could take days."""
    for path in (Path(where) / name for where, _, names in os.walk(folder) for name in names):
        status = path.lstat()
        # No sweep writes such files. Compressing file systems store ordinary files in less, but not in a hundredth.
        if status.st_size > LARGE_FILE and status.st_blocks * BLOCK * 100 < status.st_size:
            raise SweeperError(
                f"{path} claims {status.st_size:,} bytes and has {status.st_blocks * BLOCK:,}", "remove or restore it"
            )
