"""The commands for files and folders, as they are typed."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from jsonschema import Draft7Validator
from nbclient import NotebookClient

import sweeper
from sweeper.planning.preparation import prepare_dataset
from sweeper.space.configurations import configurations
from sweeper.space.file import read_document
from sweeper.space.loading import load_spec
from sweeper.storage.lookup import sweep_names
from tests.patience import patient
from tests.running import typed


def succeeds(*words: str) -> str:
    """Return what a command printed that ended well."""
    done = typed(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def refused(*words: str, by: str) -> None:
    """Check that a command is refused with a message."""
    done = typed(*words)
    assert done.returncode == 2 and re.search(by, done.stderr), done.stderr


@pytest.mark.parametrize("rows", [8, 45, 152])
@pytest.mark.parametrize("loss", ["cross_entropy", "dual_focal"])
def test_what_init_writes_for_a_small_table_is_what_runs(tmp_path: Path, rows: int, loss: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,b,kind\n" + "".join(f"{row * 7 % 11},{row % 5},{'xy'[row % 2]}\n" for row in range(rows)))
    file = tmp_path / "mine.yaml"
    sweeper.init(file, table=table, target="kind", loss=[loss])
    spec = load_spec(file)
    data, recipe = prepare_dataset(spec), configurations(spec)[0]["optimizer"]  # the checks of `run`
    assert recipe["batch_size"] <= len(data.train) and len(data.train) % recipe["batch_size"] != 1
    assert spec.evaluation.bins <= min(len(data.val), len(data.test), 15)
    assert rows < 152 or (recipe["batch_size"], spec.evaluation.bins) == (64, 15), "no smaller than needed"


def test_from_flags_to_a_valid_search_space(tmp_path: Path) -> None:
    file = str(tmp_path / "question.yaml")
    said = succeeds(
        "init", file, "--loss", "focal", "--network", "mlp", "--network", "resnet8", "--grid", "loss.gamma=1,2,5",
        "--grid", "dataset.label_noise=0,0.1", "--replicates", "3", "--epochs", "9",
    )  # fmt: skip
    assert f"sweeper plan {file}" in said
    schema = Path(file).read_text().splitlines()[0].partition("$schema=")[2]
    Draft7Validator(json.loads((tmp_path / schema).read_text())).validate(read_document(Path(file)).values)
    said = succeeds("validate", file)
    assert "12 configurations × 3 seeds" in said and "label noise" in said and "γ" in said
    refused("init", file, by="already exists")
    refused("init", str(tmp_path / "other.yaml"), "--grid", "loss.gamma", by="PATH=VALUES")


def test_a_table_of_one_s_own_by_flags(tmp_path: Path) -> None:
    file, table = tmp_path / "question.yaml", tmp_path / "my, data.csv"
    table.write_text("a,kind\n" + "".join(f"{row},{row % 2}\n" for row in range(300)))
    refused(
        "init",
        str(file),
        "--dataset",
        "table",
        by=r"dataset needs file: .*--table FILE\ndataset needs target: .*--target",
    )
    assert not file.exists()
    succeeds("init", str(file), "--table", str(table), "--target", "kind")
    said = succeeds("validate", str(file))
    assert "kind" in said


def test_the_tutorial_is_a_valid_space_and_a_notebook_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "first"
    said = succeeds("init", "--tutorial", str(folder))
    assert f"sweeper run {folder / 'first_sweep.yaml'}" in said
    succeeds("validate", str(folder / "first_sweep.yaml"))
    cells = json.loads((folder / "first_sweep.ipynb").read_text("utf-8"))["cells"]
    assert any("first_sweep.yaml" in cell["source"] for cell in cells) and not any(c.get("outputs") for c in cells)
    refused("init", "--tutorial", str(folder), by=r"first_sweep\.yaml already exists")


@pytest.mark.integration
def test_the_tutorial_s_notebook_runs(tmp_path: Path) -> None:
    succeeds("init", "--tutorial", str(tmp_path))
    space = (tmp_path / "first_sweep.yaml").read_text("utf-8")
    (tmp_path / "first_sweep.yaml").write_text(
        space.replace("max_epochs: 27, grace_epochs: 9", "max_epochs: 3"), "utf-8"
    )
    notebook = nbformat.read(tmp_path / "first_sweep.ipynb", as_version=4)
    NotebookClient(notebook, timeout=int(patient(300)), resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [str(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    assert "focal" in outputs[2] and "tempered" in outputs[2] and "svg" in outputs[3]


def test_rename_archive_delete(quickstart_folder: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "results")
    shutil.copytree(quickstart_folder, tmp_path / "results" / "quickstart", symlinks=True)
    succeeds("manage", "rename", "quickstart", "kept", "--output", output)
    succeeds("manage", "archive", "kept", "--to", str(tmp_path / "kept.tar.gz"), "--output", output)
    assert (tmp_path / "kept.tar.gz").is_file()
    assert typed("manage", "delete", "kept", "--output", output, answers="n\n").returncode == 1
    assert sweep_names(output) == ["kept"]
    succeeds("manage", "delete", "kept", "--yes", "--output", output)
    assert sweep_names(output) == []


def test_a_queued_sweep_is_deleted_by_its_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # a machine without Slurm
    scripts = tmp_path / "results" / ".slurm" / "a"
    scripts.mkdir(parents=True)
    (scripts / "head.sh").touch()
    said = succeeds("manage", "delete", "a", "--yes", "--output", str(tmp_path / "results"))
    assert "deleted" in said and not scripts.exists()
