"""Running real sweeps from tests: the command line in a process of its own, watched through its journal."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from cyclopts.argument import Argument

from sweeper.api.main import main, program
from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record
from sweeper.journal.segments import last_sequence
from tests.forked import Forked, Request, can_fork
from tests.patience import patient
from tests.sweeper.records import fields

Process = subprocess.Popen[str] | Forked

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3}
samples: 10
replicates: 2
seed: 3
space:
  loss:
    one_of:
      - {name: cross_entropy}
      - {name: focal, gamma: {uniform: [0.5, 5]}}
      - name: selective_risk
        coverage: {uniform: [0.3, 0.9]}
        nu: {loguniform: [0.01, 0.3]}
        score: {choice: [msp, margin]}
  architecture: {choice: [{name: mlp, width: 32}, mlp]}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 64, schedule: cosine}
resources: {cpu: 1}
evaluation:
  bins: 15
  posthoc: [temperature]
  curvature: {samples: 32, lanczos_steps: 3, trace_probes: 2, spectrum: true, spectrum_steps: 3, blocks: true}
"""

TINY = """
dataset: {name: digits}
scheduler: {name: none, max_epochs: 2}
samples: %d
space:
  loss: {name: focal, gamma: {uniform: [0.5, 5]}}
  architecture: {name: mlp, width: 8}
  optimizer: {name: sgd, lr: 0.1, batch_size: 64}
resources: {cpu: 1}
evaluation: {curvature: false, bootstrap: 0}
"""
"""Sweeps of which only the number of trials matters."""


def write_space(folder: Path, text: str = SPACE, name: str = "small") -> Path:
    """Write a search space file and return its path."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def sweeper(*arguments: str | Path, cwd: Path, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with _writing(arguments, cwd, out, err) as process:
            process.wait(patient(timeout))
        return subprocess.CompletedProcess(process.args, process.returncode, out.read_text(), err.read_text())


def typed(*arguments: str | Path, answers: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in this process, which saves the imports; for tests of what it does and not of how it starts.

    Progress, which goes to the terminal's own descriptor while a sweep runs, is not in what it printed.
    """
    words, code = ["sweeper", *map(str, arguments)], 0
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", io.StringIO(answers)),
        mock.patch.object(sys, "argv", words),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(words, code, *printed)


def arguments_of(command: str) -> Sequence[Argument]:
    """Return what a command takes, such as `manage delete`; nothing of a group of commands."""
    made = program()
    for word in command.split():
        made = made[word]
    if made.default_command is None:
        return []
    return made.assemble_argument_collection(default_parameter=program().default_parameter, parse_docstring=True)


def completions(*words: str) -> list[str]:
    """Return what the TAB key offers after words, the last of which has begun."""
    _, _, offered = typed("__complete", *words).stdout.partition("\x1fbegin\n")
    return [line.partition("\t")[0] for line in offered.splitlines() if line.startswith(words[-1])]


def in_process(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as `typed` does, in a folder."""
    with contextlib.chdir(cwd):
        return typed(*arguments)


def command(*arguments: str | Path, program: str = "sweeper") -> list[str]:
    """Return the command line that runs `sweeper`, or a module that stands for it, with this interpreter."""
    return [sys.executable, "-m", program, *map(str, arguments)]


@contextmanager
def started(
    *arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None, program: str = "sweeper"
) -> Iterator[Process]:
    """Start a command; on leaving, end it by its process id if it is still there."""
    with _writing(arguments, cwd, cwd / "driver.out", cwd / "driver.err", environment, program) as process:
        yield process


@contextmanager
def _writing(
    arguments: Sequence[str | Path],
    cwd: Path,
    out: Path,
    err: Path,
    environment: Mapping[str, str] | None = None,
    program: str = "sweeper",
) -> Iterator[Process]:
    with out.open("w") as said, err.open("w") as complained:
        if can_fork(environment):
            variables = dict(os.environ if environment is None else environment)
            request = Request(program, [*map(str, arguments)], os.path.abspath(cwd), variables)  # noqa: PTH100
            process: Process = Forked(request, said, complained)
        else:
            line = command(*arguments, program=program)
            process = subprocess.Popen(line, cwd=cwd, stdout=said, stderr=complained, text=True, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(patient(30))


def wait_for_records(paths: SweepPaths, count: int, process: Process, timeout: float = 200) -> None:
    """Wait until the journal has `count` records; fails when the process ends before."""
    deadline = time.monotonic() + patient(timeout)
    while last_sequence(paths.journal) + 1 < count:
        if process.poll() is not None:
            raise AssertionError(f"the sweep ended with {process.returncode} before record {count}")
        if time.monotonic() > deadline:
            raise AssertionError(f"no record {count} after {timeout} s")
        time.sleep(0.005)


def kill(process: Process) -> None:
    """SIGKILL a driver and give its workers, which may write for two more seconds, the time to die."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait(patient(30))


def reports(paths: SweepPaths) -> list[Record]:
    """Return the journal's reports."""
    return [record for record in read_journal(paths.journal) if record.kind == "report"]


TIMES = {"seconds"}


def metrics_by_key(records: Sequence[Record]) -> dict[tuple[int, int, int, str], dict[str, object]]:
    """Return every measured value by (configuration, replicate, epoch, split or `epoch`), without timings."""
    found: dict[tuple[int, int, int, str], dict[str, object]] = {}
    for record in records:
        body = fields(record)
        for kind in ("epochs", "evaluations"):
            for row in body[kind]:
                key = (body["configuration"], row["replicate"], row["epoch"], row.get("split", "epoch"))
                assert key not in found, f"{key} is in the journal twice"
                found[key] = {name: value for name, value in row.items() if name not in TIMES}
    return found


def same(left: object, right: object) -> bool:
    """Whether two measured values are the same; two NaN are."""
    return left == right or (left != left and right != right)
