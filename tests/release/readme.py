"""The commands of README, docs and guides: taken out of their `sh` blocks, and what each needs to be run."""

import re
import shlex
from dataclasses import dataclass

from sweeper.api import SUBCOMMANDS
from sweeper.api.main import program
from tests.release.distribution import ROOT
from tests.running import arguments_of

DOCS = ROOT / "docs"
#: Every page with commands, in the order in which a reader would run them.
PAGES = tuple(
    dict.fromkeys(
        [
            *(ROOT / "README.md", DOCS / "quickstart.md"),
            *(page for folder in (DOCS / "guides", DOCS, DOCS / "tutorials") for page in sorted(folder.glob("*.md"))),
        ]
    )
)
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")

ELSEWHERE = {
    # What a reader runs with things of their own, or what takes too long beside the rest; each is shown elsewhere.
    "make test": "the suite itself: continuous integration runs it in a clean clone",
    "make rehearse": "every rehearsal, for hours; tests/test_rehearsals.py has the short form",
    "sweeper paper mukhoti": "data of gigabytes and hundreds of GPU-hours; its rehearsal is run",
    "sweeper run examples/fine_tuning": "images and weights; tests/search_spaces/test_shipped_files.py makes some",
    ".venv/bin/sweeper import preds.npz": "predictions of the reader's; test_prediction_tables.py makes some",
    "sweeper import ": "as above",
    "sweeper compare cifar newsgroups digits": "sweeps of the reader's; tests/sweeper/results has some",
    "claude mcp add": "another program; tests/sweeper/api/test_agent.py talks to the server",
    "sweeper status --watch --output /shared": "a folder that machines of the reader's share; tests/slurm shares one",
    "sweeper serve --output s3:": "a store of the reader's; tests/sweeper/serving reads one",
    "ray start": "machines of the reader's; tests/remote/test_end_to_end.py starts two nodes",
    "sweeper run gamma_tau_nu --ray": "as above",
    "export SWEEPER_ADDRESS": "a cluster of the reader's; tests/remote/test_end_to_end.py submits to a real one",
    "sweeper plan gamma_tau_nu --slurm": "a slurm.yaml of the reader's; tests/slurm has one",
    "sweeper cluster submit": "as above",
    "sweeper status && sweeper cluster logs": "as above",
    "sweeper results gamma_tau_nu": "as above",
}

#: Commands that serve until Ctrl-C.
SERVERS = ("sweeper ui", "sweeper serve")


COMMANDS = {name: name for name in program() if not name.startswith("-")}
COMMANDS |= {name: f"{group} {name}" for group in SUBCOMMANDS for name in program()[group] if not name.startswith("-")}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
RULES = set(re.findall(r"^([a-z][a-z-]+):", MAKEFILE, re.MULTILINE))
BENCHES = re.findall(r"^BENCHES := (.*)$", MAKEFILE, re.MULTILINE)[0].split()
PLACEHOLDER = re.compile(r"[A-Z]+|…|.*[…<>].*")
UNNAMED = {"--help", "--install-completion", "--version", "--format", "-f"}


def options_of(command: str) -> set[str]:
    return {name for argument in arguments_of(command) for name in argument.names} | UNNAMED


def subcommand(words: list[str]) -> str:
    if not words or words[0].startswith("-") or PLACEHOLDER.fullmatch(words[0]):
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
        targets = RULES | {f"bench-{name}" for name in BENCHES}
        assert named <= targets or any(PLACEHOLDER.fullmatch(word) for word in named), named - targets
        return
    if words[0] != "sweeper":
        return
    words = plain(words)
    known = options_of(command) if (command := subcommand(words[1:])) else UNNAMED
    given = {word.partition("=")[0] for word in words[2:] if re.match(r"--?[a-z]", word)}
    assert given <= known, (words, given - known)


@dataclass(frozen=True)
class Command:
    """A line of a `sh` block, without its comment."""

    line: str

    @property
    def elsewhere(self) -> str | None:
        """Why it is not run with the others; `None` where it is."""
        return next((why for start, why in ELSEWHERE.items() if self.line.startswith(start)), None)

    @property
    def parts(self) -> list[list[str]]:
        """The words of each command of the line: `a && b` are two."""
        lexer = shlex.shlex(self.line, posix=True, punctuation_chars="&|;")
        lexer.whitespace_split = True
        found: list[list[str]] = [[]]
        for word in lexer:
            if set(word) <= set("&|;"):
                found.append([])
            else:
                found[-1].append(word)
        return found


def commands() -> list[Command]:
    """Return every line of the pages' `sh` blocks, in order; a line that is there twice, once."""
    lines = [_without_comment(line) for block in BLOCK.findall(TEXT) for line in block.splitlines()]
    return [Command(line) for line in dict.fromkeys(lines) if line]


def mentioned() -> list[list[str]]:
    """Return the words of what the text calls by name: `sweeper plan FILE`, `make check`, `--set key=value`."""
    outside = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    found = [" ".join(text.split()) for text in INLINE.findall(outside)]
    return [shlex.split(text) for text in found if text.startswith(("sweeper ", "make ", "--"))]


def _without_comment(line: str) -> str:
    quoted = False
    for at, character in enumerate(line):
        if character in "\"'":
            quoted = not quoted
        if character == "#" and not quoted and (at == 0 or line[at - 1].isspace()):
            return line[:at].strip()
    return line.strip()
