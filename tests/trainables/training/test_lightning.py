"""A LightningModule as a loop: its state is complete, and it trains what `Trainer.fit` trains."""

from __future__ import annotations

import pytest

from sweeper.planning.preparation import prepare_dataset
from sweeper.planning.user_code_checks import LoopData
from sweeper.space.loading import load_spec
from sweeper.space.user_code import set_code_root

# A warning of theirs would be sent to xdist's main process by its class, for which that imports the whole library.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # importing Lightning takes seconds
#: The configuration's loss, as a search space names it.
LOSS = {"name": "focal", "gamma": 2.0}


@pytest.fixture(autouse=True)
def library():
    yield pytest.importorskip("lightning")
    set_code_root(None)


def trainer_of(library, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "num_sanity_val_steps": 0}
    return library.Trainer(accelerator="cpu", max_epochs=4, **quiet, **options)


def test_the_example_resumes_to_the_bit():
    found = prepare_dataset(load_spec("examples/own_lightning"))
    assert isinstance(found, LoopData) and found.classes == 3
    assert found.columns == ("train_loss_step", "train_loss_epoch")
    assert (len(found.val), len(found.test)) == (40, 40)


def test_epoch_by_epoch_is_one_fit(tmp_path, library):
    import torch

    from trainables.extensions.targets import import_target
    from trainables.training.own_loop import LoopReplicate, own_data

    load_spec("examples/own_lightning")
    values = {"lr": 0.05, "loss": LOSS, **{part: {"name": "own"} for part in ("architecture", "optimizer")}}
    trained = LoopReplicate("own_lightning:Loop", values, seed=3, dataset=own_data(), max_epochs=4)
    for _ in range(4):
        trained.train_epoch()
    loop = trained.loop
    assert loop.model.training, "predicting left the modes as they were"
    torch.manual_seed(3)
    net = import_target("own_lightning:Net")(0.05, LOSS)
    whole = trainer_of(library)
    whole.fit(net, datamodule=import_target("own_lightning:Wine")())
    mine, theirs = loop.network().state_dict(), net.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert len(list(loop.batches("val"))) == 1


BINARY = """
from torch.nn.functional import binary_cross_entropy_with_logits
from torch import nn
import own_lightning

class Net(own_lightning.Net):
    def __init__(self):
        super().__init__(0.05, {"name": "cross_entropy"})
        self.layers = nn.Linear(13, 1)
    def training_step(self, batch, _):
        return binary_cross_entropy_with_logits(self(batch[0])[:, 0], (batch[1] > 0).float())

class Loop(own_lightning.Loop):
    def module(self, configuration): return Net()
    def logits(self, batch): return self.model(batch[0]), (batch[1] > 0).float()
"""


def test_one_output_with_a_binary_cross_entropy_is_measured_as_torchmetrics_does(tmp_path):
    import torch
    from torchmetrics.functional.classification import binary_calibration_error

    from search_spaces import FOLDER
    from trainables.extensions.targets import look_in
    from trainables.training.evaluation import EvaluationSettings
    from trainables.training.own_loop import LoopReplicate, own_data

    (tmp_path / "binary_lightning.py").write_text(BINARY)
    look_in([tmp_path, FOLDER / "examples"])
    own = {part: {"name": "own"} for part in ("loss", "architecture", "optimizer")}
    trained = LoopReplicate("binary_lightning:Loop", own, seed=3, dataset=own_data(), max_epochs=4)
    row = trained.train_epoch()
    settings = EvaluationSettings(bootstrap=0, metrics=(("ece_positive", {}),))
    measured = trained.evaluate(settings, "rung").rows[0]
    z, y = trained.loop.predict("val")
    theirs = binary_calibration_error(torch.sigmoid(z[:, 0]), y.long(), n_bins=15)
    assert z.shape == (40, 1) and row["val_nll"] < 0.693
    assert measured["ece_positive"] == pytest.approx(theirs.item(), abs=1e-6)


def scheduled(library, schedule):
    """Return a module of the example with a schedule, which keeps the learning rate of each step."""
    import torch
    from torch.optim import lr_scheduler

    from trainables.extensions.targets import import_target

    class Scheduled(import_target("own_lightning:Net")):
        def validation_step(self, batch, _):
            self.log("val_loss", torch.nn.functional.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            optimizer, trainer = torch.optim.SGD(self.parameters(), lr=self.lr), self.trainer
            steps, plateau = trainer.estimated_stepping_batches, lr_scheduler.ReduceLROnPlateau
            return [optimizer], [
                {
                    "cosine": lambda: lr_scheduler.CosineAnnealingLR(optimizer, T_max=trainer.max_epochs),
                    "one_cycle": lambda: {
                        "scheduler": lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps), "interval": "step"
                    },
                    "steps": lambda: lr_scheduler.StepLR(optimizer, 2),
                    "plateau": lambda: {"scheduler": plateau(optimizer, patience=0), "monitor": "val_loss"},
                }[schedule]()
            ]  # fmt: skip

        def on_train_batch_start(self, batch, number):
            self.rates = [*getattr(self, "rates", ()), self.optimizers().param_groups[0]["lr"]]

    return Scheduled(0.1, LOSS)


@pytest.mark.parametrize("schedule", ["cosine", "one_cycle", "steps", "plateau"])
def test_schedules_and_callbacks_see_the_whole_sweep_and_its_validation(library, schedule):
    import torch

    from trainables.extensions.targets import import_target
    from trainables.training.lightning import LightningLoop

    load_spec("examples/own_lightning")

    def stopping():
        return library.pytorch.callbacks.EarlyStopping("val_loss", patience=99)

    class Loop(LightningLoop):
        def module(self, configuration):
            return scheduled(library, schedule)

        def data(self, configuration):
            return import_target("own_lightning:Wine")()

        def trainer_options(self, configuration):
            return {"callbacks": [stopping()], "min_epochs": 3}

    second = Loop({}, seed=1, device="cpu", max_epochs=4)
    torch.manual_seed(3)
    first = Loop({}, seed=1, device="cpu", max_epochs=4)
    for _ in range(2):
        first.train_epoch()
    second.load_state_dict(first.state_dict())
    rows = [second.train_epoch() for _ in range(2)]
    torch.manual_seed(3)
    whole = scheduled(library, schedule)
    trainer = trainer_of(library, callbacks=[stopping()])
    trainer.fit(whole, datamodule=import_target("own_lightning:Wine")())
    assert first.model.rates + second.model.rates == whole.rates
    assert all(torch.equal(second.model.state_dict()[name], value) for name, value in whole.state_dict().items())
    assert rows[-1]["val_loss"] == float(trainer.callback_metrics["val_loss"])
