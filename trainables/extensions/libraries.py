"""Preparations for other packages: torchvision beside a CPU build, transformers, and torch without slow imports.

Package indexes serve torchvision as a CUDA build only. Its compiled operators do not load with a CPU build of PyTorch,
and `import torchvision` (timm imports it too) then fails with "operator torchvision::nms does not exist". No network or
data set here calls those detection operators, so declaring their signatures is enough. Hugging Face's transformers is
an extra; it reads local files only and does not run the code of a model's folder.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

#: The operators that torchvision 0.28 registers shapes for when it is imported.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_library: torch.library.Library | None = None  # the declarations last as long as this object


def register_missing_operators() -> bool:
    """Declare torchvision's detection operators if its compiled ones cannot load; call before importing it.

    Acts only if PyTorch is a CPU build and torchvision's `version.py` names a CUDA version. Calling it again changes
    nothing.

    Returns:
        Whether the operators are declared.
    """
    global _library
    if _library is None and torch.version.cuda is None and torchvision_cuda_version() is not None:
        _library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            _library.define(schema)
    return _library is not None


def torchvision_cuda_version() -> str | None:
    """Return torchvision's CUDA version (e.g. `130`) without importing it; `None` for a CPU build.

    Raises:
        ModuleNotFoundError: torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("torchvision is not installed; install it with: pip install torchvision")
    version_file = Path(spec.origin).with_name("version.py")
    match = re.search(r"^__version__\s*=\s*['\"][^'\"]*\+cu(\d+)", version_file.read_text(), re.MULTILINE)
    return match[1] if match else None


@cache
def without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return an optimiser class of torch that behaves like `kind` and does not import torch's compiler.

    torch 2.13 wraps these methods so that `torch.compile` leaves them alone. The wrappers import the whole compiler,
    two seconds of processor time in each process, whether or not a network is compiled.

    Example:
        >>> search = without_compiler(torch.optim.SGD)([torch.zeros(2, requires_grad=True)], lr=0.1)
        >>> isinstance(search, torch.optim.SGD), type(search).__name__
        (True, 'SGD')
    """
    wrapped = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), methods)


@contextmanager
def operation_counter() -> Iterator[FlopCounterMode]:
    """Count the floating-point operations within the context, without importing triton or torch's compiler.

    Example:
        >>> with operation_counter() as counter:
        ...     _ = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> counter.get_total_flops()  # 2 · 2 · 3 · 4
        48
    """
    # torch 2.13 imports triton, a fifth of a second, only to recognise its kernels, and warns if a CUDA build lacks it.
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    with _hidden("triton"):
        from torch.utils.flop_counter import FlopCounterMode
    with FlopCounterMode(display=False) as counter:
        mode: Any = type(counter.mode)
        mode.__torch_dispatch__ = inspect.unwrap(mode.__torch_dispatch__)  # wrapped like those in `without_compiler`
        yield counter


@contextmanager
def _hidden(package: str) -> Iterator[None]:
    """Let imports of a package fail within the context, unless it has been imported."""
    modules: dict[str, Any] = sys.modules
    if package in modules:
        yield
        return
    modules[package] = None
    try:
        yield
    finally:
        del modules[package]


def vector_jacobian(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    vectors: Tensor | Sequence[Tensor],
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """Return vᵀJ per input, shaped like the input, as `torch.autograd.grad` does, without importing sympy.

    torch 2.13 compares shapes by functions that import sympy, a second of processor time in each process. The engine,
    which this function calls directly, compares them again.

    Args:
        outputs: tensors that kept their graph.
        inputs: tensors to differentiate by.
        vectors: v, shaped like the outputs.
        retain_graph: keep the graph of the outputs.
        create_graph: also keep the graph of the result.
        allow_unused: return `None` for inputs on which the outputs do not depend.

    Raises:
        RuntimeError: shapes differ, the outputs have no graph, or they do not depend on an input.

    Example:
        >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> vector_jacobian(w**2, w, torch.tensor([1.0, 3.0]))
        (tensor([ 2., 12.]),)
    """
    of, by, along = ((one,) if isinstance(one, Tensor) else tuple(one) for one in (outputs, inputs, vectors))
    products: tuple[Tensor, ...] = _engine_run_backward(
        of, along, retain_graph or create_graph, create_graph, by, allow_unused, accumulate_grad=False
    )
    return products


REMEDY = "pip install 'calibration-sweeper[transformers]'"

#: Arguments for reading model folders. Unless code is refused, transformers asks at the terminal whether to run it.
LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def required_library() -> Any:
    """Import `transformers` and silence its log and progress bars. Raises ValueError if it is not installed."""
    register_missing_operators()
    try:
        import transformers
    except ImportError as error:
        raise ValueError(f"the package transformers is not installed; run {REMEDY}") from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def existing_folder(folder: str, *needed: str) -> Path:
    """Return the path of a folder that has one of the files `needed`.

    Raises:
        ValueError: it has none of these files; the message has the command that fetches the folder.
    """
    place = Path(folder).expanduser()
    if any((place / name).is_file() for name in needed):
        return place
    # A relative folder usually has the name of its model on the Hub.
    model = "/".join(place.parts[-2:]) if not place.is_absolute() and len(place.parts) > 1 else "ORGANISATION/MODEL"
    raise ValueError(f"there is no {needed[0]} in {place}; fetch it: hf download {model} --local-dir {place}")
