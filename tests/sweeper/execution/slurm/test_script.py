"""The batch scripts: shell that Bash reads, with everything that was asked for, and no more workers than trials."""

import shlex
import subprocess
from pathlib import Path

import pytest

from sweeper.api.clusters import submit
from sweeper.api.commands import plan
from sweeper.core.errors import SweeperError
from sweeper.execution.slurm.settings import HEAD, WORKERS, SlurmSettings, scripts
from sweeper.execution.slurm.submission import SlurmSubmission

COMMAND = ["run", "space.yaml", "--name", "a", "--set", "header.title=it's a $HOME"]
FULL = {
    "partition": "gpu", "account": "lab", "qos": "low", "time": "2:00:00", "constraint": "a100|h100", "memory": "32G",
    "gpus": 1, "cpus": 4, "gpu_type": "a100", "modules": ["cuda/12.4", "gcc"], "setup": ["source ~/venv/bin/activate"],
    "python": "python3", "sbatch": ["--mail-type=END", "--exclusive"],
}  # fmt: skip


def options(script: str) -> list[str]:
    """Return what a script asks of sbatch."""
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


@pytest.mark.parametrize("shape", [{"workers": 40}, {"nodes": 4}])
def test_bash_reads_them_and_the_command_arrives_as_it_was(tmp_path: Path, shape: dict[str, int]) -> None:
    folder = tmp_path / "my results" / ".slurm" / "a"
    for text in scripts(SlurmSettings.model_validate({**FULL, **shape}), "a", folder, COMMAND).values():
        checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr
    head = scripts(SlurmSettings.model_validate({**FULL, **shape}), "a", folder, COMMAND)[HEAD]
    words = shlex.split(head.splitlines()[-1])
    assert words == ["exec", "python3", "-m", "sweeper.execution.slurm.head", str(folder), *COMMAND]


def test_workers_ask_for_their_own_card_and_the_head_for_none(tmp_path: Path) -> None:
    found = scripts(
        SlurmSettings.model_validate({**FULL, "workers": 40, "head": {"partition": "cpu"}}), "a", tmp_path, COMMAND
    )
    asked = options(found[WORKERS])
    for option in ("--array=0-39", "--gres=gpu:a100:1", "--cpus-per-task=4", "--partition=gpu", "--account=lab",
                   "--qos=low", "--time=2:00:00", "--constraint=a100|h100", "--mem=32G", "--requeue",
                   "--signal=B:USR1@120", "--mail-type=END", "--exclusive"):  # fmt: skip
        assert option in asked
    of_head = options(found[HEAD])
    assert "--partition=cpu" in of_head and "--requeue" in of_head
    assert not any("gres" in option or "array" in option for option in of_head)
    assert found[WORKERS].index("module load cuda/12.4") < found[WORKERS].index("source ~/venv/bin/activate")


def test_one_allocation_is_one_script_that_starts_a_worker_on_each_node(tmp_path: Path) -> None:
    found = scripts(SlurmSettings.model_validate({**FULL, "nodes": 4}), "a", tmp_path, COMMAND)
    assert list(found) == [HEAD] and "--nodes=4" in options(found[HEAD])
    started = next(line for line in found[HEAD].splitlines() if line.startswith("srun"))
    assert "--nodes=4" in started and "sweeper.execution.slurm.worker" in started and started.endswith("&")


def test_an_image_runs_python_with_its_cards(tmp_path: Path) -> None:
    asked = SlurmSettings.model_validate({"workers": 1, "gpus": 1, "image": "/shared/sweeper.sif"})
    for text in scripts(asked, "a", tmp_path / "results" / ".slurm" / "a", COMMAND).values():
        bound = f"--bind {tmp_path}/results"
        assert f"exec apptainer exec --nv {bound} /shared/sweeper.sif python -m sweeper.execution.slurm." in text


@pytest.mark.parametrize(("name", "written"), [("50%j", "{}/50%%j/%j.log"), ("my results", "'{}/my results/%j.log'")])
def test_a_folder_s_name_is_no_pattern_of_sbatch_and_no_two_words(tmp_path: Path, name: str, written: str) -> None:
    found = scripts(SlurmSettings.model_validate({"workers": 1}), "a", tmp_path / name, COMMAND)
    assert f"--output={written.format(tmp_path)}" in options(found[HEAD])


SPACE = """
dataset: {name: digits}
objective: {metric: val_nll}
scheduler: {name: none, max_epochs: 1}
space:
  loss: {grid: [cross_entropy, focal]}
  architecture: mlp
  optimizer: {name: sgd, lr: 0.1}
"""


@pytest.mark.parametrize(("text", "line"), [("workers: 40\ngpus: 1", "--array=0-1\n"), ("nodes: 4", "--nodes=2\n")])
def test_no_more_is_asked_for_than_there_are_trials(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "a.yaml").write_text(SPACE)
    (tmp_path / "slurm.yaml").write_text(text)
    done = submit(tmp_path / "a.yaml", slurm=True, print_only=True, output=str(tmp_path / "results"))
    assert isinstance(done, SlurmSubmission)
    assert any(line in script for script in done.scripts.values()), done.scripts


def test_a_plan_takes_any_slurm_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SPACE)
    (tmp_path / "other.yaml").write_text("workers: 40")
    there = plan(tmp_path / "a.yaml", slurm=True, slurm_file=tmp_path / "other.yaml").json
    assert isinstance(there, dict) and "cluster" in there
    for wrong in ({"slurm_file": "other.yaml"}, {"slurm": True, "cluster": "other.yaml"}):
        with pytest.raises(SweeperError, match="--slurm"):
            plan(tmp_path / "a.yaml", **wrong)
