"""How the suite runs: the longest files first, the same draws in every run, one thread a process."""

import os
import random
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import pytest_timeout
import torch

from tests.patience import patient
from tests.seeds import DEFAULT, VARIABLE

LONGEST = (
    "remote/test_end_to_end.py",
    "faults/test_kills.py",
    "faults/test_interruptions.py",
    "sweeper/tracking/test_sync.py",
    "faults/test_autoscaling.py",
    "faults/test_damage.py",
    "sweeper/test_end_to_end.py",
    "sweeper/execution/ray/test_card_probe.py",
    "sweeper/test_planted_secrets.py",
    "test_rehearsals.py",
    "remote/test_store.py",
    "deploy/test_drain_on_warning.py",
    "sweeper/execution/ray/test_session.py",
    "sweeper/execution/test_runner.py",
    "fuzzing/test_fuzzing.py",
    "sweeper/execution/test_local.py",
    "faults/test_hangs.py",
    "sweeper/tables/test_writer.py",
    "release/test_contributing.py",
    "sweeper/exporting/test_folder.py",
    "sweeper/api/test_commands.py",
    "faults/test_endings.py",
)
"""Files whose tests take longest, the longest first; a list that is out of date costs time and nothing else."""

# The same examples in every run: more of them cost time each time and find nothing new; `make fuzz` draws others.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.register_profile("drawn", deadline=None, print_blob=True)
hypothesis.settings.load_profile("drawn" if os.environ.get(VARIABLE) == "random" else "same")


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist would start with the files of most tests; those of fewest take longest, and one core would wait.
    config.option.loadscopereorder = False
    # Two workers share two cores: waiting for each other's threads costs more than a second thread gives.
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {Path(__file__).parent / name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let what draws without a seed of its own draw the same in every run and any order."""
    random.seed(DEFAULT)
    np.random.seed(DEFAULT)
    torch.manual_seed(DEFAULT)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> object:
    """Let limits of tests grow with how busy this machine is."""
    return pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=patient(settings.timeout)))
