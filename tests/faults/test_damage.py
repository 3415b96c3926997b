"""Disks that are full or read-only, damaged records, tables and checkpoints, a clock that jumps back.

Each is real: a small tmpfs, a truncated file, a flipped bit. The answer is a clear error or a clean recovery.
"""

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.results import load
from tests.faults.reference import SMALL, check_survived, undisturbed
from tests.faults.small_disk import SmallDisk
from tests.running import command, in_process, kill, started, sweeper, wait_for_records, write_space
from tests.seeds import drawn_seed
from tests.sweeper.records import record_names

CLOCK_AN_HOUR_BACK = """
import time
_real = time.time
time.time = lambda: _real() - 3600
"""


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_space(tmp_path_factory.mktemp("space"), SMALL % {"samples": 6})


@pytest.fixture(scope="module")
def finished(space: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a sweep was run to its end as `results/whole`."""
    folder = tmp_path_factory.mktemp("finished")
    run = in_process("run", space, "--name", "whole", "--no-mlflow", "--cpus", "1", cwd=folder)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> SweepPaths:
    """A copy of the finished sweep to damage; `tmp_path` is where commands run."""
    shutil.copytree(finished / "results", tmp_path / "results", symlinks=True)
    return SweepPaths(tmp_path / "results" / "whole")


@pytest.fixture
def draw() -> random.Random:
    seed = drawn_seed()
    print(f"damage drawn with seed {seed}")
    return random.Random(seed)


def truncate(path: Path, draw: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: draw.randrange(len(data))])


def flip_a_bit(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    path.write_bytes(data)


@pytest.mark.integration
@pytest.mark.parametrize("damage", [truncate, flip_a_bit])
def test_a_damaged_record_is_named_and_nothing_is_run(
    copy: SweepPaths, tmp_path: Path, draw: random.Random, damage: Callable[[Path, random.Random], None]
) -> None:
    victim = copy.journal / draw.choice(record_names(copy.journal))
    damage(victim, draw)
    before = sorted(path.name for path in copy.journal.iterdir())
    for arguments in (["status", "whole"], ["status", "whole", "--audit"], ["resume", "whole", "--no-mlflow"]):
        answer = in_process(*arguments, cwd=tmp_path)
        assert answer.returncode == 2, arguments
        assert victim.name in answer.stderr and "--discard-damaged" in answer.stderr
        assert "Traceback" not in answer.stderr
    assert sorted(path.name for path in copy.journal.iterdir()) == before


@pytest.mark.integration
def test_damaged_records_are_measured_again(copy: SweepPaths, space: Path, tmp_path: Path, draw: random.Random) -> None:
    """The clock jumps back by an hour in between, too."""
    names = record_names(copy.journal)
    first = draw.randrange(1, len(names) - 2)
    truncate(copy.journal / names[first], draw)
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(CLOCK_AN_HOUR_BACK)
    python_path = os.pathsep.join(filter(None, [str(tmp_path / "clock"), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": python_path}
    arguments = ["resume", "whole", "--discard-damaged", "--no-mlflow", "--cpus", "1"]
    with started(*arguments, cwd=tmp_path, environment=environment) as process:
        assert process.wait(200) == 0, (tmp_path / "driver.err").read_text()
    said = (tmp_path / "driver.out").read_text()
    assert f"{len(names) - first} journal records from {names[first]}" in said
    assert {path.name for path in copy.journal.glob("*.damaged")} == {f"{name}.damaged" for name in names[first:]}
    records = list(read_journal(copy.journal))
    assert records[-1].time < records[0].time
    check_survived(copy, undisturbed(space))


@pytest.mark.integration
def test_damaged_tables_are_made_again(copy: SweepPaths, finished: Path, tmp_path: Path, draw: random.Random) -> None:
    whole = load(SweepPaths(finished / "results" / "whole").root)
    for table in ("trials", "epochs", "evaluations", "decisions"):
        for part in (copy.tables / table).glob("*.parquet"):
            flip_a_bit(part, draw)
    victim = draw.choice(sorted((copy.tables / "predictions").glob("c*.parquet")))
    flip_a_bit(victim, draw)
    answer = in_process("resume", "whole", "--no-mlflow", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    mended = load(copy.root)
    for table in ("trials", "epochs", "evaluations", "decisions", "reliability"):
        query = f"SELECT * FROM {table} ORDER BY ALL"
        # As text, in which a NaN equals a NaN.
        assert repr(mended.rows(query)) == repr(whole.rows(query)), table
    missing = whole.rows("SELECT count(*) AS n FROM predictions")[0]["n"]
    missing -= mended.rows("SELECT count(*) AS n FROM predictions")[0]["n"]
    aside = list((copy.generations / "damaged" / "predictions").iterdir())
    assert (missing > 0) == bool(aside), "what could not be read is kept aside"
    assert not aside or victim.stem in answer.stdout, answer.stdout


@pytest.mark.slow
def test_a_damaged_checkpoint_sets_its_trial_back(space: Path, tmp_path: Path, draw: random.Random) -> None:
    paths = SweepPaths(tmp_path / "results" / "s")
    with started("run", space, "--name", "s", "--no-mlflow", "--cpus", "1", cwd=tmp_path) as process:
        wait_for_records(paths, draw.randint(3, 6), process)
        kill(process)
    for checkpoint in paths.checkpoints.glob("*/e*.pt"):
        flip_a_bit(checkpoint, draw)
    resumed = sweeper("resume", "s", "--no-mlflow", "--cpus", "1", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    check_survived(paths, undisturbed(space))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", "1m") as disk:
        yield disk


@pytest.mark.slow
def test_a_full_disk_and_then_a_read_only_one(space: Path, tmp_path: Path, small_disk: SmallDisk) -> None:
    paths = SweepPaths(small_disk.seen_from_outside / "s")
    options = ["--no-mlflow", "--cpus", "1", "--output", str(small_disk.folder)]

    def sweeper(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
        return small_disk.run(*command(*arguments), cwd=cwd)

    full = sweeper("run", space, "--name", "s", *options, cwd=tmp_path)
    said = full.stdout + full.stderr
    assert full.returncode in (1, 2), said
    assert "No space left on device" in said and "sweeper resume s" in said, said
    assert "Traceback" not in said
    list(read_journal(paths.journal))
    small_disk.remount("ro")
    read_only = sweeper("resume", "s", *options, cwd=tmp_path)
    assert read_only.returncode == 2
    assert "Read-only file system" in read_only.stderr and "Traceback" not in read_only.stderr
    refused = sweeper("run", space, "--name", "t", *options, cwd=tmp_path)
    assert refused.returncode == 2
    assert "Read-only file system" in refused.stderr and "--output" in refused.stderr
    small_disk.remount("rw,size=64m")
    resumed = sweeper("resume", "s", *options, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    # A path through /proc is not what it resolves to, and readers resolve: they are given a copy.
    copied = SweepPaths(tmp_path / "copied" / "s")
    shutil.copytree(paths.root, copied.root, symlinks=True)
    check_survived(copied, undisturbed(space))


@pytest.mark.integration
@pytest.mark.parametrize("left", ["8k", *(pytest.param(left, marks=pytest.mark.slow) for left in ("4k", "16k"))])
def test_a_disk_that_is_full_at_the_start_takes_no_name(space: Path, tmp_path: Path, left: str) -> None:
    with SmallDisk(tmp_path / "disk", left) as disk:
        options = ["--no-mlflow", "--cpus", "1", "--name", "s", "--output", str(disk.folder)]
        full = disk.run(*command("run", space, *options), cwd=tmp_path)
        assert full.returncode == 1, full.stdout + full.stderr
        assert "No space left on device" in full.stderr and "Traceback" not in full.stderr
        assert not [*disk.seen_from_outside.iterdir()]
