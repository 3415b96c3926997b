"""Blocks against the diagonal blocks of dense Hessians; their traces sum to the whole's."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from trainables.curvature import CurvatureSettings, CurvatureUnavailable
from trainables.curvature.blocks import block_names
from trainables.curvature.measure import measure_by_block, measure_curvature
from trainables.losses import build_loss
from trainables.models import build_model
from trainables.training.fine_tuning import layer_numbers

THOROUGH = CurvatureSettings(lanczos_steps=60, block_steps=60, residual_tolerance=1e-6, trace_probes=8)


def by_module(model):
    return {name: name.rpartition(".")[0] for name, _ in model.named_parameters()}


def measured(model, data, settings=THOROUGH, loss=cross_entropy):
    found = measure_by_block(model, *data, {"loss": loss}, settings=settings, seed=0, blocks=by_module(model))
    return found["loss"]


def dense_blocks(reference, model, data, loss=cross_entropy):
    hessian = reference.dense_hessian(model, *data, loss)
    places, at = {}, 0
    for name, parameter in model.named_parameters():
        places.setdefault(name.rpartition(".")[0], []).extend(range(at, at + parameter.numel()))
        at += parameter.numel()
    return {name: hessian[rows][:, rows] for name, rows in places.items()}


@pytest.mark.parametrize("kind", ["mlp", "tanh", "conv", "attention"])
@pytest.mark.parametrize("loss", [cross_entropy, build_loss("focal", gamma=3.0)])
def test_each_block_is_that_of_the_dense_hessian(reference, kind, loss):
    model, data = reference.build(kind), reference.batch()
    values, rows = measured(model, data, loss=loss)
    dense = dense_blocks(reference, model, data, loss)
    assert [row["block"] for row in rows] == [*dense]
    assert [row["layer"] for row in rows] == [*range(len(dense))]
    for row in rows:
        own = dense[row["block"]]
        assert row["parameters"] == len(own)
        top = float(torch.linalg.eigvalsh(own)[-1])
        assert math.isclose(row["lambda_max"], top, rel_tol=1e-5, abs_tol=1e-9)
        if kind in ("mlp", "conv"):
            assert row["trace_se"] == 0 and math.isclose(row["trace"], float(own.trace()), rel_tol=1e-9)
        else:
            assert abs(row["trace"] - float(own.trace())) <= 4 * row["trace_se"] + 1e-9
    assert math.isclose(sum(row["trace"] for row in rows), values["trace"], rel_tol=1e-9)
    norms = math.sqrt(sum(row["gradient_norm"] ** 2 for row in rows))
    assert math.isclose(norms, values["gradient_norm"], rel_tol=1e-9)


@pytest.mark.parametrize("kind", ["conv", "tanh"])
def test_blocks_change_nothing_of_the_whole(reference, kind):
    model, data = reference.build(kind), reference.batch()
    settings = CurvatureSettings(lanczos_steps=5, trace_probes=9)
    alone = measure_curvature(model, *data, {"loss": cross_entropy}, settings=settings, seed=0)["loss"]
    values, rows = measured(model, data, settings)
    assert values == alone
    assert math.isclose(sum(row["trace"] for row in rows), values["trace"], rel_tol=1e-9)


def test_many_classes_take_probes_of_their_own(reference):
    model, data = reference.build("mlp", classes=40), reference.batch(classes=40)
    values, rows = measured(model, data, CurvatureSettings(lanczos_steps=8, trace_probes=64))
    total, error = sum(row["trace"] for row in rows), math.hypot(*(row["trace_se"] for row in rows))
    assert values["trace_se"] > 0 and abs(total - values["trace"]) <= 4 * (error + values["trace_se"])


def test_a_parameter_without_a_block_is_refused(reference):
    model, data = reference.build("mlp"), reference.batch()
    with pytest.raises(CurvatureUnavailable, match="has none"):
        measure_by_block(model, *data, {"loss": cross_entropy}, settings=THOROUGH, seed=0, blocks={})


def test_layers_are_called_by_what_their_parameters_share():
    numbers = layer_numbers(build_model("resnet8", (3, 8, 8), 10))
    names = [*dict.fromkeys(block_names(numbers).values())]
    assert [name.split()[0] for name in names] == [str(number) for number in sorted({*numbers.values()})]
    assert len(names) == 5 and all(" " in name for name in names)
    assert block_names({"a.weight": 0, "b.weight": 0, "c": 1}) == {"a.weight": "0 a", "b.weight": "0 a", "c": "1"}
