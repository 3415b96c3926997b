"""What the TAB key offers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces import packaged_files
from sweeper.api.main import program
from tests.running import completions


def test_search_spaces_are_those_that_ship_and_files_nearby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completions("run", "") == list(packaged_files())
    (tmp_path / "quick.yaml").touch()
    (tmp_path / "quick.txt").touch()
    (tmp_path / "quicker").mkdir()
    (tmp_path / "quicker" / "[mine].yml").touch()
    assert completions("run", "quick") == ["quickstart", "quick.yaml", "quicker/"]
    assert completions("run", "quicker/[") == ["quicker/[mine].yml"]
    assert completions("run", "nowhere/x") == []


BY_WORDS = {"run quick": "quickstart", "results m": "mine", "sta": "status"}


@pytest.mark.parametrize("words", BY_WORDS)
def test_the_shell_gets_them(tmp_path: Path, words: str) -> None:
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "sweep.yaml").touch()
    typed = words.split()
    script = f"""
{program().generate_completion(shell="bash")}
COMP_WORDS=(sweeper {words}) COMP_CWORD={len(typed)} COMP_LINE="sweeper {words}" COMP_POINT=99
_sweeper sweeper {typed[-1]} {typed[-2] if len(typed) > 1 else "sweeper"}
echo "${{COMPREPLY[@]}}"
"""
    (tmp_path / "completion").write_text(script)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "completion"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert done.stdout.split() == [BY_WORDS[words]], done.stderr


def test_methods_formats_and_keys_with_their_values() -> None:
    assert completions("recalibrate", "x", "--method", "temp") == ["temperature"]
    assert "focal_temperature" in completions("conformal", "x", "-m", "")
    assert completions("status", "--format", "c") == ["csv"]
    keys = completions("run", "quickstart", "--set", "")
    assert {"seed=", "scheduler.max_epochs=", "replicates.count=", "space.optimizer.lr=", "evaluation.bins="} <= set(
        keys
    )
    assert completions("run", "--set", "resources.c") == ["resources.cpu="]
    assert completions("run", "nowhere", "--set", "see") == ["seed="]
    assert completions("run", "--set", "space.architecture=res")[:1] == ["space.architecture=resnet101"]
    assert completions("run", "--set", "objective.metric=val_a")[:1] == ["objective.metric=val_accuracy"]
    assert completions("run", "--set", "seed=") == []
