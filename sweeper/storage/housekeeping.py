"""Housekeeping of results folders on this machine: what there is, and to delete, rename or archive a sweep."""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.ids import SweepPaths, is_sweep_name
from sweeper.storage.lease import holder
from sweeper.storage.lookup import UnknownSweepError, find_sweep, sweep_fault, sweep_names
from sweeper.storage.metadata import read_manifest, read_specification
from trainables.files.atomic import replacing, temporary_name
from trainables.files.stores.base import is_store_address

OWNED = "ask its owner, or work on a copy"
"""The remedy for folders that this user may not change."""


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
        paths = SweepPaths(Path(output) / name)
        if sweep_fault(paths.root) is not None:
            continue
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
    """Return a sweep that nobody drives, by its name or its path.

    Raises SweeperError for one that runs or is in an object store, and for whatever does not lie directly in the
    folder `output` or is no sweep: it may be anything.
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
        who = f"process {driver.get('pid')} on {driver.get('host')}"
        raise SweeperError(f"the sweep {paths.name!r} is driven by {who}", f"run `sweeper stop {paths.name}` first")
    return paths


def _folder_of(name: str, output: Path) -> Path:
    """Return the folder of that name in `output`. Raises SweeperError where there is none, or it lies elsewhere."""
    folder = output / name if is_sweep_name(name) else Path(name)
    if not is_sweep_name(folder.name) or folder.parent.resolve() != output.resolve():
        find_sweep(name, output)  # raises where there is no such sweep at all
        raise SweeperError(
            f"{name!r} does not lie directly in {output}", "give its name, and the folder that it is in as --output"
        )
    if not os.path.lexists(folder):
        find_sweep(name, output)
        raise UnknownSweepError(f"there is no sweep {name!r} in {output}")
    return folder.parent.resolve() / folder.name


def delete(name: str, output: str | Path) -> int:
    """Delete a sweep's results folder; return the bytes that it held. Raises as `at_rest`."""
    paths = at_rest(name, output)
    size = size_of(paths.root)
    # Under another name first: a folder half deleted is no sweep.
    doomed = paths.root.with_name(temporary_name())
    with writing_to(paths.root.parent, OWNED):
        paths.root.rename(doomed)
        shutil.rmtree(doomed)
    return size


def rename(name: str, new: str, output: str | Path) -> Path:
    """Rename a sweep's results folder; return it. Raises SweeperError as `at_rest`, or where the name will not do."""
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
    if os.path.lexists(file):
        raise SweeperError(f"{file} already exists", "remove it, or name another file with --to")
    remedy = "free space, or name another file with --to"
    with writing_to(file, remedy), replacing(file) as part, tarfile.open(part, "w:gz") as packed:
        packed.add(paths.root, arcname=paths.name)
    return file
