"""Every item of every paper has a counterpart that exists, or a sentence that says why it has none."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from search_spaces.papers import prediction_pictures, trained_pictures
from search_spaces.papers.claims import CLAIMS
from search_spaces.papers.commands import PAPERS
from search_spaces.papers.computed_figures import FIGURES
from search_spaces.papers.page import DEVIATION, FOLDER, items
from search_spaces.papers.published_numbers import published_tables
from tests.running import typed

ROOT = Path(__file__).parents[3]
KNOWN = {"cells": set(published_tables()), "drawn": set(FIGURES), "claim": set(CLAIMS),
         "picture": {*vars(trained_pictures), *vars(prediction_pictures)},
         "check": {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")}}  # fmt: skip


def test_counterparts_exist_and_items_without_one_say_why() -> None:
    assert {item.paper for item in items()} == set(PAPERS)
    for item in items():
        assert item.counterparts, f"{item.item} of {item.paper} has nothing here"
        assert all(name in KNOWN[kind] for kind, name in item.counterparts), item
    assert max(Counter((item.paper, item.item) for item in items()).values()) == 1


@pytest.mark.parametrize("kind", ["cells", "drawn"])
def test_every_table_and_computed_figure_belongs_to_an_item(kind: str) -> None:
    named = {name for item in items() for each, name in item.counterparts if each == kind}
    of_maps = {"temperatures", "bounds", "confidence"}  # behind cells
    assert named == KNOWN[kind] - of_maps


def test_every_deviation_belongs_to_an_item_and_says_what_and_why() -> None:
    with (FOLDER / "deviations.csv").open(newline="", encoding="utf-8") as file:
        told = list(csv.DictReader(file))
    assert sum(len(item.deviations) for item in items()) == len(told)
    assert all(row[key].strip() for row in told for key in DEVIATION)


def test_the_command_prints_the_items_of_a_paper() -> None:
    done = typed("paper", "mukhoti", "--items")
    assert done.returncode == 0 and "Fig. 9" in done.stdout and "not identified" in done.stdout
    assert "26.36 for" in done.stdout, "a deviation's quote"
    listed = json.loads(typed("paper", "posterior", "--items", "--format", "json").stdout)
    (second,) = [each for each in listed if each["item"] == "Fig. 2"]
    assert second == {
        "paper": "posterior", "item": "Fig. 2", "status": "1 cell by formula", "note": "", "deviations": []
    }  # fmt: skip
