"""Weights are read from where a trial's process has left them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from sweeper.exporting.weights import kept_weights
from sweeper.journal.state import TrialState
from tests.trainables.small_data import small_digits
from tests.trainables.small_trials import SETTINGS, assignment, finished
from trainables.worker.trial import Trial


def test_one_of_several_replicates_has_its_own_weights(tmp_path: Path) -> None:
    trial = Trial(assignment(), replace(SETTINGS, checkpoints=tmp_path), small_digits())
    finished(trial)
    for number, replicate in trial.replicates.items():
        kept = kept_weights({number: TrialState(configuration=7)}, tmp_path, 3)
        assert kept.epochs == {number: 3} and kept.states.keys() == {number}
        for name, value in replicate.state_dict()["model"].items():
            assert torch.equal(kept.states[number][name], value)
