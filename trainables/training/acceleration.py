"""Precision, memory layout and compilation of training steps.

These options change the arithmetic of training steps only. Validation, evaluation and curvature always run in float32
on the plain network, so that sweeps with different options are measured the same way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainables.losses import LOSSES
from trainables.models import ARCHITECTURES

FLOAT32, TF32, BFLOAT16 = "float32", "tf32", "bfloat16"
CONTIGUOUS, CHANNELS_LAST = "contiguous", "channels_last"
AUTO, DEVICE, HOST = "auto", "device", "host"
SHUFFLED, BALANCED = "shuffled", "balanced"

DEVICE_SHARE = 0.5  # share of a process's GPU memory for its data set; the network needs the rest. Our choice


class CannotCompileError(RuntimeError):
    """Raised when `torch.compile` refuses a network or finds no compiler; the message names the remedy."""


@dataclass(frozen=True)
class TrainingSettings:
    """The `training` part of a search space.

    Attributes:
        precision: `float32` (IEEE 754 throughout), or `bfloat16` for matrix products and convolutions in training steps
            (autocast; weights, losses and optimiser stay float32). bfloat16 has float32's range, so gradients need no
            scaling (Kalamkar et al. 2019, arXiv:1905.12322, section 3). `tf32` rounds the factors of the same products
            to ten bits of mantissa on a GPU with TF32, and equals float32 elsewhere.
        memory_format: layout of images and convolution weights; tensor cores read `channels_last`.
        compile: whether `torch.compile` translates the network's training pass, which takes tens of seconds per
            network.
        data: `device` keeps the whole data set on the network's device. `host` sends each batch while the previous
            batch trains. `auto` uses `device` if the data set fits into half of the process's memory on the device.
        deterministic: whether every run on the same GPU gives the same bits. Algorithms that add in varying order are
            replaced, or refused if there is no alternative. A CPU gives the same bits in any case.
        class_weights: weights of the classes in the training loss, see `trainables.training.weighting`: `balanced`, or
            class → weight; `None` for equal weights.
        sampler: `shuffled` draws each training sample once per epoch; `balanced` draws as many with replacement, each
            class with the same probability.

    Example:
        >>> TrainingSettings(precision="bfloat16", compile=True).described
        'bfloat16, compiled'
    """

    precision: str = FLOAT32
    memory_format: str = CONTIGUOUS
    compile: bool = False
    data: str = AUTO
    deterministic: bool = False
    class_weights: str | Mapping[str, float] | None = None
    sampler: str = SHUFFLED

    @property
    def described(self) -> str:
        """Description for the trials table, e.g. `bfloat16, channels_last, compiled`."""
        layout = [self.memory_format] if self.memory_format != CONTIGUOUS else []
        flags = {"compiled": self.compile, "deterministic": self.deterministic}
        return ", ".join([self.precision, *layout, *(name for name, on in flags.items() if on)])


PLAIN = TrainingSettings()


def prepare_arithmetic(settings: TrainingSettings, device: str) -> None:
    """Set this process's arithmetic on `device` outside of training steps.

    TF32 is off except in training steps that request it; torch's default on a GPU is TF32 for convolutions only.
    """
    # Worker processes are reused: settings of an earlier trial, perhaps from another sweep, must be undone.
    if settings.deterministic != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(settings.deterministic)  # imports torch's compiler (torch 2.13)
    if device == "cpu":
        return
    # cuBLAS and torch read this at the process's first matrix product, and a reused process may multiply before its
    # first deterministic trial. With cuBLAS's default workspace, streams race for buffers and results vary.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = settings.deterministic
    torch.backends.cudnn.benchmark = False
    _allow_tf32(False)


@contextmanager
def training_arithmetic(settings: TrainingSettings, device: torch.device) -> Iterator[None]:
    """Within this context a GPU computes products in TF32 if `settings` request it, and cuDNN chooses fast kernels."""
    if device.type == "cpu":
        yield
        return
    cudnn = torch.backends.cudnn
    before = torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    _allow_tf32(settings.precision == TF32)
    # cuDNN times its kernels once per shape, and training has two shapes (an epoch's last batch can be smaller). The
    # fastest can change from run to run, so this is off for deterministic training and outside of training steps.
    cudnn.benchmark = not settings.deterministic
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def _allow_tf32(allowed: bool) -> None:
    # Not `fp32_precision`: torch's compiler reads these two flags, and torch refuses a mix of both interfaces.
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def training_forward(
    forward: Callable[..., Tensor], settings: TrainingSettings, device: torch.device
) -> Callable[..., Tensor]:
    """Return `forward` with the arithmetic that `settings` request and float32 logits.

    Args:
        forward: forward pass in training mode: a network, or a function of several networks.
        settings: requested arithmetic.
        device: device of the pass.
    """
    if settings.compile:
        from torch._dynamo import config

        # Beyond its limit of variants, the compiler would silently run plain Python and only log it.
        config.fail_on_recompile_limit_hit = True
        forward = _Compiled(torch.compile(forward))
    if settings.precision == BFLOAT16:
        forward = partial(_rounded, forward, device.type)
    return forward


def laid_out(inputs: Tensor, settings: TrainingSettings) -> Tensor:
    """Return images [N, C, H, W] in the requested layout, and other inputs unchanged."""
    # torch defines channels-last for 4-dimensional tensors only.
    if settings.memory_format != CHANNELS_LAST or inputs.dim() != 4:
        return inputs
    return inputs.contiguous(memory_format=torch.channels_last)


def lay_out(model: nn.Module, settings: TrainingSettings) -> nn.Module:
    """Convert the convolutions' weights of `model` to the requested layout and return it."""
    if settings.memory_format == CHANNELS_LAST:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def acceleration_fault(loss: str, network: str, settings: TrainingSettings) -> str | None:
    """Return why a loss and a network cannot be trained with `settings`, or `None`; called before a run."""
    plain = settings.precision != BFLOAT16 and not settings.compile
    if LOSSES.has_tag(loss, "third_order") and not plain:
        requested = "compile = true" if settings.compile else f"precision = {settings.precision}"
        return (
            f"{requested} cannot train {loss}, which differentiates the network three times; "
            "choose precision: float32 and compile: false, or another loss"
        )
    if settings.compile and ARCHITECTURES.has_tag(network, "follows_data"):
        return f"compile = true cannot train {network}, whose computation depends on each sample; choose compile: false"
    return None


def compiler_fault(settings: TrainingSettings) -> str | None:
    """Return why this machine cannot compile networks, or `None`."""
    named = os.environ.get("CXX")  # torch's compiler prefers it to the usual names
    if not settings.compile or any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
        return None
    return (
        f"compile = true needs a C++ compiler, and {named or 'none of g++, clang++ and c++'} is not on this machine's "
        "path; install one (apt-get install g++), or choose compile: false"
    )


def gpu_fault(settings: TrainingSettings) -> str | None:
    """Return why this process's GPU cannot compute with `settings`, or `None`."""
    # Older GPUs would compute in float32 while the table says TF32, so they are refused.
    if settings.precision != TF32 or (capability := torch.cuda.get_device_capability()) >= (8, 0):
        return None
    return (
        f"precision = tf32 needs a GPU of compute capability 8.0 (Ampere) or newer, and {torch.cuda.get_device_name()} "
        f"has {capability[0]}.{capability[1]}; choose precision: float32"
    )


def data_place(settings: TrainingSettings, size: int, device: str, share: float) -> str:
    """Return where a data set of `size` bytes is kept: `device` or `host`.

    Args:
        settings: settings with the requested place, `data`.
        size: bytes of all splits as stored.
        device: `cpu`, where all data are on the network's device, or `cuda`.
        share: this process's fraction of the GPU's memory; 0 for all of it.

    Example:
        >>> data_place(TrainingSettings(), size=10**9, device="cpu", share=0)
        'device'
    """
    if settings.data != AUTO or device == "cpu":
        return DEVICE if settings.data == AUTO else settings.data
    memory = torch.cuda.get_device_properties(torch.device(device)).total_memory
    return DEVICE if size <= DEVICE_SHARE * memory * (share if 0 < share < 1 else 1.0) else HOST


def _rounded(forward: Callable[..., Tensor], device: str, *inputs: Any) -> Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = forward(*inputs)
    return logits.float()  # losses compute in float32


class _Compiled:
    """A compiled pass that raises an error where torch would silently run plain Python."""

    def __init__(self, forward: Callable[..., Tensor]) -> None:
        self._forward = forward
        self._renewed = False

    def __call__(self, *inputs: Any) -> Tensor:
        """Run `forward`. Raises CannotCompileError if it cannot be compiled, or needs too many variants."""
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        try:
            return self._forward(*inputs)
        except FailOnRecompileLimitHit as error:
            # Other networks in this process can have used up the limit, so reset once; a second failure is due to this
            # pass.
            if self._renewed:
                raise CannotCompileError(
                    f"torch.compile needs more than {torch._dynamo.config.recompile_limit} variants of the network, "
                    "because its computation depends on its data; set training.compile: false"
                ) from error
            self._renewed = True
        except TorchDynamoException as error:
            # The compiler's messages are pages long; the first line names the operation.
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise CannotCompileError(
                f"torch.compile could not translate the network ({type(error).__name__}: {reason}); set "
                "training.compile: false, or make sure that each node has a C++ compiler (g++)"
            ) from error
        torch._dynamo.reset()
        return self(*inputs)


_translated: list[str] = []  # network that this process compiled last


def begin_network(described: object) -> None:
    """Reset the compiler if the process last compiled another network than `described`."""
    # The compiler counts variants per code object, which networks of other sizes share, and generalises over a size
    # that it has seen change. Without a reset, a network's arithmetic would depend on the networks trained before it.
    name = repr(described)
    if _translated != [name]:
        torch._dynamo.reset()
        _translated[:] = [name]
