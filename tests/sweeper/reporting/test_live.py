"""What a sweep's progress shows follows from its state alone."""

import collections
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from rich.console import Console

from sweeper.core.labels import PROGRESS
from sweeper.journal.best import best_trials
from sweeper.journal.records import Decision
from sweeper.journal.state import ENDED, SweepState, TrialState
from sweeper.reporting.live import Progress
from sweeper.reporting.snapshot import Tally
from sweeper.scheduling.asha import Halving
from tests.sweeper.records import made_record

HALVING = Halving("val_nll", "min", 27, 3, 3)


def _state(*trials):
    state = SweepState(len(trials))
    for index, fields in enumerate(trials):
        state.trials[index] = TrialState(configuration=index, **fields)
    return state


def _sweep():
    return _state(
        {"status": "completed", "epochs": 27, "objective": 0.3},
        {"status": "early_stopped", "epochs": 3, "decision": Decision("stop", "cutoff", 3), "objective": 0.9},
        {"status": "early_stopped", "epochs": 9, "decision": Decision("stop", "cutoff", 9), "objective": 0.5},
        {"status": "running", "epochs": 4, "objective": 0.2},
        {"status": "failed", "epochs": 1, "objective": 0.01},
        {"status": "waiting"},
    )


TEN, THREE = {"status": "completed", "epochs": 10}, {"status": "early_stopped", "epochs": 3}


@pytest.mark.parametrize(
    ("trials", "seconds", "before", "expected", "left"),
    [
        pytest.param([TEN] * 3 + [{}] * 3, 60, 0, 60, 60, id="trials end as early as those before"),
        pytest.param([TEN] * 3 + [{}], 5, 20, 20, 5, id="what earlier drivers did counts for no speed"),
        pytest.param([THREE] * 9 + [{"status": "running", "epochs": 12}], 39, 0, 54, 15, id="to the next rung"),
        pytest.param([{}, {}], 5, 0, 54, None, id="before anything happened"),
    ],
)
def test_time_left(trials, seconds, before, expected, left):
    now = Tally(_state(*trials), HALVING).snapshot(seconds=seconds, epochs_before=before)
    assert now.epochs_expected == expected and now.share == pytest.approx(now.epochs / expected)
    assert now.seconds_left == (None if left is None else pytest.approx(left))


def test_the_time_left_does_not_grow_while_nothing_reports():
    tally = Tally(_state({"status": "running", "epochs": 9}, {}), HALVING)
    first = tally.snapshot(seconds=60, epochs_before=0)
    assert tally.snapshot(seconds=600, epochs_before=0).seconds_left == first.seconds_left > 0


def _plain(state, now):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=False, width=200)
    return Progress(console, state, HALVING, lambda index: f"configuration {index}", clock=lambda: now[0]), stream


def test_elsewhere_than_on_a_terminal_a_line_now_and_then():
    now = [0.0]
    progress, stream = _plain(_sweep(), now)
    with progress:
        progress.stage("running")
        for second in range(0, 31):
            now[0] = float(second)
            progress.flush_if_due()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "running" and len(lines) == 6 and all(line.startswith(PROGRESS) for line in lines[1:])
    assert "1 waiting, 1 running, 1 completed, 2 early stopped, 1 failed" in lines[-1]
    assert "best val_nll 0.3000 (c00000)" in lines[-1]
    assert "\x1b" not in stream.getvalue()


def test_runs_that_a_tracker_lacks_are_counted_now_and_then():
    now = [0.0]
    progress, stream = _plain(_sweep(), now)
    with progress:
        for second in range(21):
            now[0] = float(second)
            progress.tracked(1_000 + second, 3_412)
    counted = [[word for word in line.split() if word[0].isdigit()] for line in stream.getvalue().splitlines()[:-1]]
    assert counted == [["1,000", "3,412"], ["1,010", "3,412"], ["1,020", "3,412"]]


def test_every_failure_is_shown_at_once():
    progress, stream = _plain(_sweep(), [0.0])
    body = {"configuration": 4, "failure": {"kind": "crash"}}
    with progress:
        progress.append(made_record(0, "failed", 0.0, body))
        progress.append(made_record(1, "started", 0.0, {"configuration": 4}))
    assert stream.getvalue().splitlines()[:-1] == ["c00004 crash: its process died"]


def counted_plainly(state, schedule):
    """Count everything anew, as plainly as can be."""
    trials = list(state.trials.values())
    trained = sum(trial.epochs_trained for trial in trials)
    resting = [trial for trial in trials if trial.status in ENDED or trial.paused]
    mean = sum(trial.epochs for trial in resting) / len(resting) if resting else schedule.max_epochs
    queued = [trial for trial in trials if trial.status == "waiting" and not trial.paused and trial.reported_epochs]
    due = [
        next(r for r in schedule.rungs if r >= t.epochs) if t.status == "running" or t in queued else 0 for t in trials
    ]
    open_trials = [(t, max(mean, least)) for t, least in zip(trials, due, strict=True) if t not in resting]
    rest = sum(max(0.0, expected - trial.epochs_trained) for trial, expected in open_trials)
    running = [trial.epochs for trial in trials if trial.status == "running"]
    heading = collections.Counter(next((r for r in schedule.rungs if r > e), schedule.rungs[-1]) for e in running)
    rungs = {
        rung: (
            sum(t.epochs >= rung and t.stop_rung != rung and not (t.paused and t.epochs == rung) for t in trials),
            sum(t.stop_rung == rung for t in trials),
        )
        for rung in schedule.rungs
    }
    leaders = best_trials(state, schedule.mode, 3)
    towards = {rung: heading[rung] for rung in schedule.rungs}
    counts = state.count()
    counts["waiting"] -= len(queued)
    counts |= {"queued": len(queued)} if queued else {}
    return counts, rungs, towards, leaders, pytest.approx(trained), pytest.approx(trained + rest)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_counted_record_by_record_is_what_a_count_of_all_gives(seed, random_sweep):
    sweep = random_sweep(seed, count=12)
    rng, schedule, drawn = np.random.default_rng(seed), Halving("val_nll", "min", 9, 1, 3), 0
    state = SweepState(sweep.count)
    tally = Tally(state, schedule)
    while len(sweep.ended) < sweep.count:
        for kind, body in sweep.events(None, steps=6):
            if kind == "report":
                body["objective"] = float(rng.normal())
                if rng.random() < 0.1:
                    body.update(status="failed", decision=None)
            state.apply(made_record(drawn, kind, drawn, body))
            drawn += 1
            if rng.random() < 0.1:
                state.reopen_failed()
            if rng.random() < 0.5:
                now = tally.snapshot(seconds=1.0, epochs_before=0)
                found = now.counts, now.rungs, now.towards, now.leaders, now.epochs, now.epochs_expected
                assert found == counted_plainly(state, schedule)
    assert tally.snapshot(seconds=1.0, epochs_before=0) == Tally(state, schedule).snapshot(seconds=1.0, epochs_before=0)


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_names_the_three_best_and_fits(width):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=width, height=30)
    state = _state(*({"status": "running", "epochs": 4, "objective": 0.2 + index} for index in range(5)))
    progress = Progress(console, state, HALVING, lambda index: f"number {index} " + "long " * 40, clock=lambda: 7.0)
    progress.stage("running")
    console.print(progress._render())
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    named = [line for line in lines if "val_nll" in line]
    assert [line.partition("after")[0].split()[-1] for line in named] == ["0.2000", "1.2000", "2.2000"]
    assert named[0].startswith("best so far val_nll 0.2000 after 4 epochs: c00000")


CELLS = [
    "import sweeper, sys\nprint('torch' in sys.modules)",
    """space = {
    "dataset": "digits", "samples": 2, "scheduler": {"name": "asha", "max_epochs": 3, "grace_epochs": 1},
    "space": {"loss": {"grid": ["cross_entropy", "focal"]}, "architecture": {"name": "mlp", "width": 16},
              "optimizer": {"name": "sgd", "lr": {"loguniform": [0.03, 0.3]}}},
    "resources": {"gpu": 0}, "evaluation": {"curvature": False, "bootstrap": 0}}
sweeper.plan(space)""",
    "done = sweeper.run(space, name='cells', set={'seed': 5}, mlflow=False, cpus=1)\ndone",
    "sweeper.results.load(done.name).table('final').to_pandas().groupby('config_loss_name').ece.mean()",
    "sweeper.status()",
    "sweeper.recalibrate('cells', method='temperature')",
    "print(done.complete, done.outcome, sum(done.counts.values()), sweeper.report('cells').path.name)",
]


def _run(folder: Path, cells: list[str], **options: bool) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=240, startup_timeout=200, resources=place, **options)
    client.execute()
    nbformat.write(notebook, folder / "cells.ipynb")
    return notebook


def _text(outputs) -> str:
    return "".join(output.get("text", "") for output in outputs)


def _pages(outputs) -> list[str]:
    return [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_in_a_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    imported, planned, ran, frame, status, recalibrated, last = [cell.outputs for cell in _run(tmp_path, CELLS).cells]
    assert _text(imported) == "False\n"
    assert "total epochs" in _pages(planned)[0] and _pages(planned)[0].startswith("<pre")
    progress, summary = _pages(ran)
    assert "<b>done</b>" in progress
    assert re.search(r"\d completed", progress) and "best val_nll" in progress
    assert "epoch 1" in progress and "after 1 epoch:" in progress
    assert [output.output_type for output in ran] == ["display_data", "execute_result"], "one display, and the answer"
    assert "4 trials" in summary and "report.html" in summary
    assert "focal" in str(frame[0].data) and "cells" in _pages(status)[0]
    assert "temperature, 15 bins" in _pages(recalibrated)[0]
    assert not any("\x1b" in str(output) for output in (*planned, *ran[1:], *status))
    assert _text(last) == "True finished 4 report.html\n"
    assert (tmp_path / "results" / "cells" / "sweeper.log").exists()
