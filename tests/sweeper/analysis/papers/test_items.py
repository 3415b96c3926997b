"""Every item of every paper has a counterpart that exists, or a sentence that says why it has none."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from search_spaces.published_numbers import published_tables
from sweeper.analysis.claims import CLAIMS
from sweeper.analysis.papers import trained_pictures
from sweeper.analysis.papers.focal_map_figures import FIGURES
from sweeper.analysis.papers.items import items
from sweeper.api.papers import PAPERS
from sweeper.cli.main import app

KNOWN = {"cells": set(published_tables()), "drawn": set(FIGURES), "picture": set(vars(trained_pictures)),
         "claim": set(CLAIMS), "check": {"tests/trainables/metrics/test_evaluate.py"}}  # fmt: skip


def test_counterparts_exist_and_items_without_one_say_why() -> None:
    assert {item.paper for item in items()} == set(PAPERS)
    for item in items():
        assert item.counterparts or item.note, item
        assert all(name in KNOWN[kind] for kind, name in item.counterparts), item
    assert max(Counter((item.paper, item.item) for item in items()).values()) == 1


@pytest.mark.parametrize("kind", ["cells", "drawn"])
def test_every_table_and_computed_figure_belongs_to_an_item(kind: str) -> None:
    named = {name for item in items() for each, name in item.counterparts if each == kind}
    of_maps = {"temperatures", "bounds", "confidence"}  # behind cells
    assert named == KNOWN[kind] - of_maps


def test_the_command_prints_the_items_of_a_paper() -> None:
    done = CliRunner().invoke(app, ["paper", "mukhoti", "--items"])
    assert done.exit_code == 0 and "Fig. 9" in done.stdout and "not identified" in done.stdout
    listed = json.loads(CliRunner().invoke(app, ["paper", "posterior", "--items", "--json"]).stdout)
    assert {"paper": "posterior", "item": "Fig. 2", "status": "1 cell by formula", "note": ""} in listed
