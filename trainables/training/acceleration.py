"""How training is computed: in which precision, memory layout and by which compiler. Measurements stay as they are.

These options change the arithmetic of training steps alone. Validation, evaluation and curvature always run in
float32 on the plain network, so that what is compared between sweeps is measured alike.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES
from trainables.registry import Configuration

FLOAT32, TF32, BFLOAT16 = "float32", "tf32", "bfloat16"
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"
AUTO, DEVICE, HOST = "auto", "device", "host"

DEVICE_SHARE = 0.5  # of a process's memory on a GPU for its data set; the rest is the network's. Our choice


class CannotCompileError(RuntimeError):
    """The compiler refused a network or is not there; the message says what to do."""


@dataclass(frozen=True)
class TrainingSettings:
    """The `training` part of a search space.

    Attributes:
        precision: `float32` (IEEE 754 throughout), or `bfloat16` for matrix products and convolutions of training steps
            (autocast; weights, losses and optimiser stay float32). bfloat16 has float32's range, so that gradients need
            no scaling (Kalamkar et al. 2019, arXiv:1905.12322, section 3). `tf32` rounds the factors of the same
            products to ten bits of mantissa on a card that has TF32; elsewhere it is float32.
        memory_format: layout of images and convolution weights; `channels_last` is what tensor cores read.
        compile: whether `torch.compile` translates the network's training pass; it takes tens of seconds a network.
        data: `device` keeps the whole data set next to the network, `host` sends each batch there while the one before
            trains, `auto` takes `device` where the set fits into half of the process's memory on the device.
        deterministic: the same bits in each run on the same card: algorithms that add in a varying order are replaced,
            or refused where there is no other. A CPU gives the same bits without it.
    """

    precision: str = FLOAT32
    memory_format: str = CONTIGUOUS
    compile: bool = False
    data: str = AUTO
    deterministic: bool = False

    @property
    def described(self) -> str:
        """The arithmetic in words, as the trials table has it, e.g. `bfloat16, channels_last, compiled`."""
        layout = [self.memory_format] if self.memory_format != CONTIGUOUS else []
        flags = {"compiled": self.compile, "deterministic": self.deterministic}
        return ", ".join([self.precision, *layout, *(name for name, on in flags.items() if on)])


PLAIN = TrainingSettings()


def prepare_arithmetic(settings: TrainingSettings, device: str) -> None:
    """Set how this process computes on `device` outside of training steps; what another sweep's trial set is undone.

    torch's own choice on a card is TF32 for convolutions and float32 for matrix products. Here neither takes it,
    unless a training step asks for it.
    """
    torch.use_deterministic_algorithms(settings.deterministic)
    if device == "cpu":
        return
    # cuBLAS and torch read it when the process first multiplies, which a reused one may do before it is deterministic.
    # With cuBLAS's own choice streams race for buffers.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = settings.deterministic
    torch.backends.cudnn.benchmark = False
    _allow_tf32(False)


@contextmanager
def training_arithmetic(settings: TrainingSettings, device: torch.device) -> Iterator[None]:
    """Within this context a card computes products in TF32 where `settings` ask for it, and nowhere else.

    cuDNN tries its kernels and keeps the fastest for each shape, of which training has two (the last batch of an epoch
    may be smaller). Which one that is may change from run to run, so not where training is deterministic, and never
    where something is measured.
    """
    if device.type == "cpu":
        yield
        return
    cudnn = torch.backends.cudnn
    before = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    _allow_tf32(settings.precision == TF32)
    cudnn.benchmark = not settings.deterministic
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def _allow_tf32(allowed: bool) -> None:
    # These two, not `fp32_precision`: torch's compiler reads them, and torch refuses to have both kinds set.
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def training_forward(
    forward: Callable[..., Tensor], settings: TrainingSettings, device: torch.device
) -> Callable[..., Tensor]:
    """Return `forward`, a pass in training mode whose logits are float32, computed as `settings` say.

    Args:
        forward: a network, or a function of several.
        settings: how to compute.
        device: where.
    """
    if settings.compile:
        from torch._dynamo import config

        # Past its limit of variants the compiler would run plain Python, and say so in a log alone.
        config.fail_on_recompile_limit_hit = True
        forward = _Compiled(torch.compile(forward))
    if settings.precision == BFLOAT16:
        forward = partial(_rounded, forward, device.type)
    return forward


def laid_out(inputs: Tensor, settings: TrainingSettings) -> Tensor:
    """Return images [N, C, H, W] in the requested layout; everything else unchanged."""
    if settings.memory_format != CHANNELS_LAST or inputs.dim() != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


def lay_out(model: nn.Module, settings: TrainingSettings) -> nn.Module:
    """Return `model` with its convolutions' weights in the requested layout."""
    if settings.memory_format == CHANNELS_LAST:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def acceleration_fault(configuration: Configuration, settings: TrainingSettings) -> str | None:
    """Return why a configuration cannot be trained as `settings` say, or `None`; for use before a run."""
    plain = settings.precision != BFLOAT16 and not settings.compile
    loss, network = configuration["loss"]["name"], configuration["architecture"]["name"]
    if LOSSES.has_tag(loss, "third_order") and not plain:
        asked = "compile = true" if settings.compile else f"precision = {settings.precision}"
        return (
            f"{asked} cannot train {loss}, which differentiates the network three times; "
            "choose precision: float32 and compile: false, or another loss"
        )
    if settings.compile and ARCHITECTURES.has_tag(network, "follows_data"):
        return f"compile = true cannot train {network}, whose computation depends on each sample; choose compile: false"
    return None


def compiler_fault(settings: TrainingSettings) -> str | None:
    """Return why nothing can be compiled on this machine, or `None`."""
    named = os.environ.get("CXX")
    if not settings.compile or any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        return None
    return (
        f"compile = true needs a C++ compiler, and {named or 'none of g++, clang++ and c++'} is not on this machine's "
        "path; install one (apt-get install g++), or choose compile: false"
    )


def gpu_fault(settings: TrainingSettings) -> str | None:
    """Return why this process's GPU cannot compute as `settings` say, or `None`.

    TF32 came with compute capability 8.0; older GPUs would compute float32 and the table would say TF32.
    """
    if settings.precision != TF32 or (found := torch.cuda.get_device_capability()) >= (8, 0):
        return None
    return (
        f"precision = tf32 needs a GPU of compute capability 8.0 (Ampere) or newer, and {torch.cuda.get_device_name()} "
        f"has {found[0]}.{found[1]}; choose precision: float32"
    )


def data_place(settings: TrainingSettings, size: int, device: str, share: float) -> str:
    """Return where a data set of `size` bytes is kept: `device` or `host`.

    Args:
        settings: what is asked for.
        size: of all splits as they are stored.
        device: `cpu`, where all data are next to the network, or `cuda`.
        share: of the GPU's memory that is this process's; 0 for all of it.
    """
    if settings.data != AUTO or device == "cpu":
        return DEVICE if settings.data == AUTO else settings.data
    memory = torch.cuda.get_device_properties(torch.device(device)).total_memory
    return DEVICE if size <= DEVICE_SHARE * memory * (share if 0 < share < 1 else 1.0) else HOST


def _rounded(forward: Callable[..., Tensor], device: str, *inputs: Any) -> Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = forward(*inputs)
    return logits.float()


class _Compiled:
    """A translated pass that never falls back to plain Python unnoticed."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self._forward = forward
        self._renewed = False

    def __call__(self, *inputs: Any) -> Tensor:
        """Run `forward`; raise CannotCompileError where it cannot be translated, or not once and for all."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return self._forward(*inputs)
        except FailOnRecompileLimitHit as error:
            # Others of this process may have used up the limit; this pass alone may not.
            if self._renewed:
                raise CannotCompileError(
                    f"torch.compile needs more than {torch._dynamo.config.recompile_limit} variants of the network, "
                    "whose computation depends on its data, and would run the rest as plain Python; set "
                    "training.compile: false"
                ) from error
            self._renewed = True
        except TorchDynamoException as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise CannotCompileError(
                f"torch.compile could not translate the network ({type(error).__name__}: {reason}); set "
                "training.compile: false, or make sure that each node has a C++ compiler (g++)"
            ) from error
        torch._dynamo.reset()
        return self(*inputs)


_translated: list[str] = []  # the network that this process has translated last


def begin_network(described: object) -> None:
    """Forget what was translated for another network than the one `described`, before the next is built.

    Variants count by code, which networks of other sizes share, and a size that was seen to change is translated
    less sharply: without this, what a network computes would depend on those that the process trained before it.
    """
    name = repr(described)
    if _translated != [name]:
        torch._dynamo.reset()
        _translated[:] = [name]
