"""Which executor carries a sweep's trials out."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.choice import runs_here
from sweeper.execution.options import RunOptions
from sweeper.space.models import Resources

ON_PROCESSORS = Resources(gpu=0)


@pytest.mark.parametrize(
    ("executor", "address", "gpu", "here"),
    [
        ("auto", None, 0, True),
        ("local", None, 0, True),
        ("ray", None, 0, False),
        ("auto", "127.0.0.1:6379", 0, False),
        ("auto", None, 0.25, False),
        ("ray", None, 0.25, False),
    ],
)
def test_trials_run_here_without_a_cluster_and_without_cards(executor, address, gpu, here):
    assert runs_here(RunOptions("results", address, executor=executor), Resources(gpu=gpu)) is here


def test_a_cluster_that_the_program_has_joined_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert not runs_here(RunOptions("results"), ON_PROCESSORS)
    assert runs_here(RunOptions("results", executor="local"), ON_PROCESSORS), "unless it is asked for"


@pytest.mark.parametrize(
    ("address", "gpu", "said"),
    [
        ("10.0.0.1:6379", 0, "the executor is local, but the cluster is 10.0.0.1:6379"),
        (None, 0.5, "resources.gpu = 0.5, and the local executor does not allocate GPUs"),
    ],
)
def test_what_the_local_executor_cannot_do_is_refused(address, gpu, said):
    with pytest.raises(SweeperError, match=said):
        runs_here(RunOptions("results", address, executor="local"), Resources(gpu=gpu))
