"""The documentation's pages: their search spaces are valid, commands and options exist, links lead somewhere."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
import yaml

from sweeper.space.loading import load_spec
from tests.release import readme
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


def commands() -> list[list[str]]:
    found = blocks("{code-cell}") + [each for each in blocks("sh") if each[0].startswith("which")]
    parts = [part.strip().removeprefix("!") for _, body in found for part in re.split(r"&&|\|\||\n", body)]
    return [shlex.split(part, comments=True) for part in parts if part.startswith("sweeper ")]


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words)[:60])
def test_commands_and_options_exist(words: list[str]) -> None:
    readme.check(words)


def test_metrics_without_a_docstring_of_their_own_have_a_formula() -> None:
    """Those that one function computes together; nothing else is described there."""
    described = yaml.safe_load((ROOT / "docs" / "writing" / "metrics.yaml").read_text(encoding="utf-8"))
    assert set(described) == {name for name in METRICS if isinstance(METRICS[name].build, partial)}
    assert all(entry.keys() >= {"formula"} for entry in described.values())


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_links_lead_to_pages(path: Path) -> None:
    made = {"reference", "project"}  # by the build, which checks these
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        if not target.startswith(("http", "mailto")) and not made & set(Path(target).parts):
            assert (path.parent / target).exists(), target
