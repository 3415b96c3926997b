"""Short forms are written out before the structure is checked, and `--set` knows the same ones."""

from __future__ import annotations

import pytest

from sweeper.space.file import parse_document
from sweeper.space.overrides import apply_overrides
from sweeper.space.structure import SHORT_FORMS, written_out


def test_a_scalar_stands_for_its_short_forms_key():
    short = {"dataset": "digits", "scheduler": "fifo", "searcher": "grid", "replicates": 2, "evaluation": None}
    assert written_out(short) == {
        "dataset": {"name": "digits"},
        "scheduler": {"name": "none"},
        "searcher": {"name": "grid"},
        "replicates": {"count": 2},
    }
    assert short["dataset"] == "digits"  # what was given is left as it is


@pytest.mark.parametrize("path", SHORT_FORMS)
def test_an_override_goes_through_a_short_form(path):
    document = parse_document(
        b"{dataset: a, scheduler: a, searcher: a, replicates: a, keep: a, "
        b"space: {loss: a, architecture: a, optimizer: a}}"
    )
    apply_overrides(document, [f"{path}.other=1"])
    assert not document.faults
    here = document.values
    for key in path.split("."):
        here = here[key]
    assert here == {SHORT_FORMS[path]: "a", "other": 1}
