"""What `sweeper spaces` shows is complete and readable."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from search_spaces import packaged_files
from sweeper.space.catalogue import (
    KINDS,
    components_table,
    list_components,
    list_spaces,
    spaces_table,
    valid_text,
    value_text,
)
from tests.sweeper.small_registries import REGISTRIES


def test_every_shipped_file_is_listed_with_its_question():
    entries = list_spaces()
    assert list(entries) == sorted(packaged_files())
    assert all(header["question"] and header["cost"] and header["command"] for header in entries.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_component_that_exists_is_listed(kind):
    components = list_components(kind)
    assert components
    assert all(valid_text(h) and value_text(h.default) for component in components for h in component.hyperparameters)


def test_hyperparameters_in_words():
    losses = {entry.name: entry for entry in list_components("losses", REGISTRIES)}
    coverage = losses["selective_risk"].hyperparameters[0]
    assert (coverage.name, valid_text(coverage), value_text(coverage.default)) == ("coverage", "(0, 1]", "0.8")
    optimizer = {h.name: h for h in list_components("optimizers", REGISTRIES)[0].hyperparameters}
    assert valid_text(optimizer["milestones"]) == "list of numbers in [0, inf)"
    width = list_components("architectures", REGISTRIES)[0].hyperparameters[0]
    assert valid_text(width) == "whole number in [1, inf)"


@pytest.mark.parametrize("kind", KINDS)
def test_tables_show_ranges_as_they_are(kind):
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(components_table(kind, REGISTRIES))
    text = console.export_text()
    assert kind != "optimizers" or "required" in text
    if kind == "losses":  # square brackets are not markup
        assert "(0, 1]" in text
        assert "[0, inf)" in text


@pytest.mark.parametrize("width", [80, 140])
def test_names_of_search_spaces_are_whole_enough_to_paste(width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(spaces_table())
    first = [line.split(" ", 1)[0] for line in console.export_text().splitlines()]
    assert set(list_spaces()) <= set(first)


def test_an_unknown_kind():
    with pytest.raises(KeyError, match="'loss' is not one of losses"):
        list_components("loss", REGISTRIES)
