"""The commands for files and folders, as they are typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from typer.testing import CliRunner

from sweeper.cli.main import app
from sweeper.core.errors import SweeperError
from sweeper.storage.lookup import sweep_names
from tests.patience import patient


def typed(*words: str) -> tuple[int, str]:
    """Exit status and output of a command; a SweeperError is raised as `main` would print it."""
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, SweeperError):
        raise done.exception
    return done.exit_code, done.output


def test_from_flags_to_a_valid_search_space(tmp_path: Path) -> None:
    file = str(tmp_path / "question.yaml")
    status, said = typed(
        "init", file, "--loss", "focal", "--network", "mlp", "--network", "resnet8", "--grid", "loss.gamma=1,2,5",
        "--grid", "dataset.label_noise=0,0.1", "--replicates", "3", "--epochs", "9",
    )  # fmt: skip
    assert status == 0 and f"sweeper plan {file}" in said
    status, said = typed("validate", file)
    assert status == 0 and "12 configurations × 3 seeds" in said and "label noise" in said and "γ" in said
    with pytest.raises(SweeperError, match="already exists"):
        typed("init", file)
    with pytest.raises(SweeperError, match="PATH=VALUES"):
        typed("init", str(tmp_path / "other.yaml"), "--grid", "loss.gamma")


def test_a_table_of_one_s_own_by_flags(tmp_path: Path) -> None:
    file, table = tmp_path / "question.yaml", tmp_path / "my, data.csv"
    table.write_text("a,kind\n" + "".join(f"{row},{row % 2}\n" for row in range(300)))
    with pytest.raises(SweeperError, match=r"dataset needs file: .*--table FILE\ndataset needs target: .*--target"):
        typed("init", str(file), "--dataset", "table")
    assert not file.exists()
    assert typed("init", str(file), "--table", str(table), "--target", "kind")[0] == 0
    status, said = typed("validate", str(file))
    assert status == 0 and "kind" in said


def test_the_tutorial_is_a_valid_space_and_a_notebook_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "first"
    status, said = typed("init", "--tutorial", str(folder))
    assert status == 0 and f"sweeper run {folder / 'first_sweep.yaml'}" in said
    assert typed("validate", str(folder / "first_sweep.yaml"))[0] == 0
    cells = json.loads((folder / "first_sweep.ipynb").read_text("utf-8"))["cells"]
    assert any("first_sweep.yaml" in cell["source"] for cell in cells) and not any(c.get("outputs") for c in cells)
    with pytest.raises(SweeperError, match=r"first_sweep\.yaml already exists"):
        typed("init", "--tutorial", str(folder))


@pytest.mark.integration
def test_the_tutorial_s_notebook_runs(tmp_path: Path) -> None:
    typed("init", "--tutorial", str(tmp_path))
    space = (tmp_path / "first_sweep.yaml").read_text("utf-8")
    (tmp_path / "first_sweep.yaml").write_text(
        space.replace("max_epochs: 27, grace_epochs: 9", "max_epochs: 3"), "utf-8"
    )
    notebook = nbformat.read(tmp_path / "first_sweep.ipynb", as_version=4)
    NotebookClient(notebook, timeout=int(patient(300)), resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert "focal" in outputs[2] and "tempered" in outputs[2] and "svg" in outputs[3]


def test_every_fault_of_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("dataset: digit\nsamples: 0\n")
    with pytest.raises(SweeperError) as raised:
        typed("validate", str(tmp_path / "bad.yaml"))
    assert "digit" in str(raised.value) and "samples" in str(raised.value)


def test_rename_archive_delete(quickstart_folder: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "results")
    shutil.copytree(quickstart_folder, tmp_path / "results" / "quickstart", symlinks=True)
    assert typed("manage", "rename", "quickstart", "kept", "--output", output)[0] == 0
    assert typed("manage", "archive", "kept", "--to", str(tmp_path / "kept.tar.gz"), "--output", output)[0] == 0
    assert (tmp_path / "kept.tar.gz").is_file()
    refused = CliRunner().invoke(app, ["manage", "delete", "kept", "--output", output], input="n\n")
    assert refused.exit_code == 1 and sweep_names(output) == ["kept"]
    assert typed("manage", "delete", "kept", "--yes", "--output", output)[0] == 0 and sweep_names(output) == []


def test_a_sweep_that_never_left_slurm_s_queue_is_deleted_by_its_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without Slurm
    scripts = tmp_path / "results" / ".slurm" / "a"
    scripts.mkdir(parents=True)
    (scripts / "head.sh").touch()
    status, said = typed("manage", "delete", "a", "--yes", "--output", str(tmp_path / "results"))
    assert status == 0 and "deleted" in said and not scripts.exists()
