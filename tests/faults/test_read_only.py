"""Somebody else's folder and a read-only disk: commands that write say so in a sentence, those that read go on."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.small_disk import SmallDisk
from tests.running import TINY, in_process, write_space

pytestmark = pytest.mark.integration

WRITING = {
    "report": ["report", "tiny"],
    "sync": ["manage", "sync", "tiny"],
    "delete": ["manage", "delete", "tiny", "--yes"],
    "rename": ["manage", "rename", "tiny", "other"],
    "archive": ["manage", "archive", "tiny"],
    "recalibrate": ["recalibrate", "tiny", "-m", "temperature"],
    "retry": ["resume", "tiny", "--set", "budget.gpu_hours=20"],
    "figure": ["figure", "tiny", "learning_curves", "--to", "{disk}/figure.svg"],
    "trial": ["show", "tiny", "--to", "{disk}/trial.html"],
    "several": ["report", "tiny", "again"],
    "export": ["export", "tiny", "--posthoc", "none", "--to", "{disk}/exported"],
    "init": ["init", "{disk}/mine.yaml"],
    "run": ["run", "{beside}/small.yaml"],
}
READING = {
    "report": ["report", "tiny", "--to", "{beside}/report.html"],
    "several": ["report", "tiny", "again", "--to", "{beside}/several.html"],
    "archive": ["manage", "archive", "tiny", "--to", "{beside}/tiny.tar.gz"],
    "results": ["results", "tiny"],
    "list": ["status"],
    "show": ["show", "tiny", "--to", "{beside}/trial.html"],
}
SCRIPT = """
import json, sys, traceback
from pathlib import Path
sys.path.append(sys.argv[3])  # the checkout: the working directory is another
from tests.running import in_process
commands, at = json.loads(sys.argv[1]), Path(sys.argv[2])
said = {}
for name, words in commands.items():
    try:
        done = in_process(*words, cwd=at)
        said[name] = [done.returncode, done.stdout, done.stderr]
    except Exception:
        said[name] = [1, "", traceback.format_exc()]
print(json.dumps(said))
"""

CHECKOUT = Path(__file__).parents[2]
Answers = Mapping[str, tuple[int, str, str]]


@pytest.fixture(scope="module", params=["read-only disk", "another user's folder"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answers, Path]]:
    """Return what each command says, and the folder beside the disk that can be written to."""
    beside = tmp_path_factory.mktemp("beside")
    ran = in_process("run", write_space(beside, TINY % 2), "--name", "tiny", "--cpus", "1", cwd=beside)
    assert ran.returncode == 0, ran.stderr
    shutil.copytree(beside / "results" / "tiny", beside / "results" / "again", symlinks=True)
    with SmallDisk(beside / "disk", "64m") as disk:
        shutil.copytree(beside / "results", disk.seen_from_outside / "results", symlinks=True)
        program = [sys.executable, "-c", SCRIPT]
        if request.param == "read-only disk":
            disk.remount("ro")
        else:
            for where, _, files in os.walk(disk.seen_from_outside):
                for path in (Path(where), *(Path(where) / name for name in files)):
                    path.chmod(0o555, follow_symlinks=True)
            # Root may write everywhere; without this capability it is a user like others.
            program = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *program]
        places = {"disk": str(disk.folder), "beside": str(beside)}
        output = ["--output", str(disk.folder / "results")]
        words = {
            f"{kind} {name}": [
                *(word.format(**places) for word in each),
                *(output if name != "init" else []),
                *(["--tracking-uri", f"sqlite:///{beside}/mine.db"] if name == "sync" else []),
            ]
            for kind, commands in (("write", WRITING), ("read", READING))
            for name, each in commands.items()
        }
        done = disk.run(*program, json.dumps(words), str(beside), str(CHECKOUT), cwd=beside)
        assert done.returncode == 0, done.stderr
        yield json.loads(done.stdout), beside


@pytest.mark.parametrize("name", WRITING)
def test_what_cannot_be_written_is_said_in_a_sentence(answers: tuple[Answers, Path], name: str) -> None:
    code, _, said = answers[0][f"write {name}"]
    assert code == 2 and "Traceback" not in said, said
    assert "cannot be written" in said, said
    assert "Read-only file system" in said or "Permission denied" in said
    assert len(said.strip().splitlines()[-1]) > 10, "no remedy"


@pytest.mark.parametrize("name", READING)
def test_a_reader_is_served(answers: tuple[Answers, Path], name: str) -> None:
    code, said, errors = answers[0][f"read {name}"]
    assert code == 0, errors
    for word in READING[name]:
        if word.startswith("{beside}"):
            written = Path(word.format(beside=answers[1]))
            assert written.stat().st_size > 1000 and str(written) in said + errors
