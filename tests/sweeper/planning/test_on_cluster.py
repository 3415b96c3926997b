"""What a sweep asks of a cluster: read from the files that ship, computed as by hand, refused in words."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.planning.costs import known_gpus
from sweeper.planning.on_cluster import (
    NODE_START_HOURS,
    ClusterFile,
    NodeGroup,
    cluster_plan,
    plan_on_cluster,
    quantity,
    read_cluster,
    requested_nodes,
)
from sweeper.planning.plan import Estimate, Plan, Range
from sweeper.space.loading import load_spec
from sweeper.space.spec import Resources

DEPLOY = Path(__file__).parents[3] / "deploy"
ONE = Range(1.0, 1.0, 1.0)
GPU_TRIAL = {"cpu": 1.0, "gpu": 0.25}


def _planned(trials: int, hours: tuple[float, float] | None = (8.0, 32.0)) -> Plan:
    found = Estimate(1e18, {"L4": hours}, "by a test") if hours else None
    return Plan(trials, 1, {1: ONE}, ONE, ONE, 1, None, {}, "", found)


def _cluster(*workers: NodeGroup, most: int = 1000) -> ClusterFile:
    return ClusterFile(workers, most)


def test_the_files_that_ship_are_read() -> None:
    aws, gcp = (read_cluster(DEPLOY / f"ray/{name}.yaml") for name in ("aws", "gcp"))
    assert aws.workers == [NodeGroup("gpu_spot", 8, 1, 16, "g6.2xlarge")]
    assert gcp.workers == [NodeGroup("gpu_spot", 8, 1, 16, "g2-standard-8")]
    for name in ("base/raycluster.yaml", "jobs/rayjob.yaml"):
        cluster = read_cluster(DEPLOY / "kubernetes" / name)
        assert cluster.workers == [NodeGroup("gpu", 8, 1, 16, "g6.2xlarge")]
        assert cluster.most_workers == 16


def test_every_machine_of_the_files_has_a_known_card() -> None:
    known = {machine for card in known_gpus()[0] for machine in card.machines}
    for path in [*(DEPLOY / "ray").glob("*.yaml"), DEPLOY / "kubernetes/base/raycluster.yaml"]:
        assert {group.machine for group in read_cluster(path).workers if group.gpu} <= known, path.name


def test_nodes_and_hours_as_computed_by_hand() -> None:
    cluster = _cluster(NodeGroup("gpu", 8, 1, 16, "L4"))
    there = plan_on_cluster(_planned(40), GPU_TRIAL, cluster)
    assert [(n.nodes, n.trials_each) for n in there.nodes] == [(10, 4)]  # four quarters of a card on each
    assert there.at_once == 40
    low, high = 8 / 10 + NODE_START_HOURS[0], 32 / 10 + NODE_START_HOURS[1]
    assert there.hours == pytest.approx((low, high))


def test_nodes_hold_all_trials_or_all_that_may_be_started() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        groups = [NodeGroup(str(i), rng.randint(1, 16), rng.randint(0, 8), rng.randint(1, 10), None) for i in range(3)]
        trial = {"cpu": float(rng.choice([0.5, 1, 2])), "gpu": float(rng.choice([0, 0.25, 0.5, 1]))}
        trials, most = rng.randint(1, 300), rng.randint(1, 30)
        try:
            asked = requested_nodes(trial, trials, _cluster(*groups, most=most))
        except SweeperError as error:
            assert "no worker node of the cluster fits a trial" in error.message
            continue
        room = sum(a.nodes * a.trials_each for a in asked)
        assert sum(a.nodes for a in asked) <= most
        full = sum(a.nodes for a in asked) == most
        usable = [g for g in groups if g.cpu >= trial["cpu"] and g.gpu >= trial["gpu"]]
        every = {a.group: a.nodes for a in asked} == {g.name: g.most for g in usable}
        assert room >= trials or full or every, seed
        last = asked[-1]
        assert room - last.trials_each < trials, f"one node fewer would do: {seed}"


def test_auto_is_a_quarter_of_a_card_where_there_are_cards() -> None:
    assert Resources().of_trial(gpus=_cluster(NodeGroup("gpu", 8, 1, 1, None)).has_gpus)["gpu"] == 0.25
    assert Resources().of_trial(gpus=_cluster(NodeGroup("cpu", 8, 0, 1, None)).has_gpus)["gpu"] == 0.0


def test_cores_take_the_time_measured_here() -> None:
    planned = replace(_planned(8, None), seconds=Range(3600.0, 7200.0, 10800.0))
    cluster = _cluster(NodeGroup("cpu", 4, 0, 8, None))
    there = plan_on_cluster(planned, {"cpu": 1.0, "gpu": 0.0}, cluster)
    assert there.hours == pytest.approx((1 + NODE_START_HOURS[0], 3 + NODE_START_HOURS[1]))


@pytest.mark.parametrize(
    ("text", "nodes", "said"),
    [
        # 8 to 32 hours of one card, on ten, after minutes of start.
        ("workers: 10\ntime: 1:00:00\ngpu_type: l4", 10, ["jobs of 1 h: 10 to 40, 8.3 to 33.7 GPU-hours; each"]),
        ("workers: 16\ntime: 1-00:00:00\ncard: L4", 10, ["jobs of 1 d: 16, 13.3 to 53.9 GPU-hours", "6 of 16 jobs"]),
        ("nodes: 10\ntime: 1:00:00\ncard: L4", 10, ["jobs of 1 h: 1 to 4, 8.3 to 33.7 GPU-hours; each"]),
        ("workers: 10\ncard: V100", 10, ["which GPU V100 has; known: L4"]),
        ("workers: 10", 10, ["which GPU a job has; known: L4"]),
    ],
)
def test_slurm_s_jobs_and_hours_as_computed_by_hand(tmp_path: Path, text: str, nodes: int, said: list[str]) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text(f"{text}\ngpus: 1\ncpus: 8")
    there = plan_on_cluster(_planned(40), GPU_TRIAL, read_cluster(file))
    assert [each.nodes for each in there.nodes] == [nodes]
    notes = [note for note in there.notes if not note.startswith("hours: ")]
    assert len(notes) == len(said)
    for note, expected in zip(notes, said, strict=True):
        assert expected in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "neither a Ray launcher file"),
        ("available_node_types: {}\nhead_node_type: head", "'head' is missing"),
        ("kind: RayCluster\nspec: {}", "'workerGroupSpecs' is missing"),
        ("kind: RayCluster\nspec: [", "is not valid YAML"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(SweeperError, match=message):
        read_cluster(path)
    with pytest.raises(SweeperError, match="cannot be read: No such file"):
        read_cluster(tmp_path / "none.yaml")


def test_quantities() -> None:
    assert [quantity(q) for q in ("500m", "2", 3, "1.5Gi")] == [0.5, 2, 3, 1.5 * 2**30]
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("3 cores")


def test_no_more_nodes_are_asked_for_than_a_sweep_may_use_at_once(tmp_path: Path) -> None:
    spec = load_spec("quickstart", ["max_concurrent=6", "resources.gpu=0.5"])
    planned, there = cluster_plan(spec, DEPLOY / "ray/aws.yaml")
    assert (planned.workers, there.at_once, [asked.nodes for asked in there.nodes]) == (6, 6, [3])


def test_lanes_not_trials_are_what_nodes_are_asked_for() -> None:
    packed = ["replicates={count: 2, packing: lanes, lanes: 16}", "resources.gpu=0.5", "samples=48", "which=[]"]
    planned, there = cluster_plan(load_spec("quickstart", packed), DEPLOY / "ray/aws.yaml")
    assert (planned.trials, planned.workers, there.at_once, [asked.nodes for asked in there.nodes]) == (48, 6, 6, [3])
    told = dict(there.lines())
    assert told["on the cluster"].startswith("6 processes at once, of up to 8 trials, each with ")
    assert told["nodes requested"].endswith(", 2 processes per node")
