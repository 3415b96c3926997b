"""Before a sweep: a training loop of the user's own whose state is not complete is refused, and the part is named."""

from pathlib import Path

import pytest
import torch

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.costs import measured_plan
from sweeper.planning.preparation import dataset_facts, prepare_dataset
from sweeper.planning.user_code_checks import (
    LoopData,
    data_stand_in,
    difference,
    loop_columns,
    loop_entry,
    measured_columns,
)
from sweeper.space.loading import load_spec
from sweeper.space.user_code import set_code_root
from tests.trainables.training.test_own_loop import LOOPED

CHANGED = (
    LOOPED
    + """
class NoMomentum(Loop):
    def state_dict(self): return {"model": self.model.state_dict()}
    def load_state_dict(self, state): self.model.load_state_dict(state["model"])

class Halves(Loop):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        with torch.no_grad(): self.model.weight /= 2

class Elsewhere(Loop):
    def __init__(self, configuration, *, seed):
        super().__init__(configuration, seed=seed)
        self.seen = 0
    def train_epoch(self):
        self.seen += 1
        for group in self.optimizer.param_groups: group["lr"] = 0.1 / self.seen
        return super().train_epoch()

class Hidden(Loop):
    scale = {}
    def predict(self, split):
        logits, targets = super().predict(split)
        return logits * self.scale.setdefault(id(self), len(self.scale) + 1.0), targets

class Arrays(Loop):
    def state_dict(self): return {**super().state_dict(), "rows": numpy.arange(3)}

class Taken(Loop):
    measures = ("ece",)
    def measure(self, split, stage): return {"ece": 0.1}

class Odd(Taken):
    measures = ("E c e",)

class Column(Loop):
    def train_epoch(self): return {"val_nll2 ": 1.0, **super().train_epoch()}
"""
)


@pytest.fixture
def space(tmp_path: Path):
    (tmp_path / "checked.py").write_text(CHANGED)

    def written(name: str) -> Path:
        path = tmp_path / "space.yaml"
        path.write_text(
            f"loop: 'checked:{name}'\nscheduler: {{name: none, max_epochs: 3}}\nspace: {{lr: 0.1}}\n"
            "resources: {gpu: 0}\nevaluation: {bootstrap: 0}\n"
        )
        return path

    yield written
    set_code_root(None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoMomentum", "after another epoch 'model.weight' differs; load_state_dict does not restore self.optimizer"),
        ("Halves", "'model.weight' of its state has changed after load_state_dict"),
        ("Elsewhere", "after another epoch 'model.weight' differs; load_state_dict does not restore self.seen"),
        ("Hidden", "after load_state_dict its predictions differ; state_dict lacks something that affects training"),
        ("Arrays", "its state_dict cannot be read from a checkpoint; keep tensors, numbers and texts in it"),
        ("Column", "returns 'val_nll2 ', which cannot be a column"),
        ("Missing", "checked has no 'Missing'"),
        ("Taken", "measures names 'ece', which is computed from its predictions; use another name"),
        ("Odd", "measures names 'E c e', which cannot be a column"),
    ],
)
def test_a_loop_that_would_not_resume_is_refused(space, name, said):
    with pytest.raises(InvalidSearchSpace) as raised:
        prepare_dataset(load_spec(space(name)))
    assert said in " ".join(str(raised.value).split())


def test_a_sound_loop_is_known_by_what_it_predicts(space):
    spec = load_spec(space("Loop"))
    found = prepare_dataset(spec)
    assert isinstance(found, LoopData) and found.classes == 3 and len(found.test) == 60
    manifest = {"dataset": dataset_facts(found), **loop_entry(found)}
    assert manifest["loop"] == {"columns": ["drawn"], "measures": []}
    assert loop_columns(manifest) == ["drawn"]
    again = prepare_dataset(spec, manifest)
    assert (again.classes, len(again.val), again.split_hash) == (3, 60, found.split_hash)
    assert dataset_facts(data_stand_in(manifest)) == manifest["dataset"]
    assert spec.space.column_types["config_lr"] is float
    planned = measured_plan(spec)
    assert planned.seconds is not None and planned.costs["own"].epoch_seconds > 0


def test_a_loop_without_predictions_is_known_by_what_it_measures(space):
    spec = load_spec(space("Alone"))
    found = prepare_dataset(spec)
    assert isinstance(found, LoopData) and found.measures == ("nll", "ece", "bleu")
    manifest = {"dataset": dataset_facts(found), **loop_entry(found)}
    assert measured_columns(manifest) == ["nll", "ece", "bleu"] and measured_columns({}) == []
    assert dataset_facts(prepare_dataset(spec, manifest)) == manifest["dataset"]


def test_the_place_of_a_difference():
    left = {"a": [torch.ones(2), {"b": 1}], "c": float("nan")}
    assert difference(left, {"a": [torch.ones(2), {"b": 1}], "c": float("nan")}) is None
    assert difference(left, {"a": [torch.ones(2), {"b": 2}], "c": float("nan")}) == "'a.1.b'"
    assert difference(left, {"a": [torch.ones(2) + 1e-3, {"b": 1}], "c": 0.0}, 1e-2) == "'c'"
    assert difference({"a": 1}, {"b": 1}) == "'a'"
