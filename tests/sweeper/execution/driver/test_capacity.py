"""How many trials fit, what a sweep says while it waits, and when it gives up."""

import random
from pathlib import Path
from typing import Any

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.driver.capacity import (
    INFEASIBLE_LOOKS,
    LOOK_SECONDS,
    CapacityWatch,
    ClusterView,
    fit_resources,
    view_of_first_autoscaler,
)
from sweeper.execution.driver.steering import Steering
from sweeper.space.spec import Resources
from trainables.worker.trial_reports import Reason

HEAD = {"node:__internal_head__": 1.0, "memory": 1e9}
TRIAL = {"cpu": 1.0, "gpu": 0.5}
WORKER = {"CPU": 4.0, "GPU": 1.0}


class Bench:
    """A watch over views that a test sets, with a clock it moves."""

    def __init__(self, patience: float = 600, at_least: int = 1) -> None:
        self.now, self.said, self.view = 0.0, list[str](), ClusterView((HEAD,), autoscales=True)
        self.answers = True
        self.slots: list[int] = []
        self.stop: str | None = None
        self.watch = CapacityWatch(
            lambda: self.view if self.answers else None,
            TRIAL,
            self.said.append,
            at_least=at_least,
            patience=patience,
            clock=lambda: self.now,
        )

    def turn(self, times: int = 1, **changes: Any) -> None:
        self.view = ClusterView(**{**vars(self.view), **changes})
        for _ in range(times):
            self.now += LOOK_SECONDS
            steering = Steering([self.watch], Path("none"), lambda: self.now)
            steering.follow()
            self.slots += [] if steering.slots is None else [steering.slots]
            self.stop = self.stop or steering.closing


def test_trials_fit_node_by_node_as_counted_one_by_one() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        nodes = tuple({"CPU": float(rng.randint(0, 8)), "GPU": float(rng.randint(0, 4))} for _ in range(5))
        cpu, gpu = rng.choice([0.5, 1, 2, 3]), rng.choice([0, 0.1, 0.2, 0.25, 0.5, 1, 2])
        counted = 0
        for node in nodes:
            left_cpu, left_gpu = node["CPU"] * 100, node["GPU"] * 100
            while left_cpu >= cpu * 100 and left_gpu >= round(gpu * 100):
                left_cpu, left_gpu, counted = left_cpu - cpu * 100, left_gpu - round(gpu * 100), counted + 1
        assert ClusterView(nodes).trials_at_once({"cpu": cpu, "gpu": gpu}) == counted, seed


def test_a_trial_does_not_span_nodes() -> None:
    two = ClusterView(({"CPU": 1.0}, {"CPU": 1.0}))
    with pytest.raises(SweeperError, match="no trial fits: a trial needs 2 cpu, 0 gpu, the cluster has 2 cpu"):
        fit_resources(Resources(cpu=2, gpu=0), two)


def test_a_growing_cluster_may_have_room_for_none() -> None:
    assert fit_resources(Resources(gpu=0.5), ClusterView((HEAD,), autoscales=True)) == ({"cpu": 1.0, "gpu": 0.5}, 0)


def test_auto_cannot_be_told_before_the_first_node() -> None:
    with pytest.raises(SweeperError, match=r"resources.gpu is auto[\s\S]*--set resources.gpu=0.25"):
        fit_resources(Resources(), ClusterView((HEAD,), autoscales=True))
    assert fit_resources(Resources(), ClusterView((WORKER,), autoscales=True)) == ({"cpu": 1.0, "gpu": 0.25}, 4)


def test_the_watch_tells_each_change_once_and_steers_the_driver() -> None:
    bench = Bench()
    bench.turn(3)
    bench.turn(3, starting={"gpu-worker": 2})
    bench.turn(3, nodes=(HEAD, WORKER), starting={"gpu-worker": 1})
    bench.turn(3, nodes=(HEAD, WORKER, WORKER), starting={})
    assert bench.said == [
        "waiting for nodes: a trial needs 1 CPU, 0.5 GPU, the cluster has 0 CPU, 0 GPU; none is being started yet",
        "waiting for nodes: a trial needs 1 CPU, 0.5 GPU, the cluster has 0 CPU, 0 GPU; starting 2 gpu-worker",
        "2 trials at once on 1 node; starting 1 gpu-worker",
        "4 trials at once on 2 nodes",
    ]
    assert bench.slots == [2] * 3 + [4] * 3
    assert bench.stop is None


def test_a_cluster_that_may_grow_keeps_assignments_small() -> None:
    bench = Bench(at_least=200)
    bench.turn(nodes=(HEAD, WORKER))
    assert bench.slots == [200]


def test_patience_ends_and_says_what_the_autoscaler_met() -> None:
    bench = Bench(patience=60)
    bench.turn(25, failures=("gpu-worker: InsufficientInstanceCapacity",))
    assert bench.stop is None
    bench.turn(10)
    assert bench.stop is not None
    assert (bench.stop.kind, bench.stop.message) == ("no_node", "gpu-worker: InsufficientInstanceCapacity")


def test_patience_starts_again_when_the_last_node_goes() -> None:
    bench = Bench(patience=60)
    bench.turn(20)
    bench.turn(100, nodes=(HEAD, WORKER))
    bench.turn(29, nodes=(HEAD,))
    assert bench.stop is None
    bench.turn(3)
    assert bench.stop is not None


def test_what_no_node_type_holds_is_given_up_soon_but_not_at_the_first_look() -> None:
    bench = Bench()
    wanted = {"CPU": 1.0, "GPU": 0.5}
    bench.turn(INFEASIBLE_LOOKS - 1, infeasible=(wanted,))
    assert bench.stop is None
    bench.turn(1, infeasible=())
    bench.turn(INFEASIBLE_LOOKS, infeasible=({"CPU": 64.0},))
    assert bench.stop is None, "what others ask for is their business"
    bench.turn(3 * INFEASIBLE_LOOKS, infeasible=(wanted,), starting={"gpu-worker": 16})
    assert bench.stop is None, "all that may be started are starting: the rest has no place yet"
    bench.turn(INFEASIBLE_LOOKS, infeasible=(wanted,), starting={})
    assert bench.stop == Reason("no_node_type", {"needs": "1 CPU, 0.5 GPU"})


def test_the_first_autoscaler_is_told_from_a_cluster_without_one() -> None:
    without = {"autoscaler_report": {"active_nodes": {"node_ffff0000": 1}, "pending_launches": {}, "pending_nodes": []}}
    assert not view_of_first_autoscaler((HEAD,), without).autoscales
    assert not view_of_first_autoscaler((HEAD,), {}).autoscales
    report = {
        "active_nodes": {"ray.head.default": 1},
        "pending_launches": {"worker": 2},
        "pending_nodes": [["id", "worker", "setting-up"]],
        "node_availability_summary": {
            "node_availabilities": {
                "worker": {"is_available": False, "unavailable_node_information": {"description": "no capacity"}}
            }
        },
    }
    view = view_of_first_autoscaler((HEAD,), {"autoscaler_report": report})
    assert view.autoscales
    assert view.starting == {"worker": 3}
    assert view.failures == ("worker: no capacity",)


def test_a_head_that_does_not_answer_now_is_asked_again() -> None:
    bench = Bench()
    bench.turn(nodes=(HEAD, WORKER))
    bench.answers = False
    bench.turn(5, nodes=(HEAD,))
    assert (bench.slots, len(bench.said)) == ([2], 1)
    bench.answers = True
    bench.turn(nodes=(HEAD, WORKER, WORKER))
    assert bench.slots == [2, 4]
