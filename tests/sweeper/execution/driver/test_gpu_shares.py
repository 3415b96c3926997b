"""From measured bytes to a share of a card, and to a larger one after memory ran out."""

import json

import numpy as np
import pytest

from sweeper.core.ids import SweepPaths
from sweeper.execution.driver.context import Shares
from sweeper.execution.driver.gpu_shares import (
    DEFAULT_SHARE,
    MARGIN,
    MOST_PROCESSES,
    CardMemory,
    CardShares,
    memory_key,
    share_for,
)
from sweeper.execution.driver.judging import next_try
from sweeper.journal.state import TrialState, fold
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.run_to_end import RunToEnd
from tests.sweeper.fake_executor import CRASHED, FakeSweep
from tests.sweeper.fake_replicates import ApartSweep
from tests.sweeper.records import fields
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import CRASH, GPU_OUT_OF_MEMORY, Failure
from trainables.worker.trial_settings import CONTEXT_BYTES, memory_cap

GIB = 2**30
OUT = Failure(GPU_OUT_OF_MEMORY)


def _needs(gib, total=80.0):
    return CardMemory(int(gib * GIB), int(total * GIB), "a card")


@pytest.mark.parametrize(
    ("needed", "share"), [(1, 1 / 16), (16, 0.25), (20, 1 / 3), (25, 0.5), (33, 0.5), (34, 1.0), (79, 1.0), (80, 1.0)]
)
def test_a_process_gets_the_smallest_even_share_that_holds_it_with_its_margin(needed, share):
    assert share_for(_needs(needed)) == pytest.approx(share, abs=1e-4)


def test_shares_hold_their_processes_and_fit_on_the_card_together():
    rng = np.random.default_rng(0)
    for used, total in rng.uniform(0.001, 1.0, size=(500, 2)) * [200, 192]:
        share = share_for(_needs(used, total))
        processes = int(1 / share)
        assert 1 <= processes <= MOST_PROCESSES and processes * share <= 1
        assert share * 10_000 == pytest.approx(round(share * 10_000)), "Ray counts in ten-thousandths"
        if share < 1:
            assert share * total >= used * MARGIN * 0.998
        if 1 < processes < MOST_PROCESSES:
            assert total / (processes + 1) < used * MARGIN, "one more would not fit"


def test_after_running_out_a_share_doubles_up_to_a_whole_card():
    shares, trial = (1 / 16, 0.3333, 0.5, 0.6666, 1.0, 2.0), TrialState(configuration=0)
    assert [next_try(OUT, trial, share, 2)[1] for share in shares] == [
        0.125, pytest.approx(0.6666), 1.0, 1.0, None, None
    ]  # fmt: skip


def test_running_out_counts_against_retries_only_on_a_whole_card():
    failure, larger, given_up = next_try(OUT, TrialState(configuration=0), 0.25, 0)
    assert larger == 0.5 and not failure.counts and not given_up
    assert failure.values == {"share": 0.25, "next_share": 0.5}
    for failure, share in ((OUT, 1.0), (OUT, None), (Failure(CRASH), 0.25)):
        assert next_try(failure, TrialState(configuration=0), share, 0) == (failure, None, True)


def test_torch_may_allocate_a_share_less_what_cuda_takes_beside_it():
    total = 80 * GIB
    assert memory_cap(0.25, total) == pytest.approx(0.25 - CONTEXT_BYTES / total)
    assert [memory_cap(share, total) for share in (0, 1, 2.0)] == [1.0, 1.0, 1.0]
    assert memory_cap(1 / 16, 4 * GIB) == pytest.approx(1 / 32), "a small share is not eaten up"


def _configuration(name, batch_size=128, lr=0.1):
    return Configuration(
        {
            "architecture": {"name": name},
            "loss": {"name": "focal", "gamma": lr},
            "optimizer": {"name": "sgd", "lr": lr, "batch_size": batch_size},
        }
    )


def test_each_kind_is_measured_once_and_a_resumed_sweep_measures_nothing(tmp_path):
    configurations = [_configuration(name, size, lr) for lr in (0.1, 0.2) for name in "ab" for size in (64, 128)]
    needs = {("a", 64): 4.0, ("a", 128): 18.0, ("b", 64): 30.0, ("b", 128): 70.0}
    probed = []

    def probe(index):
        probed.append(index)
        configuration = configurations[index]
        return _needs(needs[configuration["architecture"]["name"], configuration["optimizer"]["batch_size"]])

    facts = {"replicates": 5, "packing": "lanes"}
    shares = CardShares(configurations, facts, tmp_path, probe)
    assert probed == [0, 1, 2, 3]
    expected = [share_for(_needs(gib)) for gib in needs.values()]
    assert [shares(index) for index in range(8)] == expected * 2
    assert (shares.smallest, shares.largest) == (min(expected), max(expected))
    again = CardShares(configurations, facts, tmp_path, lambda index: pytest.fail("it was measured before"))
    assert [again(index) for index in range(8)] == expected * 2
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert {entry["measured_for"]["batch_size"] for entry in kept} == {64, 128}
    other = CardShares(configurations, {**facts, "packing": "sequential"}, tmp_path, lambda index: _needs(70))
    assert other(0) == 1.0, "another packing needs another measurement"


def test_what_could_not_be_measured_gets_the_default_and_is_measured_next_time(tmp_path):
    configurations = [_configuration("a")]
    assert CardShares(configurations, {}, tmp_path, lambda index: None)(0) == DEFAULT_SHARE
    assert CardShares(configurations, {}, tmp_path, lambda index: _needs(70))(0) == 1.0


def test_a_kind_says_nothing_of_values_that_cost_no_memory():
    assert memory_key(_configuration("a", lr=0.1), {}) == memory_key(_configuration("a", lr=0.3), {})
    assert memory_key(_configuration("a", 64), {}) != memory_key(_configuration("a", 128), {})


HALVING = Halving("val_nll", "min", 9, 3, 3)


@pytest.mark.parametrize("kind", [FakeSweep, ApartSweep])
def test_a_trial_climbs_to_a_whole_card_alone_and_a_resumed_driver_remembers(tmp_path, kind):
    sweep = kind(SweepPaths(tmp_path / "sweep"), HALVING, 3, retries=1)
    driver = sweep.driver(shares=Shares(lambda index: 0.125))
    driver.begin()
    first, second = driver.work.next(), driver.work.next()
    driver.on_started(second)
    seen = []
    for _ in range(3):
        driver.on_started(first)
        seen.append(driver.work.share_of(first))
        driver.on_failure(first, OUT)
        assert driver.work.next() == first, "before anything else"
    assert seen == [0.125, 0.25, 0.5]
    assert driver.work.share_of(first) == 1.0 and driver.work.share_of(second) == 0.125
    again = sweep.driver(shares=Shares(lambda index: 0.125))
    again.begin()
    assert again.work.share_of(first) == 1.0 and again.work.share_of(second) == 0.125
    assert again.work.next() == first
    for _ in range(2):
        again.on_started(first)
        again.on_failure(first, OUT)
        if again.work.next() != first:
            break
    records = [fields(r) for r in sweep.records() if r.kind == "failed"]
    assert [body["failure"]["counts"] for body in records] == [False] * 3 + [True] * 2
    trial = fold(sweep.records(), 3).trials[0]
    ended = trial.replicates[0].status if sweep.apart else trial.status
    assert ended == "failed"


def test_several_configurations_in_a_process_are_tried_alone_first_and_only_with_their_like(tmp_path):
    to_the_end = RunToEnd("val_nll", "min", 9)
    sweep = FakeSweep(SweepPaths(tmp_path / "sweep"), to_the_end, 40)
    driver = sweep.driver(shares=Shares(lambda index: 0.25 if index < 3 else 0.5))
    driver.begin()
    together = driver.work.next()
    assert together == [0, 1, 2]
    driver.on_started(together)
    driver.on_failure(together, OUT)
    assert driver.work.next() == [0]
    assert driver.work.share_of([0]) == 0.25, "which of them it was is not known yet"


def test_without_shares_nothing_changes(tmp_path):
    sweep = FakeSweep(SweepPaths(tmp_path / "sweep"), HALVING, 2, retries=0)
    driver = sweep.driver()
    driver.begin()
    assignment = driver.work.next()
    assert driver.work.share_of(assignment) is None
    driver.on_started(assignment)
    driver.on_failure(assignment, CRASHED)
    assert "share" not in [fields(r) for r in sweep.records()][-1]
