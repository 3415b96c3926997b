"""`make check-pythons`: install and use the project with every Python that this machine has beside the usual one.

    python -m tests.release.check_pythons [3.12 3.13 …] [--keep]

For each interpreter found: a new environment with pinned versions, `pip check`, `doctor`, a quickstart of six trials,
its results and report, and the fast numerical tests. An index that has torch's CPU build for one Python only brings
the CUDA build for the others: several gigabytes each. Environments are removed afterwards, unless `--keep` is given.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.release.clean_environment import QUICK
from tests.release.distribution import ROOT, clean_environment, timed

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
NUMERICAL = (
    "tests/trainables/losses",
    "tests/trainables/metrics",
    "tests/trainables/posthoc",
    "tests/trainables/curvature",
)
"""Tests whose numbers a new release of Python or of a library could change."""


def interpreters(wanted: list[str]) -> Iterator[tuple[str, str]]:
    """Yield version and path of an interpreter of each version: on the search path, or one that pyenv has installed."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in wanted or VERSIONS:
        programs = [shutil.which(f"python{version}") or "false", *sorted(pyenv.glob(f"{version}.*/bin/python"))]
        for program in programs:
            asked = [program, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"]
            done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
            if done.returncode == 0 and done.stdout.split()[0] == version:
                yield version, done.stdout.split()[1]
                break
        else:
            print(f"python{version}: not on this machine")


def check(version: str, python: str, environment: Path) -> None:
    """Install into `environment` and use what is installed. Raises SystemExit with the first failure's output."""
    with tempfile.TemporaryDirectory(prefix="away-") as away:
        variables, pip_home = clean_environment(Path(away) / "home"), clean_environment(Path.home())
        pip_home |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}

        def run(*command: object, folder: str | Path = away, home: dict[str, str] = variables) -> None:
            timed(*command, folder=folder, environment=home)

        new, program = environment / "bin" / "python", environment / "bin" / "sweeper"
        pip = [new, "-m", "pip", "install", "--quiet", "--no-cache-dir", "-c", ROOT / "constraints.txt"]
        run(python, "-m", "venv", environment)
        run(*pip, "torch", home=pip_home)
        run(*pip, f"{ROOT}[dev,oracles,onnx,ray-serve]", home=pip_home)
        run(new, "-m", "pip", "check")
        run(program, "doctor")
        run(program, "run", "quickstart", *QUICK)
        run(program, "results", "quickstart")
        run(program, "report", "quickstart")
        run(new, "-m", "pytest", *NUMERICAL, "-p", "no:cacheprovider", "-q", folder=ROOT)


def main() -> None:
    """Check every interpreter that is found, or those that are named."""
    wanted = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    for version, python in list(interpreters(wanted)):
        print(f"{version}:", flush=True)
        environment = ROOT / "build" / "pythons" / version
        shutil.rmtree(environment, ignore_errors=True)
        try:
            check(version, python, environment)
        finally:
            if "--keep" not in sys.argv:
                shutil.rmtree(environment, ignore_errors=True)
        print(f"{version}  works")


if __name__ == "__main__":
    main()
