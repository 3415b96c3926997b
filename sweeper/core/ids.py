"""Every name, path, hash and seed of a sweep. No other module builds them.

A sweep's results folder is `<output>/<sweep name>/`. A trial is named after the index of its configuration
(`c00007`), so its name is the same in every table, after every resume, and on every machine.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import trainables
from sweeper.core.errors import SweeperError

#: A sweep's name is one folder name: it cannot hold a separator, and `..` cannot match.
SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

#: The tables that are projections of the journal.
TABLES = ("trials", "epochs", "evaluations", "reliability", "predictions", "spectra", "blocks", "decisions")

#: The table made from `predictions` afterwards, by `sweeper recalibrate`; readers find it next to the others.
RECALIBRATIONS = "recalibrations"

#: The table whose files stay in a store.
KEPT = "predictions"

_FILE = re.compile(rf"tables/{KEPT}/(c\d{{5,}}[A-Za-z0-9_.-]{{0,199}}\.parquet)")
_ONE_EVALUATION = re.compile(r"c\d{5,}-r\d+-e\d{5,}\.parquet")
_TABLE_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.parquet")


def kept_file(name: str) -> str | None:
    """Return the file name of an object that is a published file of `KEPT`; `None` for any other object."""
    match = _FILE.fullmatch(name)
    return match[1] if match else None


def trial_of(file: str) -> str | None:
    """Return the trial of a file with one evaluation; `None` if it has several."""
    return file.partition("-")[0] if _ONE_EVALUATION.fullmatch(file) else None


def is_table_file(table: str, name: str) -> bool:
    """Return whether `name` can be a file of the table `table`."""
    # The journal may be someone else's, and a name such as `../x` would be downloaded outside the folder.
    return table in (*TABLES, RECALIBRATIONS) and _TABLE_FILE.fullmatch(name) is not None


def trial_name(configuration: int) -> str:
    """Return the name of a configuration's trial, e.g. `c00007`."""
    return f"c{configuration:05d}"


#: Added seeds are trained under configuration indices from here on. No sweep draws as many configurations
#: (`sweeper.space.spec.MAXIMUM_CONFIGURATIONS`), so raising `samples` later leaves these indices valid.
FIRST_ADDED = 1_000_000


def is_added(configuration: int) -> bool:
    """Return whether a configuration index belongs to an added seed."""
    return configuration >= FIRST_ADDED


def configuration_index(trial: str) -> int:
    """Return the configuration index in a trial's name. Raises SweeperError for any other text."""
    # Without ASCII, `\d` also matches the digits of other scripts.
    if not re.fullmatch(r"c\d{5,15}", trial, re.ASCII):
        raise SweeperError(f"{trial[:40]!r} is not a trial's name, such as c00007", "use the sweep's own tables")
    return int(trial[1:])


def is_sweep_name(name: str) -> bool:
    """Return whether `name` is a valid sweep name: letters, digits, `_`, `.` and `-`, at most 100."""
    return SWEEP_NAME.fullmatch(name) is not None


def require_sweep_name(name: str) -> None:
    """Raise SweeperError if `name` is not a valid sweep name."""
    if not is_sweep_name(name):
        remedy = "use 1 to 100 letters, digits, '_', '.' and '-', starting with a letter or digit"
        raise SweeperError(f"{name!r} is not a valid sweep name", remedy)


def seed_from(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on `parts` alone and is the same on every machine."""
    # 63 bits, because the column `seed` is int64. Python's own `hash` of a text differs between processes.
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def configuration_seed(sweep_seed: int, configuration: int) -> int:
    """Return the seed from which configuration `configuration` is drawn."""
    return seed_from("configuration", sweep_seed, configuration)


def replicate_seed(sweep_seed: int, configuration: int, replicate: int, *, common: bool = False) -> int:
    """Return the seed of one replicate, from which initial weights, data order and all random choices follow.

    A `common` seed is the same for all configurations.
    """
    return seed_from("replicate", sweep_seed, "common" if common else configuration, replicate)


@dataclass(frozen=True)
class ReplicateSeeds:
    """The seeds of a sweep's replicates, for trials, the table `trials` and measurements before the sweep.

    Attributes:
        sweep_seed: the sweep's seed, from which all others follow.
        count: replicates of each configuration.
        common: whether replicate r has the same seed in every configuration; or a list of these common seeds, one per
            replicate.
    """

    sweep_seed: int
    count: int
    common: bool | Sequence[int] = False

    def of(self, configuration: int) -> list[int]:
        """Return the seed of each replicate of a configuration."""
        if not isinstance(self.common, bool):
            return list(self.common)
        return [replicate_seed(self.sweep_seed, configuration, r, common=self.common) for r in range(self.count)]

    def fresh(self, replicate: int) -> int:
        """Return the seed of a replicate beyond `count`. All configurations share it, so comparisons are paired."""
        return replicate_seed(self.sweep_seed, 0, replicate, common=True)


class _Below:
    """A path below a sweep's results folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: SweepPaths, _owner: type) -> Path:
        return paths.root / self._name


@dataclass(frozen=True)
class SweepPaths:
    """The paths of one sweep's files, below its results folder `root`."""

    root: Path

    @property
    def name(self) -> str:
        """The sweep's name: the folder's name."""
        return self.root.name

    @property
    def in_commands(self) -> str:
        """The sweep's name as an argument of a command, with `--output` unless it lies in `./results`."""
        folder = self.root.parent
        if folder in (Path("results"), Path("results").resolve()):
            return self.name
        return f"{self.name} --output {shlex.quote(str(folder))}"

    #: The resolved search space.
    sweep_file = _Below("sweep.yaml")

    #: Versions, git commit, seeds, hardware, command.
    manifest = _Below("manifest.json")

    #: The code of user-defined components as it was when the sweep began; missing if there are none.
    extensions = _Below("extensions.zip")

    #: The folder of immutable records, the sweep's only source of truth.
    journal = _Below("journal")

    #: The folder of checkpoints, one folder per trial.
    checkpoints = _Below("checkpoints")

    def trial_checkpoints(self, configuration: int) -> Path:
        """The folder of one trial's checkpoints."""
        return self.checkpoints / trial_name(configuration)

    #: The symbolic link to the current generation of tables, used by readers.
    tables = _Below("tables")

    #: The folder of table generations; `tables` points into it.
    generations = _Below("generations")

    #: The folder of recalibrations, computed from the predictions afterwards; every generation links to it.
    recalibrations = _Below("recalibrations")

    #: The data set as arrays, which trials share during a sweep; not read afterwards.
    data = _Below("data")

    #: Measured GPU memory of each kind of configuration, one file per kind.
    card_memory = _Below("card_memory")

    #: The self-contained report page.
    report = _Below("report.html")

    #: Output of Ray and torch.
    log = _Below("sweeper.log")

    #: Output of the process that fills the tracker.
    tracking_log = _Below("mlflow.log")

    #: Its presence asks the driver to stop.
    stop_marker = _Below("stop")

    #: The driver's lease: host, pid, heartbeat.
    lease = _Below("driver.json")


#: Packages whose version can change a trial's numbers.
NUMERICAL_PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "scikit-learn")


@functools.cache
def code_version() -> str:
    """Return 16 hexadecimal digits of the code that a trial runs: the sources of `trainables` and its packages.

    A git commit identifies the code less well: it stays the same for edited sources, differs for every change of the
    README, and is missing from an installed package.
    """
    root = Path(trainables.__file__).parent
    digest = hashlib.sha256(platform.python_version().encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for package in NUMERICAL_PACKAGES:
        digest.update(f"{package} {metadata.version(package)}\0".encode())
    return digest.hexdigest()[:16]


def cache_folder() -> Path:
    """Return the cache folder: `SWEEPER_CACHE`, else `sweeper` in the user's cache. It need not exist."""
    named = os.environ.get("SWEEPER_CACHE")
    if named:
        return Path(named).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").resolve() / "sweeper"


# Before code from a results folder runs, the user is asked, since someone else may have written the folder. An empty
# file, named by a digest of the code, records the consent; a user who loses the cache is asked again.


def is_allowed(code: str) -> bool:
    """Return whether this user has allowed some code, given a text that identifies it."""
    return _mark(code).exists()


def allow(code: str) -> None:
    """Record that this user allows this code; if the cache cannot be written, the next run asks again."""
    mark = _mark(code)
    with contextlib.suppress(OSError):
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch(mode=0o600)


def _mark(code: str) -> Path:
    return cache_folder() / "allowed" / f"code-{hashlib.sha256(code.encode()).hexdigest()}"
