"""Return values of `run`, `report` and `submit` in a notebook or a script."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.core.display import CommandResult, as_html, as_text

if TYPE_CHECKING:
    from sweeper.execution.cluster.cluster import Cluster, RemoteSweep
    from sweeper.execution.options import Settled
    from sweeper.reporting.live import Timings


class FinishedRun:
    """A run that has ended: what came out of it.

    Attributes:
        name: the sweep's.
        outcome: `finished`, `stopped` or `interrupted`.
        notes: things to know, one sentence each.
        seconds: wall time, Ray's start included.
        timings: how long each phase took.
        show_timings: whether the command prints them.
        folder: the results folder on this machine.
        results: its tables, for SQL, Arrow, pandas and Polars.
        report: the page.
        counts: trials by status.
        unfinished: how many trials a `resume` would continue with.
        retriable: how many failed trials may end otherwise if retried; one that diverged diverges again.
    """

    def __init__(self, outcome: Settled, output: str, timings: Timings, *, show_timings: bool = False) -> None:
        """Take over a run's outcome; `output` is where its sweeps are."""
        from sweeper.results import Results  # DuckDB and Arrow, which the list of commands does not need

        paths, self.timings, self.show_timings = outcome.paths, timings, show_timings
        self.name, self.folder, self.output = paths.name, paths.root, output
        self.outcome, self.notes, self.seconds = outcome.outcome, list(outcome.notes), outcome.seconds
        self.results = Results(paths.root)
        self.report = ReportPage(paths.report)
        self.counts: dict[str, int] = dict(outcome.counts)
        self.unfinished, self.retriable = outcome.unfinished, outcome.retriable

    @property
    def complete(self) -> bool:
        """Whether all trials have ended and none has failed: when the command exits with 0."""
        return self.outcome == "finished" and not self.counts["failed"]

    def to_dict(self) -> dict[str, object]:
        """Return what `--format json` prints."""
        names = ("name", "outcome", "counts", "unfinished", "retriable", "seconds", "folder", "notes")
        return {name: getattr(self, name) for name in names} | {"report": self.report.path}

    def _look(self) -> RenderableType:
        from sweeper.reporting.summary import summary  # a run imports it when trials are training

        lines = [f"note     {note}" for note in self.notes]
        if self.outcome != "finished":
            total = sum(self.counts.values())
            lines.append(f'{self.outcome}: {self.unfinished} of {total} trials are unfinished; resume("{self.name}")')
        elif self.retriable:
            lines.append(f'resume("{self.name}", failed=True) retries failed trials')
        return Group(summary(self.results), Text(), Text(f"results  {self.folder}"), *map(Text, lines))

    def __repr__(self) -> str:
        return as_text(self._look())

    def _repr_html_(self) -> str:
        return as_html(self._look()) + self.report._repr_html_()


class ReportPage:
    """A report's place; `str()` and `open()` of it are its path's."""

    def __init__(self, path: Path) -> None:
        """Stand for the page at `path`."""
        self.path = path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"report   {self.path}"

    def _repr_html_(self) -> str:
        shown = html.escape(str(self.path))
        return f'<div>report <a href="{html.escape(self.path.as_uri())}" target="_blank">{shown}</a></div>'


class DrawnFigure:
    """A figure that a notebook draws.

    Attributes:
        svg: the drawing.
    """

    def __init__(self, svg: str) -> None:
        """Hold a drawing."""
        self.svg = svg

    def __repr__(self) -> str:
        return "a figure, which a notebook draws; --to FILE (.pdf, .svg or .png) writes it"

    def _repr_svg_(self) -> str:
        return self.svg


class Submitted:
    """A sweep on a remote cluster.

    Attributes:
        name: the sweep's.
        job: Ray's id of its driver.
        address: of the cluster.
        cluster: what is asked of it.
        ended: how its driver ended, where the command waited for that.
    """

    def __init__(self, cluster: Cluster, name: str, job: str) -> None:
        """Stand for `job`, which drives the sweep `name`."""
        self.name, self.job, self.address = name, job, cluster.address
        self.cluster = cluster
        self.ended: CommandResult[None] | None = None

    def lines(self) -> list[str]:
        """Return what was submitted, and the next commands."""
        words = ("status", f"cluster logs {self.name} --follow", f"results {self.name}", f"stop {self.name}")
        commands = [f"  sweeper {each} --dashboard {self.address}" for each in words]
        return [f"submitted {self.name} as job {self.job}", "next", *commands]

    def shown(self) -> CommandResult[None]:
        """Return what the command prints."""
        return self.ended or CommandResult(None, notes=self.lines())

    def to_dict(self) -> dict[str, str]:
        """Return what `--format json` prints."""
        return {"name": self.name, "job": self.job, "address": self.address}

    @property
    def sweep(self) -> RemoteSweep:
        """What the cluster says of it now."""
        return self.cluster.sweep(self.job)

    def logs(self) -> str:
        """Return what its driver has printed so far."""
        return self.cluster.logs(self.job)

    def follow(self) -> Iterator[str]:
        """Yield what its driver prints, as it does, until it has ended."""
        return self.cluster.follow(self.job)

    def stop(self) -> None:
        """Ask it to end cleanly."""
        self.cluster.stop(self.job)

    def __repr__(self) -> str:
        found = self.sweep
        return f"{self.name} ({self.job} at {self.address}): {found.state}, results in {found.output}"
