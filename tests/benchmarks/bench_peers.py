"""The same sweep through this tool and its peers: wall time, time to a target, epochs, and what a SIGKILL leaves.

Configurations of `search_spaces/quickstart.yaml` with resnet8 at its whole width, one replicate, no curvature, halving
at 3/9/27, in two processes of one torch thread each: Ray Tune's ASHA (function API; class API with reused actors),
Optuna's successive halving (two processes, one SQLite study), Syne Tune's ASHA on its local backend, and `sweeper run`.
All train the same configurations from the same seeds with `Replicate` (the epochs that several trained are compared, to
the bit) and write what a user of theirs has by default: Ray its three loggers, Optuna each epoch's value in the study,
Syne Tune its CSV, this tool everything, evaluations at rungs, MLflow and report included. Each tool stops trials as it
does.

After two configurations each to warm up, contenders take turns, run after run.
Epochs are counted, and their time taken, by the same probe for all (`peers/probe.py`), so a value counts towards the
target when it is computed, before it is reported. The target is what the best quarter of the configurations that this
tool's first run trained to the end reach.

Then each is run again and gets SIGKILL, with its process group, at half its median wall time; what it has on disk is
counted, and it is resumed as its documentation says (`Tuner.restore`, a study's heartbeat, `Tuner.load`, `sweeper
resume`). There all save checkpoints at rungs, in the timed runs only this tool does.
"""

import argparse
import json
import os
import shutil
import signal
import site
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from sweeper.scheduling.asha import Halving
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.storage.metadata import hardware
from tests.benchmarks.peers import probe
from tests.benchmarks.peers.outcomes import Killed, Measured, differing, epochs_of, table, target_of
from tests.benchmarks.peers.plan import WORKERS, Kept, Plan

ROOT = Path(__file__).resolve().parents[2]
SPACE = "quickstart"
WHOLE_WIDTH = ("space.architecture={choice: [mlp, resnet8]}", "training.memory_format=contiguous")
"""Settings of the quickstart's space with which docs/guides/measured.md compares tools and releases."""
ONE_POOL = "{name: asha, max_epochs: 27, grace_epochs: 3, reduction_factor: 3}"
"""All trials compete, as in the other tools; the file's own scheduler compares within strata."""
LIMIT = 3600.0
"""Seconds after which a contender is given up."""
CONFIGURING = ("RAY_", "TUNE_", "SWEEPER_", "MLFLOW_", "SYNETUNE_")
"""Beginnings of environment variables that a contender may not inherit."""
LEAVING = 60.0
"""Seconds that a killed contender's processes have to end by themselves before the benchmark ends them."""


@dataclass(frozen=True)
class Contender:
    """A tool as it is compared.

    Attributes:
        name: of its script in `peers/`, and of its environment.
        label: as the table has it.
        packages: what its environment needs beyond this one's, without their dependencies: Syne Tune's ASHA imports
            none that this one lacks, while pip would fetch half a gigabyte (xgboost, NCCL).
    """

    name: str
    label: str
    packages: tuple[str, ...] = ()


CONTENDERS = (
    Contender("ours", "this tool, everything on"),
    Contender("optuna_study", "Optuna, halving pruner, two processes on one SQLite study"),
    Contender("ray_class", "Ray Tune, ASHA, class API with reused actors"),
    Contender("ray_function", "Ray Tune, ASHA, function API"),
    Contender("syne_tune_local", "Syne Tune 0.16, ASHA (stopping), local backend", ("syne-tune==0.16",)),
)


class FailedError(Exception):
    """A contender did not get to its end; the message is its last words."""


class Bench:
    """One benchmark: its plan, and where everything lies."""

    def __init__(self, plan: Plan, folder: Path, environments: Path) -> None:
        self.plan, self.folder, self.environments = plan, folder, environments
        self.seeds = {int(str(each["seed"])): index for index, each in enumerate(plan.configurations)}
        self._count = 0

    def new_folder(self, contender: Contender, plan: Plan) -> Path:
        """Return a new folder with the plan for one run of a contender."""
        self._count += 1
        folder = self.folder / f"{self._count:03}-{contender.name}"
        folder.mkdir()
        plan.write(folder)
        return folder

    def start(self, contender: Contender, folder: Path, command: str) -> subprocess.Popen[bytes]:
        """Start a contender's script in its environment, in a process group of its own."""
        # A home of its own, too: tools keep caches there, which a user's second run finds.
        home = self.environments / contender.name / "home"
        home.mkdir(exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(CONFIGURING)},
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            probe.FILE: str(folder / f"{command}.jsonl"),
        }
        python = self.environments / contender.name / "bin" / "python"
        line = [str(python), "-m", f"tests.benchmarks.peers.{contender.name}", command, str(folder)]
        with (folder / f"{command}.out").open("wb") as out:
            return subprocess.Popen(
                line, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )

    def finish(self, contender: Contender, folder: Path, command: str) -> float:
        """Run a contender's command to its end; return the seconds that it took. Raises FailedError."""
        began = time.perf_counter()
        process = self.start(contender, folder, command)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            end_processes(process, 0.0)
            raise FailedError(f"not done after {LIMIT:g} s") from None
        if code:
            words = (folder / f"{command}.out").read_text(errors="replace").strip().splitlines()
            print("\n".join(words[-30:]), file=sys.stderr)
            raise FailedError(f"it ended with {code}" + (f": {words[-1].strip()[:200]}" if words else ""))
        return time.perf_counter() - began

    def kept(self, contender: Contender, folder: Path) -> Kept:
        """Return the epochs that a contender's files hold."""
        self.finish(contender, folder, "kept")
        printed = (folder / "kept.out").read_text().splitlines()[-1]
        return {(configuration, epoch) for configuration, epoch in json.loads(printed)}

    def warm_up(self, contender: Contender) -> None:
        """Train two configurations that do not count, so that files are in memory and caches are made."""
        folder = self.new_folder(contender, plan_of(2))
        self.finish(contender, folder, "run")
        shutil.rmtree(folder)

    def run(self, contender: Contender, measured: Measured) -> None:
        """Run a contender once and add what comes out."""
        folder, began = self.new_folder(contender, self.plan), time.time()
        seconds = self.finish(contender, folder, "run")
        measured.seconds.append(seconds)
        measured.epochs.append(epochs_of(folder / "run.jsonl", self.seeds, began))
        have = len({each.configuration for each in measured.epochs[-1]})
        if have < len(self.plan.configurations):
            raise FailedError(f"it trained {have} configurations of {len(self.plan.configurations)}")
        shutil.rmtree(folder)

    def kill(self, contender: Contender, seconds: float) -> Killed:
        """Kill a contender after so many seconds, count what it has, resume it, and count again."""
        folder, began = self.new_folder(contender, replace(self.plan, checkpoints=True)), time.time()
        process = self.start(contender, folder, "run")
        time.sleep(seconds)
        if process.poll() is not None:
            raise FailedError(f"it had ended by {seconds:.1f} s, before its SIGKILL")
        end_processes(process, LEAVING)
        before = epochs_of(folder / "run.jsonl", self.seeds, began)
        kept = self.kept(contender, folder)
        resumed = time.time()
        try:
            self.finish(contender, folder, "resume")
        except FailedError as error:
            return Killed(seconds, before, kept, None, self.kept(contender, folder), f"resuming failed: {error}")
        after = epochs_of(folder / "resume.jsonl", self.seeds, resumed)
        complete = self.kept(contender, folder)
        missing = len(self.plan.configurations) - len(dict(complete))
        fault = f"{missing} configurations without a result in the end" if missing else ""
        shutil.rmtree(folder)
        return Killed(seconds, before, kept, after, complete, fault)


def end_processes(process: subprocess.Popen[bytes], leaving: float) -> None:
    """SIGKILL a process group; wait for what else it had started, and end what has not gone by itself."""
    started = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _, left = psutil.wait_procs(started, timeout=leaving)
    for each in left:
        print(
            f"still there {leaving:g} s after the SIGKILL: {each.pid} {' '.join(each.cmdline())[:80]}", file=sys.stderr
        )
        each.kill()
    psutil.wait_procs(left, timeout=10)


def make_environment(contender: Contender, environments: Path) -> None:
    """Make a contender's environment unless it is there. Raises FailedError when its packages cannot be installed."""
    place = environments / contender.name
    done = place / ".installed"
    if done.exists() and done.read_text() == " ".join(contender.packages):
        return
    shutil.rmtree(place, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    library = next((place / "lib").glob("python3.*")) / "site-packages"
    hook = f"import os; {probe.FILE!r} in os.environ and __import__({probe.__name__!r})"
    paths = site.getsitepackages()
    (library / "peers.pth").write_text(f"import sys; sys.path.extend({paths!r})\n{hook}\n")
    if contender.packages:
        pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", "--no-deps", "-c", str(ROOT / "constraints.txt"), *contender.packages]
        installed = subprocess.run(command, capture_output=True, text=True)
        if installed.returncode:
            errors = [line for line in installed.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise FailedError(f"cannot be installed beside the pinned versions ({errors[0][:200]})")
    done.write_text(" ".join(contender.packages))


def plan_of(samples: int) -> Plan:
    """Draw the configurations."""
    settings = [f"samples={samples}", "replicates=1", "which=[]", "evaluation.curvature=false", f"scheduler={ONE_POOL}"]
    settings += WHOLE_WIDTH
    spec = load_spec(SPACE, settings)
    chosen = [
        {"values": values, "seed": spec.replicate_seeds.of(index)[0]}
        for index, values in enumerate(configurations(spec))
    ]
    schedule = spec.schedule
    assert isinstance(schedule, Halving)
    factor = int(schedule.reduction_factor)
    return Plan(SPACE, settings, spec.dataset, schedule.rungs, factor, chosen, checkpoints=False)


def measure(bench: Bench, chosen: Sequence[Contender], runs: int, kills: int) -> list[Measured]:
    """Run all contenders in turn, then kill them in turn."""
    found = {contender: Measured(contender.label) for contender in chosen}

    def attempt(contender: Contender, what: str) -> None:
        measured = found[contender]
        if measured.fault:
            return
        try:
            if what == "environment":
                make_environment(contender, bench.environments)
                bench.warm_up(contender)
            elif what == "run":
                bench.run(contender, measured)
            else:
                measured.killed.append(bench.kill(contender, statistics.median(measured.seconds) / 2))
        except FailedError as error:
            measured.fault = str(error)
            print(f"{contender.name}: {error}", file=sys.stderr, flush=True)
            return
        if what == "run":
            print(f"{contender.name}: {measured.seconds[-1]:.1f} s, {len(measured.epochs[-1])} epochs", file=sys.stderr)
        elif what == "kill":
            last = measured.killed[-1]
            print(
                f"{contender.name}, killed after {last.seconds:.1f} s: {len(last.kept)} of {len(last.before)} epochs "
                f"kept, {last.repeated} trained again; {last.fault or 'complete'}",
                file=sys.stderr,
            )

    for what in ("environment", *["run"] * runs, *["kill"] * kills):
        for contender in chosen:
            attempt(contender, what)
    return list(found.values())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kills", type=int, default=None, help="runs that are killed; as many as --runs if unset")
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in CONTENDERS], help="ours is always run")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "peers")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:WORKERS])
    chosen = [each for each in CONTENDERS if not options.only or each.name in ("ours", *options.only)]
    plan = plan_of(options.samples)
    kills = options.runs if options.kills is None else options.kills
    options.environments.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        found = measure(Bench(plan, Path(folder), options.environments.resolve()), chosen, options.runs, kills)
    if not found[0].epochs:
        raise SystemExit(f"this tool failed, and the target is its: {found[0].fault}")
    target = target_of(found[0].epochs[0], plan.max_epochs)
    print(table(found, target))
    machine = hardware()
    rungs = "/".join(map(str, plan.rungs))
    print(
        f"\n{len(plan.configurations)} configurations of {SPACE}, one replicate, no curvature, rungs {rungs}; target "
        f"val_nll {target:.4f}; n = {options.runs}, {kills} killed; {WORKERS} of {len(cores)} cores, "
        f"{machine['processor']}, {machine['memory_gib']} GiB"
    )
    shared, different = differing(epochs for measured in found for epochs in measured.epochs)
    print(f"the same training everywhere: {shared} epochs trained by several runs, {different} with differing values")
    for measured in found:
        if measured.fault and measured.seconds:
            print(f"{measured.label}: {measured.fault}")


if __name__ == "__main__":
    main()
