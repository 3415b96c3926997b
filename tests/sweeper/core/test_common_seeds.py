"""`replicates: {seeds: common}`: replicate r has one seed in every configuration, wherever a seed is written down."""

from __future__ import annotations

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.ids import ReplicateSeeds, SweepPaths, replicate_seed
from sweeper.core.schemas import evaluation_columns, table_schemas
from sweeper.results import load
from sweeper.scheduling.asha import Halving
from sweeper.space.configurations import column_types
from sweeper.space.loading import build_spec
from sweeper.tables.writer import ParquetSink
from tests.sweeper.fake_executor import FakeSweep
from tests.sweeper.fake_replicates import ApartSweep
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

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
def test_the_trials_table_says_so(tmp_path, seeds, distinct):
    values = {**MINIMAL["space"], "loss": {"grid": ["cross_entropy", "focal"]}}
    spec = build_spec({**MINIMAL, "space": values, "replicates": {"count": 2, "seeds": seeds}}, REGISTRIES)
    schemas = table_schemas(column_types(spec.space), 10, evaluation_columns(["temperature"]))
    paths = SweepPaths(tmp_path / "sweep")
    paths.root.mkdir()
    known = [{"loss": {"name": "cross_entropy"}}, {"loss": {"name": "focal"}}]
    common = spec.replicates.common_seeds
    ParquetSink(paths, schemas, known, ReplicateSeeds(0, 2, common)).close()
    rows = load(paths.root).rows("SELECT trial, replicate, seed FROM trials ORDER BY ALL")
    assert [(row["trial"], row["replicate"]) for row in rows] == [(f"c0000{c}", r) for c in range(2) for r in range(2)]
    assert len({row["seed"] for row in rows}) == distinct


def test_the_same_training_twice_is_refused():
    values = {**MINIMAL["space"], "loss": {"grid": ["cross_entropy", "focal"]}}
    replicates = {"count": 2, "seeds": "common"}
    with pytest.raises(InvalidSearchSpace, match="samples = 3, but a grid point has only 1 configuration"):
        build_spec({**MINIMAL, "space": values, "replicates": replicates, "samples": 3}, REGISTRIES)
