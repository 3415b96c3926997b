"""Names, hashes and seeds are functions of what they name, and names stay inside the results folder."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from sweeper.core import ids
from sweeper.core.errors import SweeperError
from sweeper.core.ids import (
    ReplicateSeeds,
    SweepPaths,
    allow,
    configuration_index,
    configuration_seed,
    is_allowed,
    is_sweep_name,
    replicate_seed,
    seed_from,
    trial_name,
)
from sweeper.core.schemas import TRIAL_COLUMNS
from sweeper.journal.state import SweepState
from sweeper.scheduling.asha import Halving
from sweeper.space.loading import build_spec
from sweeper.tables.rows import TrialsTable
from tests.sweeper.fake_executor import FakeSweep
from tests.sweeper.fake_replicates import ApartSweep
from tests.sweeper.small_registries import MINIMAL, REGISTRIES
from trainables.registry.configuration import Configuration

SCALARS = st.one_of(st.booleans(), st.integers(-1000, 1000), st.floats(allow_nan=False), st.text(max_size=5))
CONFIGURATIONS = st.recursive(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), SCALARS, max_size=4),
    lambda inner: st.dictionaries(st.text("abc", min_size=1, max_size=3), st.one_of(SCALARS, inner), max_size=4),
    max_leaves=6,
)


@given(st.integers(0, 10**7))
def test_trial_names_read_back_and_sort_as_their_numbers_do(index):
    assert configuration_index(trial_name(index)) == index
    assert len(trial_name(index)) >= 6
    if index < 99_999:
        assert trial_name(index) < trial_name(index + 1)


@pytest.mark.parametrize(
    "name", ["", "7", "c7", "c0007", "x00007", "c00007 ", "c00007/..", "c-0007", "c00007\n", "c" + "9" * 5000]
)
def test_other_names_are_no_trials(name):
    with pytest.raises(SweeperError, match="not a trial's name"):
        configuration_index(name)


def test_names_that_could_escape_or_confuse_are_no_sweeps():
    assert all(map(is_sweep_name, ["a", "quickstart", "quickstart-2", "A.b_c-9", "0", "x" * 100]))
    odd = ["", ".", "..", "../x", "a/b", "/etc", "-rf", ".hidden", "a b", "a\n", "x" * 101, "sweep\x00", "é"]
    assert not any(map(is_sweep_name, odd))


def test_seeds_are_fixed_for_ever():
    """Written down once: another value would draw other configurations from every old search space."""
    assert configuration_seed(0, 0) == 2223197901894683806
    assert replicate_seed(0, 7, 1) == 710898912964190610


def test_seeds_differ_and_fit_every_generator():
    seeds = {replicate_seed(s, i, r) for s in range(5) for i in range(40) for r in range(5)}
    seeds |= {configuration_seed(s, i) for s in range(5) for i in range(40)}
    assert len(seeds) == 5 * 40 * 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_from("a", 12) != seed_from("a1", 2)


def test_the_code_version_follows_sources_and_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "losses").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "losses" / "focal.py").write_text("gamma = 2")

    def version() -> str:
        ids.code_version.cache_clear()
        return ids.code_version()

    monkeypatch.setattr(ids.trainables, "__file__", str(tmp_path / "__init__.py"))
    try:
        before = version()
        assert version() == before
        (tmp_path / "losses" / "focal.py").write_text("gamma = 3")
        edited = version()
        monkeypatch.setattr(ids.metadata, "version", lambda package: "0")
        assert len({before, edited, version()}) == 3
    finally:
        ids.code_version.cache_clear()


HALVING = Halving("val_nll", "min", 27, 3, 3)
COMMON = ReplicateSeeds(0, 2, common=True)


def test_a_process_is_given_the_same_seeds_for_every_configuration(tmp_path):
    driver = FakeSweep(SweepPaths(tmp_path / "a"), HALVING, 3).driver(changes={"seeds": COMMON})
    given = [described.seeds for described in driver.work.describe([0, 1, 2])]
    assert given == [[replicate_seed(0, 7, r, common=True) for r in range(2)]] * 3
    assert len(set(given[0])) == 2
    apart = ApartSweep(SweepPaths(tmp_path / "b"), HALVING, 3).driver(changes={"seeds": COMMON})
    assert [apart.work.describe([index, 1])[0].seeds for index in range(2)] == [[given[0][1]]] * 2


def test_common_seeds_belong_to_no_configuration():
    own = {replicate_seed(0, configuration, r) for configuration in range(50) for r in range(5)}
    assert own.isdisjoint({replicate_seed(0, 0, r, common=True) for r in range(5)})


@pytest.mark.parametrize(("seeds", "distinct"), [("own", 4), ("common", 2)])
def test_the_trials_table_says_so(seeds, distinct):
    spec = build_spec({**MINIMAL, "replicates": {"count": 2, "seeds": seeds}}, REGISTRIES)
    table = TrialsTable("s", pa.schema(TRIAL_COLUMNS), [Configuration({}), Configuration({})], spec.replicate_seeds)
    rows = table.batch(SweepState(2)).to_pylist()
    assert [(row["trial"], row["replicate"]) for row in rows] == [(f"c0000{c}", r) for c in range(2) for r in range(2)]
    assert len({row["seed"] for row in rows}) == distinct


def test_what_was_allowed_is_remembered_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "cache"))
    assert not is_allowed("../../x")
    allow("../../x")
    assert is_allowed("../../x") and not is_allowed("x")
    [mark] = (tmp_path / "cache" / "allowed").iterdir()
    assert mark.stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_asks_again(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path / "file" / "cache"))
    allow("x")
    assert not is_allowed("x")
