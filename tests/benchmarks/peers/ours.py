"""This tool, with all that it writes: tables, MLflow, checkpoints at rungs, report."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.benchmarks.peers.plan import WORKERS, Kept, Plan, contender

NAME = "sweep"


def run(folder: Path, resume: bool) -> None:
    """Become `sweeper run`, or `sweeper resume`."""
    plan = Plan.read(folder)
    settings = [word for setting in plan.settings for word in ("--set", setting)]
    what = ["resume", NAME] if resume else ["run", plan.space, *settings, "--name", NAME]
    command = [sys.executable, "-m", "sweeper", *what, "--output", str(folder), "--cpus", str(WORKERS)]
    os.execv(sys.executable, command)


def kept(folder: Path) -> Kept:
    """Return the epochs in the journal's reports, evaluations of rungs beside them."""
    from sweeper.core.ids import SweepPaths
    from sweeper.journal.journal import read_journal
    from sweeper.journal.records import Reported

    bodies = [record.body for record in read_journal(SweepPaths(folder / NAME).journal)]
    reports = [body.report for body in bodies if isinstance(body, Reported)]
    return {(report.configuration, int(row["epoch"])) for report in reports for row in report.epochs}


if __name__ == "__main__":
    contender(run, kept)
