"""What `docs/reference/contracts.json` promises is what this version has."""

import json

import pytest

import sweeper
from tests.release.contracts import FILE, exported_model, without_a_model
from tests.sweeper.exporting.swept import DIGITS, swept

PROMISED = json.loads(FILE.read_text("utf-8"))


@pytest.fixture(scope="module")
def found():
    return without_a_model()


@pytest.mark.parametrize("part", sorted(set(PROMISED) - {"exported_model"}))
def test_a_part_is_as_promised(part: str, found) -> None:
    assert found[part] == PROMISED[part], "if this is meant: `make contracts`, and a line in the changelog"


@pytest.mark.integration
def test_an_exported_model_has_the_promised_files_and_keys(tmp_path) -> None:
    done = swept(tmp_path, "digits", *DIGITS)
    sweeper.export(done.name, tmp_path / "model", replicate="0", output=done.root.parent)
    assert exported_model(tmp_path / "model") == PROMISED["exported_model"]
