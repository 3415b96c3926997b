"""Live output of a running sweep: table in a terminal, plain lines elsewhere, notebook cell, report, and timings.

All other output goes to the sweep's log.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from sweeper.core.display import SafeConsole, as_html
from sweeper.core.ids import SweepPaths
from sweeper.core.labels import PROGRESS, duration
from sweeper.core.processes import start_beside
from sweeper.journal.records import Attempt, Ended, Failed, Record, ReplicateReported, Reported
from sweeper.journal.state import SweepState
from sweeper.reporting.snapshot import BAR, Snapshot, Tally, failure_line, progress_line, progress_panel
from sweeper.scheduling.base import Scheduler
from trainables.files.atomic import open_regular

#: Seconds between two lines without a terminal. The log of a day then has 8,640 lines.
PLAIN_LINE_SECONDS = 10.0

#: The last `stage` in a notebook, whose cell keeps the last display.
DONE = "done"


@contextmanager
def redirect_output(log: Path) -> Iterator[Console]:
    """Send everything written to stdout and stderr to `log`, and yield a console on the real stderr."""
    # File descriptors are redirected in addition to `sys.stdout`, because Ray's C++ core and child processes write to
    # them. Streams are flushed first, because buffered text would go to the log.
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    was_terminal = os.isatty(kept[1])
    descriptor = open_regular(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    encoding = getattr(sys.stderr, "encoding", None)
    with ExitStack() as stack:
        opened = os.fdopen(os.dup(kept[1]), "w", buffering=1, encoding=encoding, errors="replace")
        real_error = stack.enter_context(opened)
        for stream, descriptor, redirect in ((sys.stdout, 1, redirect_stdout), (sys.stderr, 2, redirect_stderr)):
            if hasattr(stream, "pub_thread"):  # a notebook replaces `sys.stdout`, so prints would go to the cell
                printed = os.fdopen(os.dup(descriptor), "w", buffering=1, errors="replace")
                stack.enter_context(redirect(stack.enter_context(printed)))
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger().addHandler(handler)
        try:
            yield SafeConsole(file=real_error, force_terminal=was_terminal, soft_wrap=not was_terminal)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            logging.getLogger().removeHandler(handler)
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            os.close(kept[0])
            os.close(kept[1])


class Progress:
    """Shows a sweep while it runs. A sink of the driver, which passes each record to `append`."""

    def __init__(
        self,
        console: Console,
        state: SweepState,
        schedule: Scheduler,
        describe: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to show `state` on `console`; `describe` returns a short description of a configuration."""
        self._console, self._schedule, self._describe = console, schedule, describe
        self._clock = clock
        self._started = clock()
        self._before = sum(t.epochs_trained for t in state.trials.values())
        self._tally = Tally(state, schedule)
        self._printed = -math.inf
        self._live: Live | None = None
        self._stage = "starting Ray"
        self._cluster = ""

    def __enter__(self) -> Progress:
        """Start the display."""
        if self._console.is_terminal:
            self._live = Live(
                console=self._console,
                refresh_per_second=4,
                get_renderable=self._render,
                transient=True,
                redirect_stdout=False,  # rich would print other output above the table instead of into the log
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Stop the display. Without a terminal, print a last line."""
        if self._live is not None:
            self._live.stop()
        else:
            self._print_line()

    def _print_line(self) -> None:
        self._console.print(f"{PROGRESS}{progress_line(self._snapshot(), self._schedule.metric)}")

    def stage(self, text: str) -> None:
        """Show the driver's current stage; `running` restarts the clock for throughput."""
        self._stage = text
        if text == "running":
            self._started = self._clock()
        self._announce(text)

    def tracked(self, written: int, behind: int) -> None:
        """Show how many of the runs that lag behind the journal the tracker has; a plain line at intervals."""
        self._cluster = f"{written:,} of {behind:,} runs that lag behind are logged"
        now = self._clock()
        if self._live is not None or now - self._printed >= PLAIN_LINE_SECONDS:
            self._printed = now
            self._announce(self._cluster)

    def say(self, text: str) -> None:
        """Show a sentence about the cluster (e.g. what the sweep waits for) until the next sentence."""
        self._cluster = text
        self._announce(text)

    def _announce(self, text: str) -> None:
        if self._live is None:
            self._console.print(text)

    def append(self, record: Record) -> None:
        """Receive a record; print failures if there is no terminal."""
        # `markup=False`, because a traceback's square brackets are not rich's markup.
        if self._live is None and isinstance(record.body, Failed):
            self._console.print(failure_line(record.body), markup=False)

    def flush_if_due(self) -> None:
        """Print a line if one is due."""
        now = self._clock()
        if self._live is None and now - self._printed >= PLAIN_LINE_SECONDS:
            self._printed = now
            self._print_line()

    def _snapshot(self) -> Snapshot:
        return self._tally.snapshot(seconds=self._clock() - self._started, epochs_before=self._before)

    def _render(self) -> RenderableType:
        now = self._snapshot()
        if self._stage not in ("running", DONE):
            line = Table.grid(padding=(0, 2))
            # The duration is unknown, so a pulsing bar shows that work continues.
            bar = ProgressBar(total=None, pulse=True, width=BAR, animation_time=self._clock())
            line.add_row(bar, Text(f"{self._stage} … {duration(now.seconds)}", style="dim"))
            return Group(line, Text(self._cluster)) if self._cluster else line
        return progress_panel(now, self._schedule.metric, self._describe, [self._cluster] if self._cluster else [])


#: Seconds between two updates of a notebook's cell. Faster updates could not be read.
UPDATE_SECONDS = 0.5

#: Largest number of failures in a notebook's cell; the log contains all.
FAILURES_SHOWN = 5


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")  # IPython is not imported here, because a kernel has already imported it
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


class NotebookProgress(Progress):
    """Shows a sweep in the output of the cell that runs it; nothing is written to the console."""

    _handle: Any = None
    _failures: Sequence[str] = ()

    def __enter__(self) -> NotebookProgress:
        """Start the display."""
        from IPython.display import HTML, display

        self._handle = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Leave the last state in the notebook's cell."""
        if kind is None:
            self._stage = DONE
        self._update()

    def _announce(self, text: str) -> None:
        self._update()

    def append(self, record: Record) -> None:
        """Record a failure."""
        if isinstance(record.body, Failed):
            self._failures = [*self._failures, failure_line(record.body)][-FAILURES_SHOWN:]

    def flush_if_due(self) -> None:
        """Redraw the cell if an update is due."""
        if self._clock() - self._printed >= UPDATE_SECONDS:
            self._update()

    def _update(self) -> None:
        from IPython.display import HTML

        self._printed = self._clock()
        if self._handle is not None:
            self._handle.update(HTML(self._html()))

    def _html(self) -> str:
        failures = [Text(text, style="red") for text in self._failures]
        return f"<b>{escape(self._stage)}</b>{as_html(Group(self._render(), *failures))}"


def process_began() -> float:
    """Return when this process began, in seconds since the epoch."""
    return float(psutil.Process(os.getpid()).create_time())


@dataclass
class Timings:
    """Phases of a run, by the time at which each ended. `--timings` prints them.

    Attributes:
        began: start of the process, in Unix seconds.
        ends: phase → end, in Unix seconds.
    """

    began: float = field(default_factory=time.time)
    ends: dict[str, float] = field(default_factory=dict)

    def note(self, phase: str) -> None:
        """Record that a phase has ended."""
        self.ends[phase] = time.time()

    def read(self, records: Iterable[Record]) -> None:
        """Add the phases from this run's journal: start of trials, first and last report, recorded end."""
        for record in records:
            if record.time < self.began:  # a record of an earlier driver
                continue
            if isinstance(record.body, Attempt):
                self.ends["ready for trials"] = record.time
            elif isinstance(record.body, Reported | ReplicateReported):
                self.ends.setdefault("first report", record.time)
                self.ends["last report"] = record.time
            elif isinstance(record.body, Ended):
                self.ends["end recorded"] = record.time

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """(Phase, seconds from the start to its end, duration in seconds), in order of time."""
        order = sorted(self.ends.items(), key=lambda item: item[1])
        before = [self.began, *(moment for _, moment in order)]
        return [(name, end - self.began, end - last) for (name, end), last in zip(order, before, strict=False)]

    def table(self) -> Table:
        """Return the phases as a table."""
        numbers = (Column(heading, justify="right") for heading in ("seconds", "at"))
        table = Table("phase", *numbers, box=None, title="timings", title_justify="left")
        for name, end, took in self.phases:
            table.add_row(name, f"{took:.2f}", f"{end:.2f}")
        return table


#: Seconds before the first report, and smallest number of seconds between two reports.
EVERY_SECONDS = 60.0

#: The next report waits for this multiple of the last report's duration. A large report takes a minute; with this
#: pause, reports take at most a tenth of a core.
PAUSE = 10

#: Code that ends a process when its parent ends: it reads a pipe that closes then. A process that outlived its driver
#: would overwrite the resumed sweep's page with an old one.
WATCH = """import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()"""

WRITE = "import sys; from sweeper.reporting.page import write_report; write_report(sys.argv[1])"


class FreshReport:
    """A sink of the driver that regularly rewrites the report if trials have reported. It ends with the context.

    The page is written under another name and renamed, so a browser reads either the old or the new page.
    """

    def __init__(self, paths: SweepPaths, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare to write the report of the sweep at `paths`."""
        self._paths, self._clock = paths, clock
        self._began = clock()
        self._due = self._began + EVERY_SECONDS
        self._news = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> FreshReport:
        """Return itself. The first report is written later."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Kill a process that is still writing, because the driver writes the last report itself."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def append(self, record: Record) -> None:
        """Record that a trial has reported."""
        self._news |= isinstance(record.body, Reported)

    def flush_if_due(self) -> None:
        """Start writing the report if it is due."""
        now = self._clock()
        if self._process is not None and self._process.poll() is not None:
            self._process = None
            self._due = now + max(EVERY_SECONDS, PAUSE * (now - self._began))
        if self._process is None and self._news and now >= self._due:
            self._began, self._news = now, False
            command = [sys.executable, "-P", "-c", f"{WATCH}\n{WRITE}", str(self._paths.root)]
            # The report is made in a separate process at a low priority, because drawing takes seconds of a core that
            # trials need. Its errors are dropped, since the report at the end of the run states them.
            self._process = start_beside(command, subprocess.DEVNULL)
