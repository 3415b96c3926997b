"""`make fuzz`: search spaces, results folders and imports, 100,000 inputs and more; prints counts, exits 1 at a fault.

    python -m tests.fuzzing --spaces 60000 --garbled 10000 --guided 30000 --folders 4000 --places 1500 --imports 5000 \\
        --tables 100 --seed 1

An input counts as handled if it is accepted (and then planned, or read) or refused with a clear error, within
`PATIENCE` seconds. `--guided` inputs come from atheris (libFuzzer, guided by the parser's coverage), the others from
hypothesis, which shrinks what it finds.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed as seeded, settings, strategies as st

from tests.fuzzing import spaces
from tests.fuzzing.folders import Folder, cases
from tests.fuzzing.imports import Imports
from tests.fuzzing.places import Places
from tests.fuzzing.tables import Tables
from tests.sweeper.inline_sweep import Inline

PATIENCE = 60.0
"""Seconds in which an input must be answered, on a busy machine: more is a hang."""


ROUND = 5_000
"""Inputs made from one seed: hypothesis remembers all of a round, and a round that is cut off is not counted."""


class HangError(Exception):
    """An input was not answered in time."""


def fuzz(strategy: st.SearchStrategy[Any], check: Callable[[Any], str], inputs: int, seed: int) -> Counter[str]:
    """Check `inputs` inputs and count the answers; raises what the first fault, shrunk, raises."""
    counts: Counter[str] = Counter()

    def late(*_: object) -> None:
        raise HangError(f"no answer in {PATIENCE:g} s")

    @seeded(seed)
    @settings(
        max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=True,
    )  # fmt: skip
    @given(strategy)
    def one(value: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        try:
            counts[check(value)] += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, late)
    try:
        one()
    finally:
        signal.signal(signal.SIGALRM, before)
    return counts


def guided(inputs: int, seed: int) -> Counter[str]:
    """Let atheris make inputs for the parser in a process of its own; raises RuntimeError where it found a fault."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzzing.guided", folder, str(inputs), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE + inputs)
        if done.returncode:
            raise RuntimeError(f"atheris ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        counts = Path(folder, "counts").read_text().split()
    return Counter(dict(zip(counts[::2], map(int, counts[1::2]), strict=True)))


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description="Fuzz the search space parser and the results reader.")
    for part, inputs in {
        "spaces": 60_000,
        "garbled": 10_000,
        "guided": 30_000,
        "folders": 4_000,
        "places": 1_500,
        "imports": 5_000,
        "tables": 100,
    }.items():
        parser.add_argument(f"--{part}", type=int, default=inputs, help=f"inputs; {inputs} if unset")
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if unset")
    chosen = parser.parse_args()
    seed = chosen.seed if chosen.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"seed {seed}", flush=True)
    total = 0
    with tempfile.TemporaryDirectory() as work:
        sound = Inline(Path(work)).run("fuzzed").paths.root
        folder = Folder(sound, Path(work, "damaged"))

        def check(content: bytes) -> str:
            return spaces.check_bytes(content, Path(work))

        parts: dict[str, Callable[[int, int], Counter[str]]] = {
            "spaces": lambda inputs, seed: fuzz(spaces.structured, spaces.check_values, inputs, seed),
            "garbled": lambda inputs, seed: fuzz(spaces.garbled, check, inputs, seed),
            "guided": guided,
            "folders": lambda inputs, seed: fuzz(cases, lambda case: folder.check(*case), inputs, seed),
            "places": lambda inputs, seed: Places(sound, Path(work, "odd")).fuzz(inputs, seed),
            "imports": lambda inputs, seed: Imports(Path(work, "files")).fuzz(inputs, seed),
            "tables": lambda inputs, seed: Tables(sound, Path(work, "edited")).fuzz(inputs, seed),
        }
        for part, run in parts.items():
            inputs = getattr(chosen, part)
            began, counts = time.perf_counter(), Counter[str]()
            size = inputs if part == "guided" else ROUND  # libFuzzer learns from what it has seen
            for number in range(-(-inputs // size) if inputs else 0):
                counts += run(min(size, inputs - number * size), seed + number)
                answers = ", ".join(f"{count:,} {answer}" for answer, count in counts.most_common())
                print(f"{part}: {counts.total():,} inputs: {answers}; {time.perf_counter() - began:.0f} s", flush=True)
            total += counts.total()
        print(f"{total:,} inputs, {folder.reports:,} reports drawn from damaged folders: no traceback, no hang")


if __name__ == "__main__":
    main()
