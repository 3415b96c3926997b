"""What the benchmark makes of its contenders' epochs: times, counts and the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.peers.plan import Kept, json_lines

TARGET_SHARE = 0.25


@dataclass(frozen=True)
class Epoch:
    """An epoch that was trained: seconds since the command, what it was, and its value."""

    at: float
    configuration: int
    epoch: int
    val_nll: float

    @property
    def key(self) -> tuple[int, int]:
        """What names it among all epochs of the plan."""
        return self.configuration, self.epoch


@dataclass(frozen=True)
class Killed:
    """A run that got SIGKILL, and its resumption.

    Attributes:
        seconds: when, after the command.
        before: the epochs that were trained by then.
        kept: those with a value on disk.
        after: the epochs that were trained when resumed; `None` where the tool did not get to the end.
        complete: the epochs with a value on disk in the end.
        fault: why it did not get to the end.
    """

    seconds: float
    before: Sequence[Epoch]
    kept: Kept
    after: Sequence[Epoch] | None
    complete: Kept
    fault: str = ""

    @property
    def repeated(self) -> int:
        """How many epochs were trained again."""
        trained = [each.key for each in (*self.before, *(self.after or ()))]
        return len(trained) - len(set(trained))


@dataclass
class Measured:
    """What is known of a contender; `fault` where it could not be measured."""

    label: str
    seconds: list[float] = field(default_factory=list)
    epochs: list[Sequence[Epoch]] = field(default_factory=list)
    killed: list[Killed] = field(default_factory=list)
    fault: str = ""


def epochs_of(path: Path, seeds: Mapping[int, int], began: float) -> list[Epoch]:
    """Read what the probe wrote; `seeds` has each seed's configuration."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Epoch(each["time"] - began, seeds[each["seed"]], each["epoch"], each["val_nll"]) for each in json_lines(lines)
    ]


def target_of(epochs: Iterable[Epoch], last: int) -> float:
    """Return the val_nll that the best quarter of the configurations trained to epoch `last` have, or better."""
    final = sorted(each.val_nll for each in epochs if each.epoch == last and math.isfinite(each.val_nll))
    if not final:
        raise ValueError(f"no configuration was trained to epoch {last}")
    return final[math.ceil(TARGET_SHARE * len(final)) - 1]


def time_to(target: float, epochs: Iterable[Epoch]) -> float:
    """Return when the first configuration had the target; infinity if none did."""
    return min((each.at for each in epochs if each.val_nll <= target), default=math.inf)


def differing(runs: Iterable[Sequence[Epoch]]) -> tuple[int, int]:
    """Return how many epochs more than one run trained, and how many of these came out with another value."""
    values: dict[tuple[int, int], set[str]] = {}
    seen: dict[tuple[int, int], int] = {}
    for run in runs:
        for key in {each.key for each in run}:
            seen[key] = seen.get(key, 0) + 1
        for each in run:
            values.setdefault(each.key, set()).add(each.val_nll.hex())
    shared = [key for key, count in seen.items() if count > 1]
    return len(shared), sum(len(values[key]) > 1 for key in shared)


def spread(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return e.g. `37.2 s (36.8 … 39.1)`: median and range; the value alone where there is one."""
    middle = text(statistics.median(values))
    if len(values) == 1:
        return middle
    unit = middle.removeprefix(middle.rstrip(" s"))
    return f"{middle} ({text(min(values)).removesuffix(unit)} … {text(max(values)).removesuffix(unit)})"


def seconds(value: float) -> str:
    """Return seconds in words."""
    return f"{value:.1f} s" if math.isfinite(value) else "never"


def row(measured: Measured, target: float) -> str:
    """Return a contender's line of the table."""
    if measured.fault and not measured.seconds:
        return f"| {measured.label} | not measured: {measured.fault} | | | | |"
    cells = [
        measured.label,
        spread(measured.seconds, seconds),
        spread([time_to(target, epochs) for epochs in measured.epochs], seconds),
        spread([len(epochs) for epochs in measured.epochs], lambda value: f"{value:.0f}"),
        *(_killed_cells(measured.killed) if measured.killed else ("", "")),
    ]
    return f"| {' | '.join(cells)} |"


def table(contenders: Iterable[Measured], target: float) -> str:
    """Return the table in Markdown."""
    head = ("", "wall time", "to the target", "epochs", "kept after SIGKILL", "epochs trained again when resumed")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(row(each, target) for each in contenders)])


def _killed_cells(killed: Sequence[Killed]) -> tuple[str, str]:
    def counts(values: Iterable[int]) -> str:
        return spread([*values], lambda value: f"{value:.0f}")

    begun = counts(len({epoch.configuration for epoch in each.before}) for each in killed)
    trained = counts(len({epoch.key for epoch in each.before}) for each in killed)
    results = counts(len(dict(each.kept)) for each in killed)
    kept = f"{results} of {begun} configurations, {counts(len(each.kept) for each in killed)} of {trained} epochs"
    repeated = counts(each.repeated for each in killed)
    return kept, "; ".join([repeated, *sorted({each.fault for each in killed if each.fault})])
