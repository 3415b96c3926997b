"""How the suite runs: the longest files first, the same draws in every run, one thread a process."""

import os
import random
from pathlib import Path

# Workers share the cores: waiting for each other's threads costs more than a second thread gives. OpenBLAS reads this
# when numpy is imported; it saves a tenth of the processor time of fits and curvature.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import hypothesis
import numpy as np
import pytest
import pytest_timeout
import torch

from tests.patience import patient
from tests.seeds import DEFAULT, VARIABLE

LONGEST = (
    "matrix/test_matrix", "sweeper/tracking/test_through_commands", "faults/test_same_everywhere",
    "slurm/test_slurm", "remote/test_end_to_end", "faults/test_kills", "faults/test_interruptions",
    "release/test_contributing", "release/test_wheel", "faults/test_read_only",
    "sweeper/tracking/test_sync", "faults/test_autoscaling", "faults/test_damage", "sweeper/test_end_to_end",
    "sweeper/execution/ray/test_card_probe", "sweeper/test_planted_secrets", "test_rehearsals", "remote/test_store",
    "deploy/test_drain_on_warning", "sweeper/execution/ray/test_session", "test_docstring_examples",
    "sweeper/reporting/test_first_screen", "trainables/curvature/test_measure", "trainables/worker/test_trial",
    "sweeper/execution/test_importing", "search_spaces/papers/test_tables", "sweeper/exporting/test_folder",
    "sweeper/results/test_comparison", "search_spaces/papers/test_commands", "sweeper/serving/test_app",
    "search_spaces/papers/test_computed_figures", "sweeper/execution/driver/test_replicates_apart",
    "trainables/models/test_networks", "sweeper/execution/driver/test_driver",
    "trainables/training/lanes/test_equal_to_alone", "sweeper/results/test_verdicts", "test_imports",
    "trainables/posthoc/test_base", "trainables/training/test_acceleration", "sweeper/api/test_commands",
    "sweeper/results/test_listing", "trainables/training/lanes/test_cohort", "search_spaces/test_shipped_files",
    "sweeper/planning/test_plan", "search_spaces/papers/test_recipes", "trainables/curvature/test_further",
    "sweeper/reporting/figures/test_on_paper",
    "sweeper/reporting/figures/test_posthoc_temperature",
)  # fmt: skip
"""Files whose tests take longest, the longest first; a list that is out of date costs time and nothing else."""

# The same examples in every run: more of them cost time each time and find nothing new; `make fuzz` draws others.
hypothesis.settings.register_profile("same", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.register_profile("drawn", deadline=None, print_blob=True)
hypothesis.settings.load_profile("drawn" if os.environ.get(VARIABLE) == "random" else "same")


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist would start with the files of most tests; those of fewest take longest, and one core would wait.
    config.option.loadscopereorder = False
    for variable in ("MLFLOW_TRACKING_URI", "SWEEPER_OUTPUT"):  # no test writes to the caller's stores
        os.environ.pop(variable, None)
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # else MLflow writes a file to the user's home
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
