"""Results folders with odd things in the places of their files, and what must hold of every command that meets them."""

import contextlib
import io
import multiprocessing
import os
import random
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from sweeper.api.main import main
from tests.fuzzing.damage import flip

READ, REFUSED = "read", "refused"
PATIENCE = 60.0

#: Bytes of a page that is read for the secret; a report of a small sweep has 3 MB.
LARGEST_PAGE = 2**26
"""Seconds in which a command must end, on a busy machine."""

SECRET = "a secret of the reader's"

NAMES = (
    "driver.json", "driver.heartbeat", "mlflow.lock", "mlflow.lock.heartbeat", "mlflow.log", "recalibrations.lock",
    "stop", "report.html", "sweeper.log", "extensions.zip", ".store", "card_memory", "data", "checkpoints",
    "generations", "tables", "journal", "recalibrations", "manifest.json", "sweep.yaml",
    "generations/damaged", "generations/incoming",
)  # fmt: skip
"""What a sweep's folder may hold; the files that it does hold come on top."""

COMMANDS = (
    ["status"], ["status", "s"], ["status", "s", "--audit"], ["cluster", "logs", "s"], ["stop", "s"],
    ["results", "s"], ["results", "s", "--all", "--format", "csv"], ["results", "s", "--columns", ""],
    ["results", "s", "--sql", "SELECT count(*), sum(confidence) FROM reliability"],
    ["results", "s", "--sql", "SELECT count(*), sum(target) FROM predictions"],
    ["results", "s", "--sql", "SELECT * FROM spectra"], ["show", "s"], ["report", "s"], ["figure", "s", "rungs"],
    ["compare", "s", "cross_entropy", "focal"], ["recalibrate", "s", "--method", "temperature"], ["ensemble", "s"],
    ["conformal", "s"], ["resume", "s", "--no-mlflow"], ["manage", "archive", "s", "--to", "packed.tar.gz"],
    ["manage", "rename", "s", "t"], ["manage", "delete", "s", "--yes"],
    ["manage", "sync", "s", "--mlflow-uri", "sqlite:///runs.db"], ["export", "s", "--to", "exported"],
)  # fmt: skip


def pipe(path: Path, outside: Path, content: bytes) -> None:
    """A FIFO, at which an ordinary `open` waits for ever."""
    os.mkfifo(path)


def folder(path: Path, outside: Path, content: bytes) -> None:
    """A folder."""
    path.mkdir()


def link(path: Path, outside: Path, content: bytes) -> None:
    """A link to a file of the reader's: not to be read, and less to be written."""
    path.symlink_to(outside / "secret")


def link_to_folder(path: Path, outside: Path, content: bytes) -> None:
    """A link to a folder of the reader's."""
    path.symlink_to(outside)


def endless_link(path: Path, outside: Path, content: bytes) -> None:
    """A link to itself."""
    path.symlink_to(path.name)


def device(path: Path, outside: Path, content: bytes) -> None:
    """A device without an end."""
    path.symlink_to("/dev/zero")


def listener(path: Path, outside: Path, content: bytes) -> None:
    """A socket; its name is too long for `bind` unless one stands beside it."""
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def nothing(path: Path, outside: Path, content: bytes) -> None:
    """An empty file."""
    path.touch()


def bytes_of_chance(path: Path, outside: Path, content: bytes) -> None:
    """Bytes that are no text."""
    path.write_bytes(bytes(range(256)) * 5)


def flipped_bits(path: Path, outside: Path, content: bytes) -> None:
    """The file, with a bit in a thousand bytes turned over."""
    chance = random.Random(len(content))
    bits = [chance.randrange(8 * len(content)) for _ in range(1 + len(content) // 1000)] if content else []
    path.write_bytes(flip(content, bits))


def gone(path: Path, outside: Path, content: bytes) -> None:
    """Nothing."""


def holes(path: Path, outside: Path, content: bytes) -> None:
    """A file that claims to be larger than any memory."""
    path.touch()
    os.truncate(path, 2**43)


Kind = Callable[[Path, Path, bytes], None]
KINDS: tuple[Kind, ...] = (
    pipe, folder, link, link_to_folder, endless_link, device, listener, nothing, bytes_of_chance, flipped_bits,
    gone, holes,
)  # fmt: skip

Case = tuple[str, Kind, list[str]]

READING = ("results", "show", "compare", "ensemble", "conformal")
"""Commands whose output must not change in silence when a table's file is gone."""

TABLE_FILE = re.compile(r"(generations/\d+|recalibrations)/.*\.parquet")


class Places:
    """A finished sweep `s`, copied for every case."""

    def __init__(self, sound: Path, work: Path) -> None:
        """Prepare for copies below `work` of the results folder `sound`."""
        self._sound, self._work = sound, work
        self._files = sorted(str(path.relative_to(sound)) for path in sound.rglob("*") if not path.is_dir())
        self._answers: dict[tuple[str, ...], str] = {}
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["sweeper.api.main", "sweeper.api.commands", "sweeper.results", "torch"])

    def fuzz(self, count: int, seed: int) -> Counter[str]:
        """Check cases and count the answers. Raises as `check`."""
        return Counter(self.check(*case) for case in self.draw(count, seed))

    def draw(self, count: int, seed: int) -> list[Case]:
        """Return cases: a place, what is put there, and a command."""
        chance = random.Random(seed)
        names = (chance.choice(chance.choice((NAMES, self._files))) for _ in range(count))
        return [(name, chance.choice(KINDS), list(chance.choice(COMMANDS))) for name in names]

    def check(self, name: str, kind: Kind, words: list[str]) -> str:
        """Put something odd in a place of a copy and run a command; return whether it ended well.

        Raises AssertionError for a traceback, a hang, or when anything outside the folder was read or written.
        """
        shutil.rmtree(self._work, ignore_errors=True)
        outside, root = self._work / "outside", self._work / "results" / "s"
        outside.mkdir(parents=True)
        (outside / "secret").write_text(SECRET)
        shutil.copytree(self._sound, root, symlinks=True)
        place, content = root / name, b""
        if place.is_file():
            content = place.read_bytes()
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        kind(place, outside, content)
        process = self._processes.Process(target=_run, args=(self._work, words))
        process.start()
        process.join(PATIENCE)
        said = (self._work / "said").read_text(errors="replace")
        case = f"{kind.__name__} as {name}: sweeper {' '.join(words)}\n{said[-3000:]}"
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"a hang: {case}")
        assert "Traceback" not in said and process.exitcode in (0, 1, 2), case
        assert [*outside.iterdir()] == [outside / "secret"] and (outside / "secret").read_text() == SECRET, case
        # A page of holes is what was damaged, and too large to read.
        own = [path for path in root.rglob("*.html") if path.is_file() and not path.is_symlink()]
        written = [path for path in own if path.stat().st_size < LARGEST_PAGE]
        assert SECRET not in said + "".join(path.read_text(errors="replace") for path in written), case
        if kind is gone and TABLE_FILE.fullmatch(name) and words[0] in READING and process.exitcode == 0:
            assert said == self._said_of_the_sound(words), f"silent: {case}"
        return REFUSED if process.exitcode == 2 else READ

    def _said_of_the_sound(self, words: list[str]) -> str:
        """Return what a command says of the sweep with nothing gone."""
        if tuple(words) not in self._answers:
            self.check("stop", gone, words)  # no finished sweep has that file
            self._answers[tuple(words)] = (self._work / "said").read_text(errors="replace")
        return self._answers[tuple(words)]


def _run(work: Path, words: list[str]) -> None:
    """Run a command with everything that it prints in the file `said`."""
    descriptor = os.open(work / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb", closefd=False)) for number in (1, 2))
    sys.argv = ["sweeper", *words]
    os.environ["MLFLOW_TRACKING_URI"] = "sqlite:///runs.db"
    with contextlib.chdir(work):
        main()
