"""Every kind of trial meets every command: each cell of `cells.txt` is right, or refused in a sentence that is true.

A kind or a command that the product gains fails `test_the_table_is_complete` until it has a row or a column.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import pytest

from sweeper import tracking
from sweeper.api import COMMANDS
from sweeper.core.errors import SweeperError
from sweeper.execution.prediction_tables import FORMS
from sweeper.search.base import SEARCHERS
from sweeper.space.spec import Replicates
from tests.import_graph import ROOT
from tests.matrix.commands import COLUMNS, COVERED, OUTSIDE, Case
from tests.matrix.kinds import KINDS, SHOWN_BY, Workshop
from tests.matrix.refusals import REFUSALS
from trainables.training.own_loop import LOGITS, PROBABILITIES

RIGHT = "right"


def read_cells() -> dict[tuple[str, str], str]:
    """Return (kind, command) → the word in `cells.txt`."""
    cells: dict[tuple[str, str], str] = {}
    columns: list[str] = []
    for line in Path(__file__).with_name("cells.txt").read_text().splitlines():
        kind, bar, words = (part.strip() for part in line.partition("|"))
        if kind.startswith("#") or not bar:
            continue
        if not kind:
            columns = words.split()
            continue
        new = {(kind, column): word for column, word in zip(columns, words.split(), strict=True)}
        assert not cells.keys() & new.keys(), f"{kind} is twice in a table"
        cells |= new
    return cells


CELLS = read_cells()


def test_the_table_is_complete() -> None:
    assert {kind for kind, _ in CELLS} == {*KINDS} and {column for _, column in CELLS} == {*COLUMNS}
    assert len(CELLS) == len(KINDS) * len(COLUMNS)
    assert {word.partition("?")[0] for word in CELLS.values()} <= {RIGHT, *REFUSALS}


def test_every_command_has_a_column_or_a_reason() -> None:
    assert {*COMMANDS} == COVERED | {*OUTSIDE} and not COVERED & {*OUTSIDE}


def test_every_member_of_a_family_has_a_kind() -> None:
    families = {
        "tracker": {
            module.name
            for module in pkgutil.iter_modules(tracking.__path__)
            if isinstance(getattr(importlib.import_module(f"sweeper.tracking.{module.name}"), "TRACKER", None), type)
        },
        "searcher": {*SEARCHERS},
        "packing": {*get_args(Replicates.model_fields["packing"].annotation)},
        "predictions of a loop": {LOGITS, PROBABILITIES},
        "file of predictions": {*FORMS},
        "store": _members("trainables/files/stores", "    StoreKind("),
    }
    assert {family: {*shown} for family, shown in SHOWN_BY.items()} == families
    assert {kind for shown in SHOWN_BY.values() for kind in shown.values()} <= {*KINDS}


def _members(folder: str, line: str) -> set[str]:
    """Return the modules of a folder, files or folders, one of whose lines begins so."""
    texts = {file: f"\n{file.read_text()}" for file in (ROOT / folder).rglob("*.py") if file.stem != "base"}
    files = [file.relative_to(ROOT / folder) for file, text in texts.items() if f"\n{line}" in text]
    return {file.parts[0].removesuffix(".py") for file in files}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    with ExitStack() as stack:
        yield Workshop(tmp_path_factory.mktemp("matrix"), stack)


def _marked(kind: str, column: str, word: str) -> object:
    word, _, item = word.partition("?")
    marks = [pytest.mark.xfail(strict=True, reason=f"item {item}")] if item else []
    return pytest.param(kind, column, word, id=f"{kind}-{column}", marks=marks)


@pytest.mark.integration
@pytest.mark.parametrize(("kind", "column", "word"), [_marked(*place, word) for place, word in sorted(CELLS.items())])
def test_a_cell(kind: str, column: str, word: str, workshop: Workshop) -> None:
    made = workshop.made(KINDS[kind].sweep)
    case = Case(workshop, KINDS[kind], made, KINDS[kind].of(made))
    if word == RIGHT:
        COLUMNS[column](case)
        return
    with pytest.raises(SweeperError) as refused:
        COLUMNS[column](case)
    error = refused.value
    assert "\n" not in error.message and error.remedy and error.exit_code == 2
    REFUSALS[word](case, error)
