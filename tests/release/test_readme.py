"""README, docs and guides: commands and options that they name exist; commands run, in a fresh clone."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from sweeper.api.main import program
from tests.release import readme
from tests.release.distribution import ROOT, clean_environment


def test_there_are_commands() -> None:
    found = readme.commands()
    assert {"make sweep", "make test"} <= {command.line for command in found}
    assert len(found) >= 12 and len(readme.mentioned()) >= 15
    assert sum(command.elsewhere is None for command in found) >= 8


def test_each_reason_for_not_running_a_command_has_a_command() -> None:
    lines = [command.line for command in readme.commands()]
    assert [start for start in readme.ELSEWHERE if not any(line.startswith(start) for line in lines)] == []


@pytest.mark.parametrize("command", readme.commands(), ids=lambda command: command.line[:60])
def test_commands_in_blocks_exist_and_parse(command: readme.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_ADDRESS", "http://head:8265")  # a line of the same block sets it
    for words in command.parts:
        readme.check(words)
        if words[0] == "sweeper" and not readme.PLACEHOLDER.fullmatch(words[-1]):
            program().parse_args(program().meta.parse_args(words[1:])[1].arguments["words"])


@pytest.mark.parametrize("words", readme.mentioned(), ids=lambda words: " ".join(words)[:60])
def test_commands_in_the_text_exist(words: list[str]) -> None:
    if words[0].startswith("--"):
        everywhere = set().union(*map(readme.options_of, readme.COMMANDS.values()))
        assert words[0].partition("=")[0] in everywhere, words
    else:
        readme.check(words)


def test_files_that_it_names_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", readme.PAGES[0].read_text("utf-8"))
    assert links and [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_can_be_made_and_every_benchmark_is_there() -> None:
    command = ["make", "--dry-run", *sorted(readme.RULES)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and {"sweep", "test", "check"} <= readme.RULES, shown.stderr
    modules = [f"bench_{name.replace('-', '_')}.py" for name in readme.BENCHES]
    assert modules and [name for name in modules if not (ROOT / "tests" / "benchmarks" / name).is_file()] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_readme_by_itself_in_a_fresh_clone(tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=300)
    activated = ""
    for command in readme.commands():
        if command.elsewhere is not None:
            print(f"   left out  {command.line}: {command.elsewhere}", flush=True)
            continue
        if command.line.startswith(". "):
            activated = f"{command.line} && "
            continue
        began = time.perf_counter()
        # Until the index has the release, an extra comes from the checkout.
        line = command.line.replace("pip install 'calibration-sweeper[", "pip install -c constraints.txt '.[")
        code, output = _run(line, activated, clone, home)
        print(f"{time.perf_counter() - began:8.1f} s  exit {code}  {command.line}", flush=True)
        assert code == 0, output[-6000:]
        assert "Traceback" not in output, output[-6000:]


def _run(line: str, activated: str, folder: Path, home: Path) -> tuple[int, str]:
    """Run a line as a reader does, a server until it says how to end it; return its exit status and output."""
    with subprocess.Popen(
        ["bash", "-c", activated + line], cwd=folder, env=clean_environment(home), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        if line not in readme.SERVERS:
            output = process.communicate(timeout=3600)[0]
            return process.returncode, output
        assert process.stdout is not None
        output = ""
        while "Ctrl-C" not in output and process.poll() is None:
            output += process.stdout.readline()
        time.sleep(5)  # the address is printed before the server listens
        os.killpg(process.pid, signal.SIGINT)
        output += process.communicate(timeout=120)[0]
        return process.returncode, output
