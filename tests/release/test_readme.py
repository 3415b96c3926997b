"""README and guides: commands and options that they name exist; commands run, in a fresh clone with an empty home."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from sweeper.api import SUBCOMMANDS
from sweeper.api.main import app
from tests.release import readme
from tests.release.distribution import ROOT, clean_environment
from tests.running import arguments_of

COMMANDS = {name: name for name in app if not name.startswith("-")}
COMMANDS |= {name: f"{group} {name}" for group in SUBCOMMANDS for name in app[group] if not name.startswith("-")}
TARGETS = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS |= {f"bench-{path.stem[6:].replace('_', '-')}" for path in (ROOT / "tests" / "benchmarks").glob("bench_*.py")}
PLACEHOLDER = re.compile(r"[A-Z]+|…|.*[…<>].*")
UNNAMED = {"--help", "--install-completion", "--version", "--format", "-f"}


def options_of(command: str) -> set[str]:
    return {name for argument in arguments_of(command) for name in argument.names} | UNNAMED


def subcommand(words: list[str]) -> str:
    if not words or words[0].startswith("-"):
        return ""
    assert words[0] in COMMANDS, f"there is no command `sweeper {words[0]}`"
    return COMMANDS[words[0]]


def plain(words: list[str]) -> list[str]:
    """Return a command line without the group of its command."""
    grouped = words[0] == "sweeper" and len(words) > 2 and words[1] in SUBCOMMANDS
    return ["sweeper", *words[2:]] if grouped else words


def check(words: list[str]) -> None:
    """Check that a command line names what exists."""
    if words[0] == "make":
        named = {word for word in words[1:] if "=" not in word}
        assert named <= TARGETS or any(PLACEHOLDER.fullmatch(word) for word in named), named - TARGETS
        return
    if words[0] != "sweeper":
        return
    words = plain(words)
    known = options_of(subcommand(words[1:]))
    given = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
    assert given <= known, (words, given - known)


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
        check(words)
        if words[0] == "sweeper" and not PLACEHOLDER.fullmatch(words[-1]):
            app.parse_args(app.meta.parse_args(words[1:])[1].arguments["words"])


@pytest.mark.parametrize("words", readme.mentioned(), ids=lambda words: " ".join(words)[:60])
def test_commands_in_the_text_exist(words: list[str]) -> None:
    if words[0].startswith("--"):
        everywhere = set().union(*map(options_of, COMMANDS.values()))
        assert words[0].partition("=")[0] in everywhere, words
    else:
        check(words)


def test_files_that_it_names_are_there() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", readme.PAGES[0].read_text("utf-8"))
    assert links and [link for link in links if not (ROOT / link).exists()] == []


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
        done = subprocess.run(
            ["bash", "-c", activated + command.line], cwd=clone, env=clean_environment(home), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=3600,
        )  # fmt: skip
        print(f"{time.perf_counter() - began:8.1f} s  exit {done.returncode}  {command.line}", flush=True)
        assert done.returncode == 0, done.stdout[-6000:]
        assert "Traceback" not in done.stdout, done.stdout[-6000:]
