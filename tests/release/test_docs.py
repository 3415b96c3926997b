"""The documentation's pages: their search spaces are valid, commands and options exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import yaml

from docs.writing import gallery
from sweeper.api import SUBCOMMANDS
from sweeper.api.main import app
from sweeper.space.loading import load_spec
from tests.running import arguments_of
from trainables.metrics import METRICS

ROOT = Path(__file__).parents[2]
WRITTEN = sorted(
    path for path in (ROOT / "docs").rglob("*.md") if not {"build", "reference", "project"} & set(path.parts)
)
BLOCK = re.compile(r"^```(\w+|\{code-cell\})\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (path.name, body)
        for path in WRITTEN
        for kind, body in BLOCK.findall(path.read_text(encoding="utf-8"))
        if kind == language
    ]


@pytest.mark.parametrize(("page", "body"), blocks("yaml"))
def test_whole_search_spaces_are_valid(page: str, body: str) -> None:
    values = yaml.safe_load(body)
    if "dataset" in values and "space" in values:
        load_spec(values)


def commands() -> list[tuple[str, str]]:
    found = []
    for page, body in blocks("{code-cell}") + [each for each in blocks("sh") if each[0].startswith("which")]:
        for line in body.splitlines():
            for part in re.split(r"&&|\|\|", line):
                words = part.strip().removeprefix("!")
                if words.startswith("sweeper "):
                    found.append((page, words))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_and_options_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    grouped = words[1] in SUBCOMMANDS and len(words) > 2
    group = f"{words.pop(1)} " if grouped else ""
    assert words[1] in (app[group.strip()] if group else app), (page, line)
    if not words[1].startswith("-"):
        options = {name for argument in arguments_of(f"{group}{words[1]}") for name in argument.names}
        given = {word.partition("=")[0] for word in words[2:] if word.startswith("--")}
        assert given <= options | {"--help", "--format"}, (page, line, given - options)


def test_metrics_without_a_docstring_of_their_own_have_a_formula() -> None:
    """Those that one function computes together; nothing else is described there."""
    described = yaml.safe_load((ROOT / "docs" / "writing" / "metrics.yaml").read_text(encoding="utf-8"))
    assert set(described) == {name for name in METRICS if isinstance(METRICS[name].build, partial)}
    assert all(entry.keys() >= {"formula"} for entry in described.values())


def test_pages_of_the_gallery_link_to_nothing_that_is_not_published() -> None:
    page = '<a href="#top">up</a> <a class="x" href="trials/c00001.html">one <b>trial</b></a> <a href="https://x.y">out</a>'
    kept = '<a href="#top">up</a> one <b>trial</b> <a href="https://x.y">out</a>'
    assert gallery.without_dead_links(page) == kept


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_lead_to_pages(path: Path) -> None:
    made = {"reference", "project"}  # by the build, which checks these
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http", "mailto")) and not made & set(Path(target).parts):
            assert (path.parent / target).exists(), target
