"""Faster arithmetic changes training steps and nothing else; what cannot be had is refused in a sentence."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from tests.trainables.small_trials import finished, timeless as texts
from tests.trainables.training.lanes.comparison import configuration, digits, timeless
from trainables.curvature.hessian import second_order
from trainables.training.acceleration import (
    PLAIN,
    CannotCompileError,
    TrainingSettings,
    acceleration_fault,
    compiler_fault,
    data_place,
    gpu_fault,
    laid_out,
    prepare_arithmetic,
    training_arithmetic,
)
from trainables.training.evaluation import EvaluationSettings
from trainables.training.lanes.cohort import Lanes
from trainables.training.lanes.packing import LANES, SEQUENTIAL, cohort_fault
from trainables.training.loop import Replicate
from trainables.training.prediction import epoch_metrics, predict
from trainables.worker.checkpoints import checkpoint_file
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import Assignment, TrialSettings

BFLOAT16 = TrainingSettings(precision="bfloat16")
CHANNELS_LAST = TrainingSettings(memory_format="channels_last")
TF32 = TrainingSettings(precision="tf32")
COMPILED = TrainingSettings(compile=True)
RESNET = {"name": "resnet8", "width": 0.25}
SETTINGS = TrialSettings(
    dataset={"name": "digits"},
    max_epochs=3,
    rungs=(3,),
    objective="val_nll",
    evaluation=EvaluationSettings.from_mapping({"posthoc": ["temperature"], "bootstrap": 5, "curvature": False}),
    report_seconds=0.0,
)


@pytest.fixture(scope="module")
def data():
    return digits()


def _replicates(data, training, architecture="mlp", seeds=(1, 2), loss="focal"):
    values = configuration(loss, architecture)
    return [Replicate(values, seed=seed, dataset=data, max_epochs=3, training=training) for seed in seeds]


@pytest.mark.parametrize(
    ("loss", "architecture"), [("focal", "mlp"), ("mmce", "mlp"), ("selective_risk", "mlp"), ("focal", RESNET)], ids=str
)
def test_bfloat16_trains_about_as_float32_does_alone_and_in_lanes(data, loss, architecture):
    exact = [replicate.train_epoch() for replicate in _replicates(data, PLAIN, architecture, loss=loss)]
    alone = _replicates(data, BFLOAT16, architecture, loss=loss)
    together = _replicates(data, BFLOAT16, architecture, loss=loss)
    rounded = [replicate.train_epoch() for replicate in alone]
    lanes = Lanes(together).train_epoch()
    for plain, *others in zip(exact, rounded, lanes, strict=True):
        for row in others:
            assert row["train_loss"] == pytest.approx(plain["train_loss"], rel=0.05)
            assert row["train_loss"] != plain["train_loss"], "something was rounded"
    for replicate in (*alone, *together):
        assert {tensor.dtype for tensor in replicate.model.parameters()} == {torch.float32}
        assert {p.grad.dtype for p in alone[0].model.parameters()} == {torch.float32}


@pytest.mark.parametrize("training", [BFLOAT16, CHANNELS_LAST], ids=lambda t: t.described)
def test_measurements_are_those_of_the_plain_network(data, training):
    """The same weights, in a replicate without any of it, give the same bits for validation and evaluation."""
    (trained,) = _replicates(data, training, RESNET, seeds=(1,))
    row = trained.train_epoch()
    (plain,) = _replicates(data, PLAIN, RESNET, seeds=(1,))
    plain.model.load_state_dict(trained.model.state_dict())
    logits = predict(plain.model, data.val)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(predict(trained.model, data.val), logits, rtol=1e-5, atol=1e-5)
    assert epoch_metrics(logits, data.val.targets, 15)["val_nll"] == pytest.approx(row["val_nll"], rel=1e-5)
    settings = EvaluationSettings.from_mapping({"curvature": {"samples": 30, "lanczos_steps": 2, "trace_probes": 2}})
    one, other = (r.evaluate(settings, "end").rows[0] for r in (trained, plain))
    for column in ("nll", "hessian_cross_entropy_lambda_max", "hessian_cross_entropy_trace"):
        assert one[column] == pytest.approx(other[column], rel=1e-3), column


def test_channels_last_is_the_same_training_up_to_rounding(data):
    one, other = (_replicates(data, training, RESNET, seeds=(1,))[0] for training in (PLAIN, CHANNELS_LAST))
    assert one.train_epoch()["train_loss"] == pytest.approx(other.train_epoch()["train_loss"], rel=1e-4)
    convolution = next(module for module in other.model.modules() if isinstance(module, torch.nn.Conv2d))
    wide = next(p for p in other.model.parameters() if p.dim() == 4 and min(p.shape) > 1)
    assert wide.is_contiguous(memory_format=torch.channels_last) and convolution.weight.dtype == torch.float32
    images = torch.randn(2, 3, 4, 4)
    assert laid_out(images, CHANNELS_LAST).is_contiguous(memory_format=torch.channels_last)
    assert laid_out(images, PLAIN) is images and laid_out(images[0], CHANNELS_LAST).dim() == 3


@pytest.mark.parametrize(
    ("training", "packing", "architecture"),
    [
        (BFLOAT16, SEQUENTIAL, RESNET),
        (BFLOAT16, LANES, RESNET),
        (CHANNELS_LAST, SEQUENTIAL, RESNET),
        pytest.param(COMPILED, SEQUENTIAL, {"name": "mlp", "width": 24}, marks=pytest.mark.slow),
        pytest.param(COMPILED, LANES, {"name": "mlp", "width": 24}, marks=pytest.mark.slow),
        pytest.param(replace(BFLOAT16, compile=True), SEQUENTIAL, RESNET, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_resumed_trial_equals_the_uninterrupted_one(tmp_path, data, training, packing, architecture):
    settings = replace(SETTINGS, training=training, packing=packing)
    assignment = Assignment(0, "c00000", configuration("focal", architecture), (5, 6))
    expected = texts(finished(Trial(assignment, settings, data)))
    kept = replace(settings, checkpoints=tmp_path)
    Trial(assignment, kept, data).advance()
    assert checkpoint_file(tmp_path / "c00000", 1).exists()
    assert texts(finished(Trial(assignment, kept, data))) == expected


@pytest.mark.slow
def test_a_compiled_network_trains_as_the_plain_one_alone_and_in_lanes(data):
    exact = [replicate.train_epoch()["train_loss"] for replicate in _replicates(data, PLAIN)]
    alone = [replicate.train_epoch()["train_loss"] for replicate in _replicates(data, COMPILED)]
    lanes = [row["train_loss"] for row in Lanes(_replicates(data, COMPILED)).train_epoch()]
    assert alone == pytest.approx(exact, rel=1e-4) and lanes == pytest.approx(exact, rel=1e-4)


@pytest.fixture
def translated(monkeypatch):
    """The graphs that are translated; each runs as it is, so that no compiler is needed."""
    graphs, compile = [], torch.compile

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda forward: compile(forward, backend=backend))
    return graphs


@pytest.mark.integration
def test_a_process_that_trains_many_networks_translates_each(data, translated):
    for width in range(4, 4 + torch._dynamo.config.recompile_limit + 2):
        before = len(translated)
        for replicate in _replicates(data, COMPILED, {"name": "mlp", "width": width}):
            replicate.train_epoch()
        assert len(translated) > before, f"width {width} ran as plain Python"


def test_one_network_with_too_many_variants_fails_in_a_sentence(data, translated):
    with torch._dynamo.config.patch(recompile_limit=1):
        (replicate,) = _replicates(data, COMPILED, {"name": "mlp", "width": 21}, seeds=(1,))
        with pytest.raises(CannotCompileError, match=r"more than 1 variants .*; set training.compile: false"):
            for dtype in (torch.float32, torch.float64) * 2:
                replicate.model.to(dtype)
                replicate._forward(torch.zeros(2, *data.input_shape, dtype=dtype))


@pytest.mark.parametrize("architecture", [{"name": "mlp", "width": 19}, RESNET], ids=str)
def test_many_replicates_share_what_was_translated(data, translated, architecture):
    replicates = _replicates(data, COMPILED, architecture, seeds=range(torch._dynamo.config.recompile_limit + 2))
    for _ in range(2):
        for replicate in replicates:
            replicate.train_epoch()
    assert 0 < len(translated) <= torch._dynamo.config.recompile_limit


def test_a_missing_compiler_is_said_before_the_run_and_in_a_trial(data, monkeypatch):
    from torch._inductor import config

    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert "compile = true needs a C++ compiler, and /nowhere/g++ is not on" in compiler_fault(COMPILED)
    assert compiler_fault(PLAIN) is None
    with config.patch({"cpp.cxx": ("/nowhere/g++",), "force_disable_caches": True}):
        (replicate,) = _replicates(data, COMPILED, {"name": "mlp", "width": 23}, seeds=(1,))
        with pytest.raises(
            CannotCompileError, match=r"could not translate the network .*; set training.compile: false"
        ):
            replicate.train_epoch()


def test_what_cannot_be_combined_is_refused_in_a_sentence(data):
    trace = ("hessian_trace", "mlp")
    assert "precision = bfloat16 cannot train hessian_trace" in acceleration_fault(*trace, BFLOAT16)
    assert "compile = true cannot train hessian_trace" in acceleration_fault(*trace, COMPILED)
    assert acceleration_fault(*trace, TF32) is None
    assert acceleration_fault(*trace, CHANNELS_LAST) is None and acceleration_fault("focal", "mlp", BFLOAT16) is None
    assert "cannot train tree_lstm" in acceleration_fault("focal", "tree_lstm", COMPILED)
    assert "layout cannot be channels_last" in cohort_fault(configuration(architecture="resnet8"), CHANNELS_LAST)
    with pytest.raises(CannotCompileError, match="choose packing: sequential, or compile: false"):
        Lanes(_replicates(data, COMPILED, {"name": "wide_resnet", "depth": 10, "width": 0.25, "dropout": 0.4}))


def _switches():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def as_before():
    matmul, convolutions = _switches()
    deterministic = torch.backends.cudnn.deterministic
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, convolutions
    torch.backends.cudnn.deterministic = deterministic
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("left", [True, False])
def test_only_a_step_that_asks_for_tf32_has_it_in_products_and_convolutions_alike(left):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = left
    card = torch.device("cuda")
    for settings, within in ((PLAIN, (False, False)), (TF32, (True, True)), (BFLOAT16, (False, False))):
        with training_arithmetic(settings, card):
            assert _switches() == within
            with second_order(torch.device("cpu")):
                assert _switches() == (False, False), "second derivatives are in float32 whatever surrounds them"
            assert _switches() == within
        assert _switches() == (left, left)
    prepare_arithmetic(TF32, "cuda")
    assert _switches() == (False, False), "what is measured is measured in float32"


@pytest.mark.usefixtures("as_before")
def test_cudnn_looks_for_the_fastest_kernels_in_training_steps_that_need_not_repeat(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    for settings in (PLAIN, BFLOAT16, replace(PLAIN, deterministic=True)):
        prepare_arithmetic(settings, "cuda")
        assert not torch.backends.cudnn.benchmark
        with training_arithmetic(settings, torch.device("cuda")):
            assert torch.backends.cudnn.benchmark is not settings.deterministic
            with second_order(torch.device("cpu")):
                assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.benchmark, "what is measured does not depend on which kernel was faster"


@pytest.mark.usefixtures("as_before")
def test_determinism_is_asked_of_torch_and_taken_back_in_a_reused_process(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for settings in (PLAIN, replace(PLAIN, deterministic=True), PLAIN):
        prepare_arithmetic(settings, "cuda")
        assert torch.are_deterministic_algorithms_enabled() is settings.deterministic
        assert torch.backends.cudnn.deterministic is settings.deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_on_a_cpu_tf32_is_float32_and_deterministic_changes_no_bit(data):
    rows = []
    for training in (PLAIN, TF32, replace(PLAIN, deterministic=True)):
        prepare_arithmetic(training, "cpu")
        rows.append([timeless([r.train_epoch()]) for r in _replicates(data, training, RESNET)])
        rows.append([timeless(Lanes(_replicates(data, training)).train_epoch())])
    prepare_arithmetic(PLAIN, "cpu")
    assert rows[0:2] == rows[2:4] == rows[4:6]


@pytest.mark.parametrize(("capability", "refused"), [((7, 5), True), ((8, 0), False), ((9, 0), False)])
def test_tf32_is_refused_on_a_card_without_it(monkeypatch, capability, refused):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    assert gpu_fault(PLAIN) is None
    fault = gpu_fault(TF32)
    assert (fault is not None) is refused
    if fault is not None:
        assert fault.startswith("precision = tf32 needs a GPU of compute capability 8.0") and "T4 has 7.5" in fault


@pytest.mark.parametrize(
    ("data", "size", "device", "share", "place"),
    [
        ("auto", 10**12, "cpu", 0.0, "device"),
        ("host", 1, "cpu", 0.0, "host"),
        ("auto", 40, "cuda", 0.0, "device"),
        ("auto", 60, "cuda", 0.0, "host"),
        ("auto", 40, "cuda", 0.5, "host"),
        ("auto", 25, "cuda", 0.5, "device"),
        ("device", 10**12, "cuda", 0.1, "device"),
        ("host", 1, "cuda", 1.0, "host"),
    ],
)
def test_data_stay_on_the_host_where_they_do_not_fit(monkeypatch, data, size, device, share, place):
    class Card:
        total_memory = 100

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    assert data_place(TrainingSettings(data=data), size, device, share) == place
