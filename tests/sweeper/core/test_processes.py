"""A folder from somebody else is the working directory: nothing that lies in it is imported by any process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sweeper.core.processes import OUR_ROOT, python_environment, python_module, search_path, set_niceness
from tests.running import in_process

SPACE = {
    "dataset": "digits",
    "scheduler": {"name": "none", "max_epochs": 1},
    "samples": 1,
    "evaluation": {"curvature": {"samples": 16}, "bootstrap": 0},
    "space": {
        "loss": "cross_entropy",
        "architecture": "mlp",
        "optimizer": {"name": "sgd", "lr": {"uniform": [0.1, 0.2]}},
    },
}

PLANTED = ("torch", "numpy", "mlflow", "pyarrow", "ray", "yaml", "sklearn", "scipy")


def _plant(folder: Path) -> None:
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"import pathlib\npathlib.Path(__file__).with_name('caught_{name}').touch()\n"
        )


def _sweeper(folder: Path, *arguments: str) -> None:
    """Run a command as a user would in `folder`."""
    command = [sys.executable, "-m", "sweeper", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(OUR_ROOT), "SWEEPER_CACHE": str(folder.parent / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


CYCLE = """
from sweeper.core.processes import collect_garbage_rarely
class Kept:
    def __init__(self): self.own = self
    def __del__(self): print("collected")
%s
Kept()
"""


@pytest.mark.parametrize(
    ("call", "printed"),
    [("", "collected\n"), ("collect_garbage_rarely()", ""), ("collect_garbage_rarely(); import duckdb", "collected\n")],
)
def test_a_commands_end_looks_for_garbage_only_with_duckdb(call, printed):
    done = subprocess.run([sys.executable, "-c", CYCLE % call], capture_output=True, text=True, check=True)
    assert done.stdout == printed and not done.stderr


def test_started_processes_leave_the_working_directory_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path])
    assert str(tmp_path) not in search_path() and "" not in search_path()
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')\n")
    done = subprocess.run(
        python_module("json.tool", "--help"), env=python_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path) in search_path(), "its user named it"


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares cores among processes alone")
def test_a_niceness_is_the_sessions_only_where_the_process_leads_one():
    ours = Path("/proc/self/autogroup").read_text()
    for session in (True, False):
        how = {"start_new_session": True} if session else {"process_group": 0}
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, **how) as process:
            set_niceness(process.pid, 19)
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
            assert ("nice 19" in Path(f"/proc/{process.pid}/autogroup").read_text()) == session
            process.kill()
    assert Path("/proc/self/autogroup").read_text() == ours


@pytest.mark.integration
def test_a_sweep_resumed_inside_its_own_folder_imports_nothing_from_there(tmp_path):
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(SPACE))
    made = in_process("run", "space.yaml", "--name", "received", "--executor", "local", "--no-mlflow", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    received = tmp_path / "results" / "received"
    values = yaml.safe_load((received / "sweep.yaml").read_text())
    _plant(received)
    for samples, executor in ((2, "local"), (3, "ray")):
        (received / "sweep.yaml").write_text(yaml.safe_dump({**values, "samples": samples}))
        _sweeper(received, "resume", str(received), "--executor", executor)
    assert sorted(path.name for path in received.glob("caught_*")) == []
