"""Search spaces with a training loop of the user's own: free hyperparameters, signatures, and what is declined."""

from pathlib import Path

import pytest

import search_spaces
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.labels import describe, in_order, short
from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec, reopened_spec
from sweeper.space.spec import spec_of
from sweeper.space.user_code import code_of, own_names, set_code_root
from tests.trainables.training.test_own_loop import LOOPED

EXAMPLES = Path(search_spaces.__file__).parent / "examples"

SPACE = {
    "loop": "looped:Loop",
    "scheduler": {"name": "asha", "max_epochs": 9, "grace_epochs": 3},
    "samples": 4,
    "space": {
        "lr": {"loguniform": [0.01, 1]},
        "lora_rank": {"choice": [4, 8]},
        "sizes": [32, 64],
        "warmup": {"one_of": [{"name": "linear", "epochs": {"randint": [1, 3]}}, {"name": "none"}]},
        "loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"uniform": [1, 5]}}]},
    },
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "looped.py").write_text(LOOPED)
    monkeypatch.chdir(tmp_path)
    yield
    set_code_root(None)


def faults(values):
    with pytest.raises(InvalidSearchSpace) as raised:
        load_spec(values)
    return " ".join(str(raised.value).split())


def test_any_names_are_hyperparameters_with_columns_of_their_own():
    spec = load_spec(SPACE)
    values = configurations(spec)[1]
    assert values["optimizer"] == values["architecture"] == spec.dataset == {"name": "own"}
    assert isinstance(values["lr"], float) and values["sizes"] == (32, 64) and values["loss"]["name"]
    types = spec.space.column_types
    assert types["config_lora_rank"] is int and types["config_warmup_epochs"] is int and types["config_sizes"] is str
    columns = in_order(spec.space.varying_columns)
    assert set(columns) >= {"config_lr", "config_lora_rank", "config_warmup_name", "config_loss_gamma"}
    assert short("config_lora_rank") == "lora rank" and short("config_optimizer_weight_decay") == "weight decay"
    row = {"config_loss_name": "focal", "config_loss_gamma": 2.0, "config_lr": 0.1, "config_lora_rank": 4}
    assert describe(row, [c for c in columns if c in row]) == "focal (γ 2) · lr 0.1 · lora rank 4"


def test_a_resolved_space_is_read_again_without_running_its_code():
    spec = load_spec(SPACE)
    resolved = spec.resolved()
    assert reopened_spec(resolved, "again").resolved() == resolved == spec_of(resolved, "again").resolved()
    assert [name for _, name in own_names(spec)] == ["looped:Loop"]
    code = code_of(spec)
    assert code.components == {"looped:Loop": {"kind": "training loop"}}


def test_a_signature_is_kept_to():
    named = {**SPACE, "loop": "looped:Named", "space": {"lr": {"loguniform": [0.01, 1]}}}
    assert configurations(load_spec(named))[0]["rank"] == 8
    said = faults({**named, "space": {"lr": "high", "rnk": 3}})
    assert "takes no hyperparameter 'rnk'" in said and "did you mean 'rank'" in said and "lr = 'high'" in said


def test_it_may_take_several_cards():
    assert load_spec({**SPACE, "resources": {"gpu": 4}}).resources.gpu == 4


def test_what_goes_only_with_our_loop_is_declined_in_a_sentence_each():
    said = faults(
        {
            **SPACE,
            "replicates": {"count": 2, "packing": "lanes"},
            "evaluation": {"trajectory": {}, "splits": ["val", "test", {"corrupted": {}}]},
            "training": {"precision": "bfloat16"},
            "dataset": {"name": "table", "file": "patients.csv", "target": "outcome", "weight": "cost"},
        }
    )
    for what in ("packing = lanes", "shifted data", "settings of training steps", "a column of weights"):
        assert f"{what} needs the built-in training loop" in said


def test_a_loop_is_rehearsed():
    smaller = load_spec({**SPACE, "rehearsal": {"space.sizes": [8], "scheduler.max_epochs": 4}}, rehearse=True)
    assert (smaller.scheduler.max_epochs, smaller.dataset) == (4, {"name": "own"}) and smaller.is_rehearsal
    assert {tuple(each["sizes"]) for each in configurations(smaller)} == {(8,)}


def test_wrong_names_are_faults():
    assert "'Learning-Rate' cannot be part of a column's name" in faults({**SPACE, "space": {"Learning-Rate": 0.1}})
    assert "unknown loss 'focall'" in faults({**SPACE, "space": {"loss": "focall", "lr": 0.1}})
    assert "there is no module 'missing'" in faults({**SPACE, "loop": "missing:Loop"})


def test_the_example_is_short_and_passes():
    assert len((EXAMPLES / "own_loop.py").read_text().splitlines()) <= 40
    found = prepare_dataset(load_spec("examples/own_loop"))
    assert isinstance(found, LoopData) and found.classes == 2 and found.columns == ("weight_norm",)
