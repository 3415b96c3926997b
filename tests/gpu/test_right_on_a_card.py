"""On a real card: what a measurement may take and what it leaves, which arithmetic is used, what a resumed trial holds.

Run with `make check-gpu`. The logic of each is tested without a card beside its module.
"""

import gc
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import conv2d, cross_entropy

from tests.trainables.training.lanes.comparison import configuration, digits, timeless
from trainables.curvature import CurvatureSettings, CurvatureUnavailable, measure_curvature
from trainables.losses import build_loss
from trainables.models import build_model
from trainables.training.acceleration import PLAIN, TrainingSettings, prepare_arithmetic, training_arithmetic
from trainables.training.loop import Replicate
from trainables.worker.checkpoints import load_newest_checkpoint, write_checkpoint

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
GIB = 2**30
RESNET = {"name": "resnet8", "width": 0.5}
ADAM = {"name": "adam", "lr": 0.01, "batch_size": 64}
DETERMINISTIC = TrainingSettings(deterministic=True)


@pytest.fixture(scope="module")
def data():
    return digits().to(DEVICE)


@pytest.fixture(autouse=True)
def whole_card():
    """Each test begins with a whole card, in float32."""
    prepare_arithmetic(PLAIN, DEVICE)
    yield
    prepare_arithmetic(PLAIN, DEVICE)
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


def _take(gibibytes: float) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        min(0.9, gibibytes * GIB / torch.cuda.get_device_properties(0).total_memory)
    )


def _measure(batch_size: int = 128) -> dict[str, float]:
    torch.manual_seed(0)
    model = build_model("resnet8", (3, 32, 32), 10).to(DEVICE)
    inputs, targets = torch.randn(2048, 3, 32, 32, device=DEVICE), torch.randint(10, (2048,), device=DEVICE)
    settings = CurvatureSettings(lanczos_steps=6, trace_probes=2, batch_size=batch_size)
    return measure_curvature(model, inputs, targets, {"training": cross_entropy}, settings=settings, seed=0)["training"]


def test_curvature_keeps_to_its_share_and_measures_the_same_bits_there():
    whole = _measure()
    _take(8)
    torch.cuda.reset_peak_memory_stats()
    assert _measure() == whole
    assert torch.cuda.max_memory_reserved() <= 8 * GIB


def test_curvature_that_does_not_fit_asks_for_a_larger_share_and_on_a_whole_card_says_so():
    _take(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        _measure(batch_size=2048)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - GIB // 2), dtype=torch.uint8, device=DEVICE)
    with pytest.raises(CurvatureUnavailable, match="ran out of memory"):
        _measure(batch_size=2048)
    del ballast


def test_a_measurement_leaves_nothing_on_the_card():
    _measure()  # what libraries keep is theirs from now on
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        _measure()
        assert torch.cuda.memory_allocated() == before
    finally:
        gc.enable()


def _replicate(data, loss="cross_entropy", architecture=RESNET, training=PLAIN):
    values = {**configuration(loss, architecture), "optimizer": ADAM}
    return Replicate(values, seed=1, dataset=data, max_epochs=4, device=DEVICE, training=training)


@pytest.mark.parametrize("loss", ["cross_entropy", "adafocal", {"name": "hessian_trace", "weight": 0.01}], ids=str)
def test_a_resumed_adam_counts_on_the_cpu_and_continues_as_it_would_have(tmp_path, data, loss):
    prepare_arithmetic(DETERMINISTIC, DEVICE)
    first = _replicate(data, loss, {"name": "mlp", "width": 16})
    first.train_epoch()
    write_checkpoint(tmp_path, 1, first.state_dict())
    state = load_newest_checkpoint(tmp_path)
    assert state is not None
    second = _replicate(data, loss, {"name": "mlp", "width": 16})
    second.load_state_dict(state)
    assert timeless([second.train_epoch()]) == timeless([first.train_epoch()])
    for own in second.optimizer.state.values():
        assert own["step"].device.type == "cpu" and own["exp_avg"].device.type == DEVICE


def test_probes_are_drawn_on_the_card(data):
    loss = build_loss("hessian_trace", probes=2, seed=5)
    parameters = [torch.zeros(100_000, device=DEVICE)]
    one, other = (weight for (weight,) in loss.draw(parameters))
    assert one.device.type == DEVICE and set(one.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(one.mean())) < 0.02 and abs(float((one * other).mean())) < 0.02
    loss.reseed(5)
    assert torch.equal(loss.draw(parameters)[0][0], one)


def test_float32_is_float32_in_products_and_convolutions_and_tf32_is_not():
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this card has no TF32")
    torch.manual_seed(0)
    images, kernels = torch.randn(8, 64, 32, 32, device=DEVICE), torch.randn(64, 64, 3, 3, device=DEVICE)
    matrix = torch.randn(1024, 1024, device=DEVICE)

    def errors(precision):
        with training_arithmetic(TrainingSettings(precision=precision), torch.device(DEVICE)):
            found = [conv2d(images, kernels), matrix @ matrix]
        exact = [conv2d(images.double(), kernels.double()), matrix.double() @ matrix.double()]
        return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, exact, strict=True)]

    assert max(errors("float32")) < 1e-5 and min(errors("tf32")) > 1e-5
    exact = [conv2d(images.double(), kernels.double()), matrix.double() @ matrix.double()]
    for found, reference in zip([conv2d(images, kernels), matrix @ matrix], exact, strict=True):
        torch.testing.assert_close(found.double(), reference, rtol=0, atol=1e-5 * float(reference.abs().max()))


@pytest.mark.parametrize("loss", ["cross_entropy", "adafocal"])
def test_deterministic_training_gives_the_same_bits_twice(data, loss):
    prepare_arithmetic(DETERMINISTIC, DEVICE)
    rows = []
    for _ in range(2):
        replicate = _replicate(data, loss, training=DETERMINISTIC)
        rows.append(timeless([replicate.train_epoch() for _ in range(3)]))
    assert rows[0] == rows[1]


def test_a_process_compiles_more_networks_than_one_code_may_have_variants(data):
    from torch._dynamo.utils import counters

    for width in range(4, 4 + torch._dynamo.config.recompile_limit + 2):
        before = counters["stats"]["unique_graphs"]
        _replicate(
            data, architecture={"name": "mlp", "width": width}, training=replace(PLAIN, compile=True)
        ).train_epoch()
        assert counters["stats"]["unique_graphs"] > before, width
