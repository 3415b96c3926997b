"""Trials with shares of a card on a real Ray, which counts a card that is not there; processes never touch CUDA."""

import os
from dataclasses import replace

import pytest

from sweeper.core.processes import prepare
from tests.faults.processes import wait_until
from tests.shared_card import HUNGRY, run_on_one_card
from tests.trainables.small_trials import SETTINGS
from trainables.worker.trial_reports import CardMemory
from trainables.worker.trial_settings import Assignment


@pytest.fixture(scope="module", autouse=True)
def one_card():
    """A Ray of its own that counts one card."""
    before = dict(os.environ)
    prepare(None)
    import ray
    from ray._raylet import AuthenticationMode, get_authentication_mode

    if get_authentication_mode() == AuthenticationMode.DISABLED:
        # Ray settles this once, when it is imported, and another test of this process has imported it before.
        os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(address="local", num_cpus=3, num_gpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow
def test_a_trial_that_runs_out_gets_more_of_the_card_and_its_neighbours_end_well(tmp_path):
    import torch

    def eat(share):
        if share <= 0.5:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    failed = run_on_one_card(tmp_path, "cpu", eat, slots=3)
    assert [(body["configuration"], body["kind"], body["counts"], body["share"]) for body in failed] == [
        (HUNGRY, "gpu_out_of_memory", False, 0.5), (HUNGRY, "gpu_out_of_memory", False, 1.0)
    ]  # fmt: skip


CUDA = replace(SETTINGS, device="cuda")


def _assignment(index):
    return Assignment(index, f"c{index:05d}", {}, [0])


class _Measurer:
    """Says what it was given; fails where it is told to."""

    def __init__(self, settings):
        import ray

        self.cards = ray.get_gpu_ids()
        self.settings = settings

    def measure(self, assignment):
        if assignment.configuration == 1:
            raise ValueError("a network that suits no data")
        return CardMemory(len(self.cards), assignment.configuration, self.settings.device)


@pytest.mark.integration
def test_a_probe_measures_on_a_card_of_its_own_and_gives_it_back(monkeypatch):
    import ray

    from sweeper.execution.ray import session

    # The processes of the test before may still be giving the card back.
    wait_until(lambda: ray.available_resources().get("GPU") == 1.0)
    with session.card_probe(CUDA, 1.0, _Measurer) as probe:
        assert ray.available_resources()["GPU"] == 1.0, "nothing to measure yet"
        assert probe(_assignment(7)) == CardMemory(1, 7, "cuda")
        assert probe(_assignment(1)) is None
        assert probe(_assignment(8)).total_bytes == 8
    with session.card_probe(CUDA, 1.0, _Measurer) as probe:
        assert probe(_assignment(9)).total_bytes == 9, "the card is free again"
    monkeypatch.setattr(session, "PROBE_PATIENCE_SECONDS", 0.5)
    with session.card_probe(CUDA, 99.0, _Measurer) as probe:
        assert probe(_assignment(7)) is None and probe(_assignment(7)) is None, "no such node"


@pytest.mark.integration
def test_what_is_reserved_for_a_trial_lies_on_no_node_that_is_to_be_avoided():
    import ray
    from ray.util import remove_placement_group

    from sweeper.execution.ray.executor import _bundle
    from sweeper.execution.ray.session import other_nodes

    (node,) = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    found = {}
    for avoided in ("ab" * 28, node):  # the first one is nobody's
        group = _bundle({"cpu": 1.0, "gpu": 0.0}, {"avoid": [avoided]}).to_placement_group()
        found[avoided == node] = bool(ray.wait([group.ready()], timeout=60 if avoided != node else 2)[0])
        remove_placement_group(group)
    assert found == {False: True, True: False}
    assert other_nodes({"cpu": 1.0, "gpu": 0.0}, {"ab" * 28})
    assert not other_nodes({"cpu": 1.0, "gpu": 0.0}, {node})
    assert _bundle({"cpu": 1.0}, {"avoid": []}) == _bundle({"cpu": 1.0}, {}), "processes are reused among equals"
