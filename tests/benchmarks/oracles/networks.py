"""Curvature of torchvision's, timm's and transformers' networks beside plain gradients of the networks themselves.

Random weights in float64 and tiny inputs, with in-place operations as they come and without them. A product is compared
with finite differences of gradients; (λ_max, v) with such a difference along v; an exact trace with the sum of
⟨H_z, J_i J_iᵀ⟩ from a backward pass for each logit; a probed trace with probes of finite differences.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tests.benchmarks.oracles import package
from trainables.curvature import CurvatureSettings
from trainables.curvature.hessian import HessianOperator, LossFunction, Surface
from trainables.curvature.lanczos import complete_run
from trainables.curvature.measure import lanczos_for_ends, of_each_loss
from trainables.curvature.trace import TraceEstimate, hutchinson, mean_and_error, per_sample_trace

CLASSES, SAMPLES, PROBES, STEP = 4, 4, 12, 1e-9
TORCHVISION = {
    "resnet18": 32, "squeezenet1_1": 32, "shufflenet_v2_x0_5": 32, "mobilenet_v2": 32, "mnasnet0_5": 32,
    "densenet121": 32, "efficientnet_b0": 32, "regnet_x_400mf": 32, "regnet_y_400mf": 32, "googlenet": 32,
}  # fmt: skip
TIMM = {
    "test_resnet": 32, "test_byobnet": 32, "test_efficientnet": 32, "test_convnext": 32, "test_nfnet": 32,
    "test_vit": 160, "test_mambaout": 32, "resnet10t": 32, "test_efficientnet_gn": 32, "test_vit_relpos": 160,
}  # fmt: skip
TRANSFORMERS = ("bert", "gpt2", "vit")


class Case(NamedTuple):
    """A network and what it is measured on."""

    library: str
    name: str
    network: nn.Module
    inputs: Tensor
    targets: Tensor


class Logits(nn.Module):
    """A network of transformers as a function from inputs to logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [N, K]."""
        logits: Tensor = self.network(inputs).logits
        return logits


def _of_transformers(name: str) -> tuple[nn.Module, Tensor]:
    library = package("transformers")
    small: dict[str, Any] = {"num_labels": CLASSES, "id2label": dict(enumerate("abcd"))}
    wide = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    if name == "vit":
        config = library.ViTConfig(image_size=16, patch_size=8, **wide, **small)
        return library.ViTForImageClassification(config), torch.randn(SAMPLES, 3, 16, 16)
    tokens = torch.randint(1, 30, (SAMPLES, 7))
    if name == "gpt2":
        config = library.GPT2Config(
            vocab_size=30, n_embd=16, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small
        )
        return library.GPT2ForSequenceClassification(config), tokens
    return library.BertForSequenceClassification(library.BertConfig(vocab_size=30, **wide, **small)), tokens


def _leave_the_kinks(network: nn.Module) -> None:
    """Move biases, scales and statistics off their first values, at which a ReLU's input may be exactly 0."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2.0)
    for parameter in network.parameters():
        if parameter.dim() < 2:
            parameter.data += 0.1 * torch.randn_like(parameter)


def case(library: str, name: str, in_place: bool = True) -> Case:
    """Build a network with random weights; without `in_place`, its modules' in-place operations are switched off."""
    torch.manual_seed(0)
    if library == "transformers":
        network, inputs = _of_transformers(name)
        network = Logits(network)
    elif library == "timm":
        network = package("timm").create_model(name, num_classes=CLASSES)
        inputs = torch.randn(SAMPLES, 3, TIMM[name], TIMM[name])
    else:
        more = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
        network = package("torchvision").models.get_model(name, num_classes=CLASSES, **more)
        inputs = torch.randn(SAMPLES, 3, TORCHVISION[name], TORCHVISION[name])
    for module in network.modules():
        if not in_place and getattr(module, "inplace", False):
            module.inplace = False
    _leave_the_kinks(network)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    return Case(library, name, network.double().eval(), inputs, torch.arange(SAMPLES) % CLASSES)


class Reference:
    """A network's mean loss by plain gradients of it, in a copy of its own."""

    def __init__(self, given: Case, loss: LossFunction) -> None:
        self.network, self._given, self._loss = copy.deepcopy(given.network), given, loss
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self._at = nn.utils.parameters_to_vector(self.parameters).detach()

    def gradient(self, moved: Tensor) -> Tensor:
        """Return the gradient [P] at the weights moved by `moved` [P]."""
        nn.utils.vector_to_parameters(self._at + moved, self.parameters)
        value = self._loss(self.network(self._given.inputs.clone()), self._given.targets)
        found = torch.autograd.grad(value, self.parameters, allow_unused=True)
        nn.utils.vector_to_parameters(self._at, self.parameters)
        return self._flat(found)

    def product(self, vector: Tensor) -> Tensor:
        """Return H·vector [P], by a central difference over a short way along it."""
        step = STEP * max(1.0, float(self._at.norm())) / float(vector.norm()) * vector
        return (self.gradient(step) - self.gradient(-step)) * (vector.norm() / step.norm() / 2)

    def gauss_newton_trace(self) -> float:
        """Return Σ_i ⟨H_z,i, J_i J_iᵀ⟩, of a backward pass for each logit."""
        total = 0.0
        for sample, target in zip(self._given.inputs.split(1), self._given.targets.split(1), strict=True):
            logits = self.network(sample.clone())
            curved = torch.autograd.functional.hessian(lambda z, y=target: self._loss(z, y), logits.detach())
            rows = [torch.autograd.grad(z, self.parameters, retain_graph=True, allow_unused=True) for z in logits[0]]
            jacobian = torch.stack([self._flat(row) for row in rows])
            total += float((curved.view(CLASSES, CLASSES) * (jacobian @ jacobian.T)).sum())
        return total / SAMPLES

    def _flat(self, tensors: Any) -> Tensor:
        pairs = zip(tensors, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).reshape(-1) for t, p in pairs]).detach()


class Measured(NamedTuple):
    """What the project computes of a case: a random vector and its product, an eigenpair, the trace."""

    vector: Tensor
    product: Tensor
    lambda_max: float
    top: Tensor
    trace: TraceEstimate


def measured(given: Case, loss: LossFunction) -> Measured:
    """Compute it, as `measure_curvature` does. Raises CurvatureUnavailable as that does."""
    settings = CurvatureSettings(lanczos_steps=12, residual_tolerance=1e-4, samples=None)

    def compute(surface: Surface, loss: LossFunction) -> Measured:
        operator = HessianOperator(surface, loss)
        operator.require_symmetric()
        generator = torch.Generator().manual_seed(0)
        ends = complete_run(lanczos_for_ends(operator, settings, generator), operator.product)
        vector = torch.randn(surface.dimension, generator=generator, dtype=surface.basis_type)
        trace = per_sample_trace(operator, generator)
        if trace is None:
            trace = hutchinson(operator.products_of, ends, PROBES, generator)
        return Measured(vector, operator.product(vector), ends.lambda_max, ends.top, trace)

    data = (given.network, given.inputs, given.targets, {"loss": loss})
    return of_each_loss(compute, *data, settings, "the curvature", basis_rows=settings.lanczos_steps)["loss"]


def differences(given: Case, loss: LossFunction = cross_entropy) -> Iterator[tuple[str, float]]:
    """Yield how far the project is from plain gradients: of H·v, of (λ_max, v) and of the trace."""
    found, reference = measured(given, loss), Reference(given, loss)
    expected = reference.product(found.vector)
    yield "H·v, relative", float((found.product - expected).norm() / expected.norm())
    rayleigh = float(found.top @ reference.product(found.top)) / float(found.top @ found.top)
    yield "λ_max, relative", found.lambda_max / rayleigh - 1
    if found.trace.standard_error == 0:
        yield "Tr(H), exact, relative", found.trace.value / reference.gauss_newton_trace() - 1
        return
    generator, signs = torch.Generator().manual_seed(1), (-1.0, 1.0)
    drawn = [
        torch.tensor(signs, dtype=torch.float64)[torch.randint(2, expected.shape, generator=generator)]
        for _ in range(2 * PROBES)
    ]
    mean, error = mean_and_error([float(v @ reference.product(v)) for v in drawn])
    both = math.hypot(error, found.trace.standard_error)
    yield "Tr(H), probed, in standard errors", (found.trace.value - mean) / both


BUILDERS: list[tuple[str, str]] = [
    *(("torchvision", name) for name in TORCHVISION),
    *(("timm", name) for name in TIMM),
    *(("transformers", name) for name in TRANSFORMERS),
]


def of(library: str) -> Callable[[int], Iterator[tuple[str, float]]]:
    """Return the comparison with a library's networks: a seed is a network, and in-place operations or none."""
    names = [name for own, name in BUILDERS if own == library]

    def compare(seed: int) -> Iterator[tuple[str, float]]:
        if seed < 2 * len(names):
            for words, difference in differences(case(library, names[seed // 2], in_place=seed % 2 == 0)):
                yield f"networks of {library}: {words}", difference

    return compare
