"""Return values of `run`, `report` and `submit` in a notebook or a script."""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.core.display import CommandResult, as_html, as_text

if TYPE_CHECKING:
    from sweeper.execution.cluster.cluster import Cluster, RemoteSweep
    from sweeper.execution.options import Outcome
    from sweeper.reporting.live import Timings


class FinishedRun:
    """Outcome and results of a run that has ended.

    Attributes:
        name: Name of the sweep.
        outcome: `finished`, `stopped` or `interrupted`.
        notes: Remarks for the user, one sentence each.
        seconds: Wall time, including Ray's start.
        timings: Duration of each phase.
        show_timings: Whether the command prints `timings`.
        folder: Results folder on this machine.
        results: Tables of the sweep, for SQL, Arrow, pandas and Polars.
        report: Report page.
        reported: Whether the report page could be written.
        counts: Number of trials by status.
        unfinished: Number of trials that `resume` would continue.
        retriable: Number of failed trials that could succeed in a retry; a trial that diverged would diverge again.
    """

    def __init__(self, outcome: Outcome, output: str, timings: Timings, *, show_timings: bool = False) -> None:
        """Take over a run's outcome; `output` is the folder or store of its sweeps."""
        from sweeper.execution.options import retriable
        from sweeper.results import Results  # DuckDB and Arrow, which the list of commands does not need

        paths, state = outcome.sweep.paths, outcome.state
        self.timings, self.show_timings = timings, show_timings
        self.name, self.folder, self.output = paths.name, paths.root, output
        self.outcome, self.notes, self.seconds = outcome.outcome, list(outcome.notes), outcome.seconds
        self.results = Results(paths.root)
        self.report, self.reported = ReportPage(paths.report), outcome.reported
        self.counts, self.unfinished, self.retriable = state.count(), len(state.unfinished()), retriable(state)

    @property
    def complete(self) -> bool:
        """Whether all trials have ended, none has failed, and the report was written; the command then exits with 0."""
        return self.outcome == "finished" and not self.counts["failed"] and self.reported

    def to_dict(self) -> dict[str, object]:
        """Return the values that `--format json` prints."""
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
    """A report page, shown as a link in a notebook; `str()` and `open()` use its path."""

    def __init__(self, path: Path) -> None:
        """Refer to the page at `path`."""
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
        svg: SVG text of the figure.
    """

    def __init__(self, svg: str) -> None:
        """Wrap the SVG text of a figure."""
        self.svg = svg

    def __repr__(self) -> str:
        return "a figure, which a notebook draws; --to FILE (.pdf, .svg or .png) writes it"

    def _repr_svg_(self) -> str:
        return self.svg


class Submitted:
    """A sweep on a remote cluster.

    Attributes:
        name: Name of the sweep.
        job: Ray's job id of its driver.
        address: Dashboard of the cluster.
        cluster: Client of the cluster, e.g. for `cluster.logs(job)`, `cluster.follow(job)` and `cluster.stop(job)`.
        ended: Outcome of the driver, if the command waited for it.
    """

    def __init__(self, cluster: Cluster, name: str, job: str) -> None:
        """Refer to `job`, which drives the sweep `name`."""
        self.name, self.job, self.address = name, job, cluster.address
        self.cluster = cluster
        self.ended: CommandResult[None] | None = None

    def lines(self) -> list[str]:
        """Return the submitted job and the next commands, one per line."""
        words = ("status", f"cluster logs {self.name} --follow", f"results {self.name}", f"stop {self.name}")
        commands = [f"  sweeper {command} --dashboard {self.address}" for command in words]
        return [f"submitted {self.name} as job {self.job}", "next", *commands]

    def shown(self) -> CommandResult[None]:
        """Return the result that the command prints."""
        return self.ended or CommandResult(None, notes=self.lines())

    def to_dict(self) -> dict[str, str]:
        """Return the values that `--format json` prints."""
        return {"name": self.name, "job": self.job, "address": self.address}

    @property
    def sweep(self) -> RemoteSweep:
        """The sweep's current state on the cluster."""
        return self.cluster.sweep(self.job)

    def __repr__(self) -> str:
        sweep = self.sweep
        return f"{self.name} ({self.job} at {self.address}): {sweep.state}, results in {sweep.output}"
