"""A few hundred inputs of `make fuzz`; and the fuzzing itself finds faults and hangs."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzzing import __main__ as fuzzing, folders, imports, places, spaces, tables
from tests.sweeper.inline_sweep import Inline
from tests.sweeper.synthetic_sweep import write_sweep

SEED = 12


@pytest.mark.integration
def test_structures_end_in_a_plan_or_a_clear_error() -> None:
    counts = fuzzing.fuzz(spaces.structured, spaces.check_values, 150, SEED)
    assert counts[spaces.VALID] > 2 and counts[spaces.REFUSED] > 30, counts


@pytest.mark.integration
def test_garbled_bytes_end_in_a_plan_or_a_clear_error(tmp_path: Path) -> None:
    counts = fuzzing.fuzz(spaces.garbled, lambda content: spaces.check_bytes(content, tmp_path), 80, SEED)
    assert counts[spaces.REFUSED] > 10, counts


@pytest.mark.integration
def test_damaged_folders_are_read_or_refused(tmp_path: Path) -> None:
    folder = folders.Folder(Inline(tmp_path).run("fuzzed").paths.root, tmp_path / "damaged")
    counts = fuzzing.fuzz(folders.cases, lambda case: folder.check(*case), 15, SEED)
    assert counts[folders.REFUSED] > 4, counts


@pytest.mark.integration
def test_commands_neither_wait_for_nor_follow_odd_things_in_the_places_of_files(tmp_path: Path) -> None:
    odd = places.Places(Inline(tmp_path).run("fuzzed").paths.root, tmp_path / "odd")
    assert odd.fuzz(12, SEED).total() == 12


def test_files_of_predictions_are_read_or_refused_and_nothing_is_dropped(tmp_path: Path) -> None:
    counts = imports.Imports(tmp_path / "files").fuzz(150, SEED)
    assert counts[imports.READ] > 20 and counts[imports.REFUSED] > 50, counts


@pytest.mark.integration
def test_edited_tables_are_read_or_refused(tmp_path: Path) -> None:
    sound = write_sweep(tmp_path / "results" / "s", configurations=4, samples=20, failures=1)
    edited = tables.Tables(sound, tmp_path / "edited")
    edited.ways = edited.ways[:3]  # without the report and the comparison, which take seconds
    cases = [("trials", "status", tables.texts), ("decisions", "quota", tables.whole_numbers),
             ("epochs", "val_nll", tables.structs), ("evaluations", "ece", tables.nulls)]  # fmt: skip
    counts = sum((edited.check(*case) for case in cases), Counter[str]())
    assert counts[tables.READ] > 3 and counts[tables.REFUSED] > 1, counts


def test_a_fault_is_found_and_shrunk() -> None:
    def check(number: int) -> str:
        if number > 1000:
            raise KeyError(number)
        return "fine"

    with pytest.raises(KeyError, match="1001"):
        fuzzing.fuzz(st.integers(0, 10**6), check, 100, SEED)


def test_a_hang_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "PATIENCE", 0.05)

    def check(_: int) -> str:
        while True:
            pass

    with pytest.raises(fuzzing.HangError):
        fuzzing.fuzz(st.just(0), check, 1, SEED)
