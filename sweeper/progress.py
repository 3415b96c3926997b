"""The live view of a running sweep: one table on a terminal, one plain line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sweeper.durations import duration
from sweeper.ids import trial_name
from sweeper.journal import Record
from sweeper.scheduler import Halving
from sweeper.state import ENDED, FAILED, SweepState, TrialState

PLAIN_LINE_SECONDS = 10.0


@dataclass
class Snapshot:
    """What a sweep's progress looks like at one moment; made from the state alone."""

    counts: dict[str, int]
    rungs: dict[int, tuple[int, int]]
    best: TrialState | None
    epochs: float
    epochs_expected: float
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share of the work that is done, 0 to 1, by trials that have ended."""
        total = sum(self.counts.values())
        ended = sum(self.counts[s] for s in ENDED)
        return ended / total if total else 1.0

    @property
    def seconds_left(self) -> float | None:
        """An estimate of the time left, once enough has happened to make one."""
        if self.epochs <= 0 or self.seconds <= 0:
            return None
        return max(0.0, self.epochs_expected - self.epochs) * self.seconds / self.epochs


def snapshot(state: SweepState, halving: Halving, *, seconds: float, epochs_before: float) -> Snapshot:
    """Return a snapshot: counts, how many trials passed and stopped at each rung, the best trial, throughput.

    Args:
        state: of the sweep.
        halving: gives the rungs and what is better.
        seconds: since this driver began.
        epochs_before: epochs that earlier drivers had done.
    """
    trials = list(state.trials.values())
    rungs = {
        rung: (
            sum(t.epochs >= rung and t.stop_rung != rung for t in trials),
            sum(t.stop_rung == rung for t in trials),
        )
        for rung in halving.rungs
    }
    judged = [t for t in trials if t.objective is not None and math.isfinite(t.objective) and t.status != FAILED]
    sign = 1 if halving.mode == "min" else -1
    best = min(judged, key=lambda t: sign * (t.objective or 0.0), default=None)
    done = sum(t.epochs_trained for t in trials)
    ended = [t for t in trials if t.status in ENDED]
    mean = sum(t.epochs for t in ended) / len(ended) if ended else float(halving.max_epochs)
    expected = done + sum(max(0.0, mean - t.epochs_trained) for t in trials if t.status not in ENDED)
    return Snapshot(state.count(), rungs, best, done - epochs_before, expected - epochs_before, seconds)


class Progress:
    """Shows a sweep while it runs. A sink of the driver: `append` tells it that something happened."""

    def __init__(
        self,
        console: Console,
        state: SweepState,
        halving: Halving,
        describe: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to show `state` on `console`; `describe` puts a configuration into a few words."""
        self._console, self._state, self._halving, self._describe = console, state, halving, describe
        self._clock = clock
        self._started = clock()
        self._before = sum(t.epochs_trained for t in state.trials.values())
        self._printed = -math.inf
        self._live: Live | None = None
        self._stage = "starting Ray"
        self._cluster = ""

    def __enter__(self) -> Progress:
        """Begin to show."""
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                refresh_per_second=4,
                get_renderable=self._render,
                transient=True,
                redirect_stdout=False,  # what others print belongs in the log, not above the table
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""
        if self._live is not None:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Say what the driver is doing now; `running` restarts the clock that throughput is measured by."""
        self._stage = text
        if text == "running":
            self._started = self._clock()
        if self._live is None:
            self._console.print(text)

    def say(self, text: str) -> None:
        """Show a sentence about the cluster until the next one: what the sweep waits for, or runs on."""
        self._cluster = text
        if self._live is None:
            self._console.print(text)

    def append(self, record: Record) -> None:
        """Take note of a record: elsewhere than on a terminal, print a line now and then, and every failure."""
        if self._live is None and record.kind == "failed":
            body = record.body
            self._console.print(f"{trial_name(body['configuration'])} {body['kind']}: {body['reason']}")

    def flush_if_due(self) -> None:
        """Print a plain line when it is time to."""
        now = self._clock()
        if self._live is None and now - self._printed >= PLAIN_LINE_SECONDS:
            self._printed = now
            self._console.print(self._line(self._snapshot()))

    def _snapshot(self) -> Snapshot:
        return snapshot(self._state, self._halving, seconds=self._clock() - self._started, epochs_before=self._before)

    def _line(self, now: Snapshot) -> str:
        counts = ", ".join(f"{n} {status.replace('_', ' ')}" for status, n in now.counts.items() if n)
        parts = [counts, f"{now.epochs / now.seconds:.1f} epochs/s" if now.seconds > 0 else ""]
        if now.seconds_left is not None:
            parts.append(f"about {duration(now.seconds_left)} left")
        if now.best is not None:
            parts.append(f"best {self._halving.metric} {now.best.objective:.4f} ({trial_name(now.best.configuration)})")
        return " · ".join(part for part in parts if part)

    def _render(self) -> RenderableType:
        now = self._snapshot()
        if self._stage != "running":
            return Text(f"{self._stage} … {duration(now.seconds)}", style="dim")
        table = Table(box=None, padding=(0, 2), show_edge=False)
        for heading in ("", *(f"rung {rung}" for rung in now.rungs)):
            table.add_column(heading, justify="right" if heading else "left", header_style="bold")
        table.add_row("passed", *(str(passed) for passed, _ in now.rungs.values()))
        table.add_row("stopped", *(str(stopped) for _, stopped in now.rungs.values()), style="dim")
        counts = Text("  ".join(f"{n} {s.replace('_', ' ')}" for s, n in now.counts.items() if n))
        if now.counts[FAILED]:
            counts.stylize("red")
        bar = ProgressBar(total=1.0, completed=now.share, width=40)
        left = f"about {duration(now.seconds_left)} left" if now.seconds_left is not None else "estimating"
        speed = f"{now.epochs / now.seconds:.1f} epochs/s" if now.seconds > 0 else ""
        times = Table.grid(padding=(0, 2))
        times.add_row(bar, Text(f"{duration(now.seconds)} · {left} · {speed}"))
        lines: list[RenderableType] = [counts, times, table]
        if self._cluster:
            lines.append(Text(self._cluster, style="dim"))
        if now.best is not None:
            lines.append(
                Text(
                    f"best {self._halving.metric} {now.best.objective:.4f} after {now.best.epochs} epochs: "
                    f"{trial_name(now.best.configuration)} {self._describe(now.best.configuration)}",
                    style="green",
                )
            )
        return Group(*lines)
