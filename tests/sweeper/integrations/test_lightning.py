"""A LightningModule as a loop: the example is short, its state is complete, and it trains what `Trainer.fit` trains."""

from __future__ import annotations

from pathlib import Path

import pytest

import search_spaces
from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData
from sweeper.space.loading import load_spec
from sweeper.space.user_code import set_code_root

# A warning of theirs would be sent to xdist's main process by its class, for which that imports the whole library.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # importing Lightning takes seconds
EXAMPLES = Path(search_spaces.__file__).parent / "examples"


@pytest.fixture(autouse=True)
def library():
    yield pytest.importorskip("lightning")
    set_code_root(None)


def test_the_example_is_short_and_resumes_to_the_bit():
    assert len((EXAMPLES / "own_lightning.py").read_text().splitlines()) <= 40
    found = prepare_dataset(load_spec("examples/own_lightning"))
    assert isinstance(found, LoopData) and found.classes == 3
    assert found.columns == ("train_loss_step", "train_loss_epoch")
    assert (len(found.val), len(found.test)) == (40, 40)


def test_epoch_by_epoch_is_one_fit(tmp_path, library):
    import torch

    from trainables.extensions.targets import import_target
    from trainables.training.own_loop import LoopReplicate, own_data

    load_spec("examples/own_lightning")
    values = {"lr": 0.05, **{part: {"name": "own"} for part in ("loss", "architecture", "optimizer")}}
    trained = LoopReplicate("own_lightning:Loop", values, seed=3, dataset=own_data(), max_epochs=4)
    for _ in range(4):
        trained.train_epoch()
    loop = trained.loop
    assert loop.model.training, "predicting left the modes as they were"
    torch.manual_seed(3)
    net = import_target("own_lightning:Net")(0.05)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "limit_val_batches": 0}
    whole = library.Trainer(accelerator="cpu", max_epochs=4, num_sanity_val_steps=0, **options)
    whole.fit(net, datamodule=import_target("own_lightning:Wine")())
    mine, theirs = loop.network().state_dict(), net.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert len(list(loop.batches("val"))) == 1
