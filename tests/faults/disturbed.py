"""Sweeps that are disturbed at random moments, drawn by progress, and compared with the undisturbed one."""

import itertools
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from sweeper.core.ids import SweepPaths
from tests.faults.cluster import QUICK_DEATHS
from tests.faults.processes import Moments
from tests.faults.reference import check_survived, undisturbed
from tests.patience import patient
from tests.polling import Poller
from tests.running import started

Strike = Callable[[subprocess.Popen[str]], None]


class Disturbed:
    """Sweeps that are disturbed one after the other until `kills` blows have fallen, each checked at its end."""

    def __init__(
        self,
        space: Path,
        folder: Path,
        seed: int,
        *options: str | Path,
        mlflow: Path | None = None,
        program: str = "sweeper",
    ) -> None:
        """Disturb sweeps of `space` that run with `options`.

        Args:
            space: the search space file.
            folder: for their results.
            seed: of the moments.
            options: of `sweeper run`.
            mlflow: changes whenever MLflow was written to; without it nothing is logged there.
            program: the module that is run.
        """
        self._program = program
        self.folder, self.random, self._mlflow = folder, random.Random(seed), mlflow
        self._space, self._options, self._expected = space, options, undisturbed(space)
        self.fallen: list[str] = []

    def paths(self, number: int) -> SweepPaths:
        return SweepPaths(self.folder / "results" / f"s{number}")

    def command(self, paths: SweepPaths) -> list[str | Path]:
        begun = (paths.root / "sweep.yaml").exists()
        start: list[str | Path] = ["resume", paths.name] if begun else ["run", self._space, "--name", paths.name]
        return [*start, *([] if self._mlflow else ["--no-mlflow"]), *self._options]

    def fatal(self, kills: int, strike: Strike, environment: Callable[[], Iterator[dict[str, str]]]) -> None:
        """Blows that end the driver: strike, resume, strike again."""
        for number in itertools.count():
            paths, over = self.paths(number), False
            with Poller(paths.tables) as poller:
                while not over:
                    for environ in environment():
                        over = self._once(paths, kills, strike, environ)
            self._check(paths, poller, number)
            if len(self.fallen) >= kills:
                return

    def _once(self, paths: SweepPaths, kills: int, strike: Strike, environ: dict[str, str]) -> bool:
        """Run until a blow or to the end; return whether it was the end."""
        with started(*self.command(paths), cwd=self.folder, environment=environ, program=self._program) as process:
            moments = self._moments(paths)
            moment = moments.draw(process) if len(self.fallen) < kills else None
            if moment is None:
                assert process.wait(patient(200)) == 0, self._said()
                return True
            strike(process)
            self.fallen.append(moment)
        return False

    def survivable(self, kills: int, strike: Strike, environ: dict[str, str] | None = None) -> None:
        """Blows that the driver must survive."""
        for number in itertools.count():
            paths = self.paths(number)
            with (
                Poller(paths.tables) as poller,
                started(*self.command(paths), cwd=self.folder, environment=environ) as process,
            ):
                moments = self._moments(paths)
                while len(self.fallen) < kills and (moment := moments.draw(process)) is not None:
                    strike(process)
                    self.fallen.append(moment)
                assert process.wait(patient(200)) == 0, self._said()
            self._check(paths, poller, number)
            if len(self.fallen) >= kills:
                return

    def _moments(self, paths: SweepPaths) -> Moments:
        return Moments(paths, self.random.getrandbits(32), self._mlflow)

    def _check(self, paths: SweepPaths, poller: Poller, number: int) -> None:
        assert not poller.faults, poller.faults[:5]
        check_survived(paths, self._expected)
        print(f"sweep {number + 1}: {len(self.fallen)} blows so far, {poller.reads} reads, equal to the undisturbed")
        if number == 0:
            print("moments: " + ", ".join(self.fallen))

    def _said(self) -> str:
        return (self.folder / "driver.out").read_text() + (self.folder / "driver.err").read_text()


def here() -> Iterator[dict[str, str]]:
    """The environment of a driver that starts a cluster of its own."""
    yield {**os.environ, **QUICK_DEATHS}
