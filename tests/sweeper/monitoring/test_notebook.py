"""The functions in a real notebook kernel: cells run, progress is one display updated in place, answers are pages."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import sweeper, sys\nprint('torch' in sys.modules)",
    """space = {
    "dataset": "digits", "samples": 2, "scheduler": {"name": "asha", "max_epochs": 3, "grace_epochs": 1},
    "space": {"loss": {"grid": ["cross_entropy", "focal"]}, "architecture": {"name": "mlp", "width": 16},
              "optimizer": {"name": "sgd", "lr": {"loguniform": [0.03, 0.3]}}},
    "resources": {"gpu": 0}, "evaluation": {"curvature": False, "bootstrap": 0}}
sweeper.plan(space)""",
    "done = sweeper.run(space, name='cells', set={'seed': 5}, mlflow=False, cpus=1)\ndone",
    "sweeper.results.load(done.name, table='final').to_pandas().groupby('config_loss_name').ece.mean()",
    "sweeper.status()",
    "sweeper.recalibrate('cells', method='temperature')",
    "print(done.complete, done.outcome, sum(done.counts.values()), sweeper.reporting('cells').path.name)",
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
    assert re.search(r"\d completed", progress) and "rung 1" in progress and "best val_nll" in progress
    assert [output.output_type for output in ran] == ["display_data", "execute_result"], "one display, and the answer"
    assert "4 trials" in summary and "report.html" in summary
    assert "focal" in str(frame[0].data) and "cells" in _pages(status)[0]
    assert "temperature, 15 bins" in _pages(recalibrated)[0]
    assert not any("\x1b" in str(output) for output in (*planned, *ran[1:], *status))
    assert _text(last) == "True finished 4 report.html\n"
    assert (tmp_path / "results" / "cells" / "sweeper.log").exists()


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_an_answer_is_shown_once_and_a_fault_is_the_command_lines_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    cells = ["import sweeper\nsweeper.claims()", "sweeper.run('quickstrat')"]
    answer, fault = [cell.outputs for cell in _run(tmp_path, cells, allow_errors=True).cells]
    assert [output.output_type for output in answer] == ["execute_result"]
    assert "\x1b" not in answer[0].data["text/plain"] and "Tr(H)" in _pages(answer)[0]
    (error,) = fault
    assert error.ename == "InvalidSearchSpace" and "cannot read 'quickstrat': No such file" in error.evalue
