"""A Hugging Face Trainer as a loop: its state is complete, weights under any names."""

from __future__ import annotations

from pathlib import Path

import pytest

import search_spaces
from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData
from sweeper.space.loading import load_spec
from sweeper.space.user_code import set_code_root

# A warning of theirs would be sent to xdist's main process by its class, for which that imports the whole library.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # importing transformers takes seconds


def test_the_example_resumes_to_the_bit():
    pytest.importorskip("transformers")
    found = prepare_dataset(load_spec("examples/own_trainer"))
    assert isinstance(found, LoopData) and found.classes == 10 and found.columns == ("grad_norm",)
    assert (len(found.val), len(found.test)) == (397, 400)
    set_code_root(None)


def test_a_trainer_that_evaluates_each_epoch_continues_to_the_bit(tmp_path):
    pytest.importorskip("transformers")
    example = (Path(search_spaces.__file__).parent / "examples" / "own_trainer.py").read_text()
    evaluating = """
class Evaluating(Loop):
    def trainer(self, configuration, arguments):
        arguments = TrainingArguments(**{**arguments, "eval_strategy": "epoch", "per_device_train_batch_size": 50})
        return Trainer(tiny(16), arguments, train_dataset=Digits("train"), eval_dataset=Digits("val"))
"""
    (tmp_path / "evaluating.py").write_text(example + evaluating)
    space = (Path(search_spaces.__file__).parent / "examples" / "own_trainer.yaml").read_text()
    (tmp_path / "space.yaml").write_text(space.replace("own_trainer:Loop", "evaluating:Evaluating"))
    assert isinstance(prepare_dataset(load_spec(tmp_path / "space.yaml")), LoopData)
    set_code_root(None)


@pytest.mark.parametrize("state", [{"name": "../out", "files": {}}, {"name": "one", "files": {"../../out": b""}}])
def test_a_checkpoint_writes_into_its_own_folder_alone(tmp_path, state):
    pytest.importorskip("transformers")
    from types import SimpleNamespace

    from trainables.training.transformers import TrainerLoop

    loop = TrainerLoop.__new__(TrainerLoop)
    loop.folder = SimpleNamespace(name=str(tmp_path / "own" / "trainer"))
    with pytest.raises(ValueError, match="outside its folder"):
        loop.load_state_dict(state)
    assert not list(tmp_path.iterdir())
