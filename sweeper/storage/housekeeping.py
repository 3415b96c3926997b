"""Housekeeping of results folders on this machine: what there is, and to delete, rename or archive a sweep."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths, is_sweep_name
from sweeper.storage.lease import holder
from sweeper.storage.lookup import find_sweep, sweep_names
from sweeper.storage.metadata import read_manifest, read_specification
from trainables.files.atomic import temporary_name
from trainables.worker.object_store import is_store_address


@dataclass(frozen=True)
class Entry:
    """One sweep in a folder of results: its name, when it began, its data set, bytes on disk, and its driver."""

    name: str
    began: str
    dataset: str
    size: int
    running: bool


def entries(output: str | Path) -> list[Entry]:
    """Return the sweeps in a folder, the one that began last first."""
    found = []
    for name in sweep_names(output):
        paths = find_sweep(name, output)
        space = read_specification(paths.sweep_file)
        began = str(read_manifest(paths.manifest, unknown_if_damaged=True).get("created", ""))[:16].replace("T", " ")
        dataset = str(space.get("dataset", {}).get("name", ""))
        found.append(Entry(name, began, dataset, size_of(paths.root), holder(paths.lease) is not None))
    return found


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; links are not followed."""
    sizes = ((Path(where) / name).lstat().st_size for where, _, names in os.walk(folder) for name in names)
    return sum(sizes)


def at_rest(name: str, output: str | Path) -> SweepPaths:
    """Return a sweep that nobody drives. Raises SweeperError for one that runs or is in an object store."""
    if is_store_address(name) or is_store_address(output):
        raise SweeperError("sweeps in an object store are managed with the store's own tools", "e.g. `aws s3 mv`")
    paths = find_sweep(name, output)
    driver = holder(paths.lease)
    if driver is not None:
        who = f"process {driver.get('pid')} on {driver.get('host')}"
        raise SweeperError(f"the sweep {paths.name!r} is driven by {who}", f"run `sweeper stop {paths.name}` first")
    return paths


def delete(name: str, output: str | Path) -> int:
    """Delete a sweep's results folder; return the bytes that it held. Raises as `at_rest`."""
    paths = at_rest(name, output)
    size = size_of(paths.root)
    # Under another name first: a folder half deleted is no sweep.
    doomed = paths.root.with_name(temporary_name())
    paths.root.rename(doomed)
    shutil.rmtree(doomed)
    return size


def rename(name: str, new: str, output: str | Path) -> Path:
    """Rename a sweep's results folder; return it. Raises SweeperError as `at_rest`, or where the name will not do."""
    paths = at_rest(name, output)
    if not is_sweep_name(new):
        raise SweeperError(f"{new!r} is not a valid sweep name", "use letters, digits, dots, hyphens and underscores")
    target = paths.root.with_name(new)
    if target.exists():
        raise SweeperError(f"the name {new!r} is taken", "choose another one")
    paths.root.rename(target)
    return target


def archive(name: str, output: str | Path, to: Path | None) -> Path:
    """Write a sweep's results folder into a compressed tar file; return it. The folder stays.

    Args:
        name: of the sweep.
        output: where it is.
        to: the file; `<name>.tar.gz` beside the sweep where none is given.

    Raises:
        SweeperError: as `at_rest`, or the file is there already.
    """
    paths = at_rest(name, output)
    file = to if to is not None else paths.root.with_name(f"{paths.name}.tar.gz")
    if file.exists():
        raise SweeperError(f"{file} already exists", "remove it, or name another file with --to")
    part = file.with_name(f"{file.name}.part")
    try:
        with tarfile.open(part, "w:gz") as packed:
            packed.add(paths.root, arcname=paths.name)
        part.rename(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise SweeperError(f"{file} cannot be written: {error.strerror}", "free space, or name another file") from error
    return file
