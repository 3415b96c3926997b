"""Short forms are written out before the structure is checked, and `--set` knows the same ones."""

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.space.file import apply_overrides, parse_document
from sweeper.space.loading import build_spec
from sweeper.space.spec import SHORT_FORMS, spec_of, written_out
from tests.sweeper.small_registries import MINIMAL, REGISTRIES


def test_a_scalar_stands_for_its_short_forms_key():
    short = {"dataset": "digits", "scheduler": "none", "searcher": "grid", "replicates": 2, "evaluation": None}
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
        b"{dataset: a, scheduler: a, searcher: a, replicates: a, keep: a, objective: a, "
        b"space: {loss: a, architecture: a, optimizer: a}}"
    )
    apply_overrides(document, [f"{path}.other=1"])
    assert not document.faults
    here = document.values
    for key in path.split("."):
        here = here[key]
    assert here == {SHORT_FORMS[path]: "a", "other": 1}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"space": {"x": 1}}, "space.loss: missing"),
        ({"dataset": {"x": 1}}, "dataset.name: missing"),
        ({"samples": "x"}, "samples"),
    ],
)
def test_a_resolved_space_that_is_only_read_has_what_its_readers_need(change, said):
    values = build_spec(MINIMAL, REGISTRIES).resolved()
    assert spec_of(values, "sweep.yaml").resolved() == values
    with pytest.raises(InvalidSearchSpace, match=said):
        spec_of({**values, **change}, "sweep.yaml")
