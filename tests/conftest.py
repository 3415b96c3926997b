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
    "remote/test_end_to_end", "faults/test_kills", "faults/test_interruptions", "sweeper/tracking/test_sync",
    "faults/test_autoscaling", "faults/test_damage", "sweeper/test_end_to_end",
    "sweeper/execution/ray/test_card_probe", "sweeper/test_planted_secrets", "test_rehearsals", "remote/test_store",
    "deploy/test_drain_on_warning", "sweeper/execution/ray/test_session", "test_docstring_examples",
    "sweeper/results/test_comparison", "sweeper/search/test_suggestions", "sweeper/reporting/test_first_screen",
    "sweeper/execution/driver/test_driver", "trainables/worker/test_trial",
    "sweeper/execution/driver/test_replicates_apart", "search_spaces/test_shipped_files",
    "sweeper/results/test_results", "sweeper/exporting/test_folder", "sweeper/results/test_listing",
    "sweeper/planning/test_plan", "trainables/training/lanes/test_trial", "trainables/training/test_without_waiting",
    "trainables/curvature/test_measure", "sweeper/tables/test_writer", "sweeper/results/test_predictive",
    "sweeper/results/test_verdicts", "sweeper/reporting/test_page", "trainables/training/test_acceleration",
    "search_spaces/papers/test_tables", "sweeper/storage/test_lookup", "sweeper/execution/test_runner",
    "fuzzing/test_fuzzing", "sweeper/execution/test_local", "faults/test_hangs", "release/test_contributing",
    "sweeper/api/test_commands", "faults/test_endings",
)  # fmt: skip
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
    ranks = {Path(__file__).parent / f"{name}.py": rank for rank, name in enumerate(LONGEST)}
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
