"""Within a stratum decisions are those of one pool; between strata nothing is compared."""

import dataclasses

import pytest

from sweeper.scheduling.base import decide
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.scheduling.strata import stratified, stratum_name
from tests.sweeper.scheduling.journals import CONFIGURATIONS, HALVING, STRATA, WITHIN, played
from trainables.registry.configuration import Configuration


def test_names_of_strata():
    values = Configuration({"architecture": {"name": "mlp"}, "loss": {"name": "focal", "gamma": 2.5, "score": "msp"}})
    assert stratum_name(values, ["architecture", "loss"]) == "mlp, focal"
    assert stratum_name(values, ["loss.score"]) == "score msp"
    assert stratum_name(values, ["loss.gamma", "loss.nu"]) == "gamma 2.5, no nu"


@pytest.mark.parametrize("scheduler", [HALVING, MedianStopping("val_nll", "max", 12, 3)])
@pytest.mark.parametrize("seed", range(20))
def test_one_stratum_decides_as_no_strata_to_the_bit(scheduler, seed):
    made = played(stratified(scheduler, WITHIN, [CONFIGURATIONS[0]] * 24), seed)
    expected = played(scheduler, seed)
    assert {decision.stratum for *_, decision in made} == {"mlp, cross_entropy"}
    bare = [(*arrival, dataclasses.replace(d, stratum=None)) for *arrival, d in made]
    for mine, others in zip(bare, expected, strict=True):
        assert mine[3] == others[3]


@pytest.mark.parametrize("seed", range(20))
def test_each_stratum_decides_as_if_it_were_alone(seed):
    made = played(STRATA, seed, trials=60)
    names = {stratum_name(values, WITHIN) for values in CONFIGURATIONS}
    assert {decision.stratum for *_, decision in made} == names
    for name in names:
        alone = HALVING.begin()
        for configuration, epoch, value, decision in made:
            if decision.stratum == name:
                expected = decide(alone, configuration, epoch, value)
                assert decision == dataclasses.replace(expected, stratum=name)
                alone.add(epoch, configuration, value)
