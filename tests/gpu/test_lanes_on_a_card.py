"""On a real card: lanes end where their networks end alone, no step waits for the card, and a cohort's sweep is whole.

Run with `make check-gpu`. The logic of each is tested without a card beside its module.
"""

import gc
import warnings
from collections import Counter

import pytest
import torch

from sweeper.core.ids import SweepPaths
from sweeper.journal.journal import read_journal
from sweeper.results import load
from tests.faults.processes import kill_ids, trial_processes, wait_until
from tests.running import metrics_by_key, reports, started, write_space
from tests.trainables.curvature.test_lanes import TRAINING, lanes, one_by_one
from tests.trainables.training.fixtures import double
from tests.trainables.training.lanes.comparison import configuration, digits
from tests.trainables.training.lanes.filling import alone, check_close, of_every_loss, together
from tests.trainables.training.lanes.test_equal_to_alone import HESSIAN_TRACES, OPTIMIZERS
from trainables.curvature import CurvatureSettings
from trainables.curvature.lanes import measure_lanes
from trainables.models import build_model
from trainables.training.acceleration import PLAIN, prepare_arithmetic
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.cohort import Cohort
from trainables.training.lanes.evaluation import measured_together
from trainables.training.loop import Replicate

__all__ = ["double"]

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda")
MLP, RESNET = {"name": "mlp", "width": 20}, {"name": "resnet8", "width": 0.25}

SPACE = """
dataset: {name: digits}
scheduler: {name: none, max_epochs: 6}
samples: 24
replicates: {count: 1, packing: %s}
space:
  loss: {one_of: [{name: cross_entropy}, {name: focal, gamma: {uniform: [0.5, 5]}}]}
  architecture: {name: mlp, width: 32}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.1]}, momentum: 0.9, batch_size: 32}
resources: {cpu: 1, gpu: 0.5}
evaluation: {posthoc: [temperature], curvature: {samples: 64, lanczos_steps: 3, trace_probes: 2}, bootstrap: 20}
"""


@pytest.fixture(autouse=True)
def plainly():
    """Each test begins and ends in float32."""
    prepare_arithmetic(PLAIN, "cuda")
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("architecture", [MLP, RESNET], ids=lambda a: a["name"])
def test_every_loss_in_mixed_cohorts_in_float64(double, architecture):
    data, values = digits(torch.float64).to(DEVICE), of_every_loss(architecture)[:: 1 if architecture is MLP else 3]
    check_close(
        alone(values, data, 2, device=DEVICE), together(values, data, 2, width=7, seed=0, device=DEVICE), tolerance=1e-7
    )


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_every_optimizer_in_float64(double, optimizer):
    values = [configuration("focal", MLP, **optimizer) for _ in range(3)]
    for each in values:
        each["optimizer"] = {key: value for key, value in each["optimizer"].items() if value is not None}
    data = digits(torch.float64).to(DEVICE)
    check_close(alone(values, data, 2, device=DEVICE), together(values, data, 2, width=2, seed=0, device=DEVICE))


def _cohort(values, batch_size, device=DEVICE):
    data = digits().to(device)
    built = [
        Replicate(
            {**each, "optimizer": {**each["optimizer"], "batch_size": batch_size}},
            seed=seed, dataset=data, max_epochs=4, device=device,
        )
        for seed, each in enumerate(values)
    ]  # fmt: skip
    cohort = Cohort(built[0], len(built))
    for replicate in built:
        cohort.join(replicate)
    return cohort


def _waits(train) -> Counter[str]:
    """Return how often the host waited for the card, by line."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(f"{each.filename}:{each.lineno}" for each in seen if "synchronizing" in str(each.message))


@pytest.mark.parametrize("architecture", [MLP, RESNET], ids=lambda a: a["name"])
def test_more_steps_in_an_epoch_of_lanes_are_no_more_waits(architecture):
    found = {}
    for batch_size in (128, 16):
        cohort = _cohort(of_every_loss(architecture), batch_size)
        cohort.train_epoch()
        rates = [lane.begin_epoch() for lane in cohort.lanes]
        found[batch_size] = _waits(lambda cohort=cohort, rates=rates: cohort.train_batches(rates))
        assert _waits(lambda: torch.ones(1, device=DEVICE).item()).total() == 1, "a wait is seen"
    assert found[16] == found[128]


def test_more_steps_in_an_epoch_are_no_more_waits():
    for values in of_every_loss(MLP):
        found = {}
        for batch_size in (128, 16):
            (replicate,) = _cohort([values], batch_size).lanes
            replicate.begin_epoch()
            found[batch_size] = _waits(replicate.train_batches)
        assert found[16] == found[128], values["loss"]


@pytest.mark.parametrize(("loss", "architecture"), [case for case in HESSIAN_TRACES if case[1] == "mlp"], ids=str)
def test_losses_with_a_trace_in_float64(double, loss, architecture):
    values = [configuration({**loss, "weight": loss["weight"] * (1 + n)}, architecture) for n in range(3)]
    data = digits(torch.float64).to(DEVICE)
    check_close(alone(values, data, 1, device=DEVICE), together(values, data, 1, width=2, seed=1, device=DEVICE), 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_curvature_of_lanes_is_each_ones_own(dtype):
    models = []
    for seed in range(len(TRAINING)):
        torch.manual_seed(seed)
        models.append(build_model("mlp", (1, 6, 6), 3, width=7).to(DEVICE, dtype))
    torch.manual_seed(9)
    data = torch.randn(40, 1, 6, 6, device=DEVICE, dtype=dtype), torch.randint(3, (40,), device=DEVICE)
    held, settings = lanes(models), CurvatureSettings(lanczos_steps=6, trace_probes=4)
    close = {"rel": 1e-9, "abs": 1e-12} if dtype is torch.float64 else {"rel": 1e-3, "abs": 1e-4}
    for lane, found in zip(held, measure_lanes(held, *data, settings=settings), strict=True):
        assert found is not None
        for label, values in one_by_one(lane, data, settings).items():
            own, _ = found[label]
            for name in ("lambda_max", "trace"):
                assert own[name] == pytest.approx(values[name], **close), (label, name)


def test_lanes_are_evaluated_on_the_card_as_on_the_processor(double):
    """The same weights: what a card's sums round otherwise stays in the last digits."""
    settings = EvaluationSettings.from_mapping(
        {
            "posthoc": ["temperature"],
            "bootstrap": 20,
            "curvature": {"samples": 64, "lanczos_steps": 4, "trace_probes": 2},
        }
    )
    values = [configuration(loss, MLP) for loss in ("cross_entropy", {"name": "focal", "gamma": 2.0})]
    measured = []
    for device in ("cpu", "cuda"):
        data = digits(torch.float64).to(device)
        built = [
            Replicate(each, seed=seed, dataset=data, max_epochs=4, device=device) for seed, each in enumerate(values)
        ]
        for replicate in built:
            torch.manual_seed(replicate.seed)
            replicate.model.load_state_dict(
                {name: torch.randn(tensor.shape).to(tensor) for name, tensor in replicate.model.state_dict().items()}
            )
        shared = measured_together([(replicate, "rung") for replicate in built], settings)
        rows = [replicate.evaluate(settings, "rung", shared[replicate]).rows for replicate in built]
        measured.append([row for own in rows for row in own])
    for on_cpu, on_card in zip(*measured, strict=True):
        assert on_cpu.keys() == on_card.keys() and len(on_cpu) > 20
        for name, value in on_cpu.items():
            if isinstance(value, float):
                assert on_card[name] == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name


def test_a_sweep_of_cohorts_on_shares_of_the_card_ends_as_one_by_one_and_survives_a_killed_one(tmp_path):
    measured, names = {}, ("val_nll", "val_accuracy")
    for packing in ("sequential", "lanes"):
        space, paths = write_space(tmp_path, SPACE % packing), SweepPaths(tmp_path / "results" / packing)
        with started("run", space, "--name", packing, "--no-mlflow", cwd=tmp_path) as process:
            if packing == "lanes":
                wait_until(lambda paths=paths: any(r.kind == "report" for r in read_journal(paths.journal)), 120)
                kill_ids(trial_processes(process.pid)[0])
            assert process.wait(200) == 0
        measured[packing] = metrics_by_key(reports(paths))
        assert {row["device"] for row in load(paths.root).rows("SELECT device FROM trials")} == {"cuda"}
    one_by_one, as_lanes = measured["sequential"], measured["lanes"]
    assert one_by_one.keys() == as_lanes.keys() and len(one_by_one) >= 24
    for key, row in one_by_one.items():
        for name in names:
            if name in row:
                assert row[name] == pytest.approx(as_lanes[key][name], rel=0.1, abs=0.02), key
