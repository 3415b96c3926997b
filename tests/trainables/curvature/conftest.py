"""What the curvature tests share: the dense Hessian, entry by entry, and small networks of each kind."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

torch.set_num_threads(1)


def dense_hessian(model, inputs, targets, loss):
    """The Hessian [P, P] of a mean loss over all trainable parameters, entry by entry, by torch.func.

    torch.func's second derivatives of layer_norm, and of batch_norm by a batch's statistics, in their own weights are
    wrong (torch 2.13: the matrix is not even symmetric); torch.autograd.functional takes its place there.
    """
    trainable = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    shapes = [p.shape for p in trainable.values()]
    flat = torch.cat([p.reshape(-1) for p in trainable.values()])

    def value(vector):
        pieces = vector.split([shape.numel() for shape in shapes])
        named = {name: piece.view(shape) for name, piece, shape in zip(trainable, pieces, shapes, strict=True)}
        return loss(torch.func.functional_call(model, named, (inputs.clone(),)), targets)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        found = torch.func.hessian(value)(flat).detach()
        if torch.allclose(found, found.T, rtol=0.0, atol=1e-9 * float(found.abs().max())):
            return found
        return torch.autograd.functional.hessian(value, flat)


class Residual(nn.Module):
    """Two convolutions with batch-norm beside a shortcut."""

    def __init__(self, width):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, inputs):
        hidden = torch.relu(self.norm1(self.conv1(inputs)))
        return torch.relu(inputs + self.norm2(self.conv2(hidden)))


class Attention(nn.Module):
    """One self-attention layer with layer-norm over the rows of an image."""

    def __init__(self, width, classes, affine):
        super().__init__()
        self.embed, self.norm = nn.Linear(width, 6), nn.LayerNorm(6, elementwise_affine=affine)
        self.mix, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, classes)

    def forward(self, inputs):
        tokens = self.norm(self.embed(inputs.flatten(1, 2)))
        return self.head((tokens + self.mix(tokens, tokens, tokens, need_weights=False)[0]).mean(1))


def build(kind, classes=3):
    """A small network in double precision for images [N, 1, 6, 6], with batch-norm statistics that are not trivial."""
    torch.manual_seed(0)
    networks = {
        "mlp": lambda: [nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, classes)],
        "tanh": lambda: [nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, classes)],
        "conv": lambda: [
            nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
            Residual(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes),
        ],
        "attention": lambda: [Attention(6, classes, affine=False)],
        "attention with layer-norm weights": lambda: [Attention(6, classes, affine=True)],
    }  # fmt: skip
    model = nn.Sequential(*networks[kind]()).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, -1.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model


def batch(count=20, classes=3, seed=1):
    """Random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, 6, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, classes, (count,), generator=generator)


@pytest.fixture(scope="session")
def reference():
    return SimpleNamespace(dense_hessian=dense_hessian, build=build, batch=batch, Residual=Residual)
