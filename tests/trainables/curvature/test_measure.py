"""One measurement against the dense Hessian, and what it must leave alone."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from trainables.curvature import CURVATURE_FIELDS, CurvatureSettings, measure_curvature


def dense_hessian(model, inputs, targets, loss):
    """The Hessian [P, P] of a mean loss over all parameters, entry by entry, by torch.func."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    shapes = [p.shape for p in parameters.values()]
    flat = torch.cat([p.reshape(-1) for p in parameters.values()])

    def value(vector):
        pieces = vector.split([shape.numel() for shape in shapes])
        named = {name: piece.view(shape) for name, piece, shape in zip(parameters, pieces, shapes, strict=True)}
        return loss(torch.func.functional_call(model, named, (inputs,)), targets)

    return torch.func.hessian(value)(flat)


def test_matches_dense_hessian():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    inputs, targets = torch.randn(20, 4).double(), torch.randint(0, 3, (20,))
    eigenvalues = torch.linalg.eigvalsh(dense_hessian(model, inputs, targets, cross_entropy))
    settings = CurvatureSettings(lanczos_steps=51, residual_tolerance=1e-6, max_matvecs=400)
    found = measure_curvature(model, inputs, targets, {"cross_entropy": cross_entropy}, settings=settings, seed=0)
    row = found["cross_entropy"]
    assert set(row) == set(CURVATURE_FIELDS)
    assert abs(row["lambda_max"] / float(eigenvalues[-1]) - 1) < 1e-4
    assert abs(row["lambda_min"] / float(eigenvalues[0]) - 1) < 1e-4
    assert abs(row["trace"] - float(eigenvalues.sum())) < 5 * row["trace_se"] + 1e-8
