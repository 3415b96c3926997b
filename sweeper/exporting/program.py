"""Combine a data set's transform, networks and a post-hoc method into one program.

It computes calibrated probabilities from raw inputs, the array that the data set's reader (`raw_inputs`) makes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from sweeper.core.errors import SweeperError
from trainables.datasets.base import DataSet
from trainables.datasets.raw_inputs import Numbers, Reader
from trainables.datasets.transforms import Transform, Undeclared
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, log_softmax64
from trainables.posthoc import POSTHOC, Calibrator


def layer_of(calibrator: Calibrator | None) -> nn.Module:
    """Return a fitted method as a module from logits to probabilities [N, K] in float64; for `None`, the softmax.

    Raises:
        SweeperError: torch cannot compute the method.
    """
    if calibrator is None:
        return nn.Softmax(dim=1)
    methods = {method.name: method.layer for method in POSTHOC.built_in() if method.layer}
    layer = methods.get(calibrator.name)
    if layer is None:
        raise SweeperError(
            f"the post-hoc method {calibrator.name} cannot be part of a torch program: it is not computed by torch",
            f"export {', '.join(methods)}, or --posthoc none",
        )
    return layer(calibrator)


class CalibratedNetworks(nn.Module):
    """Computes calibrated probabilities, float32 [N, K], from network inputs. Several networks are averaged first.

    The post-hoc part computes in float64, like the sweep's metrics. The method is applied after the mean, because an
    ensemble of calibrated networks is underconfident (Rahaman & Thiery 2021, arXiv:2007.08792).

    Example:
        >>> network = nn.Linear(2, 2, bias=False)
        >>> _ = nn.init.eye_(network.weight)
        >>> CalibratedNetworks([network], None)(torch.tensor([[0.0, 0.0]])).tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, networks: Sequence[nn.Module], calibrator: Calibrator | None) -> None:
        """Combine networks in evaluation mode with the method fitted on their `joint_logits`."""
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.posthoc = layer_of(calibrator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        logits = [network(inputs).double() for network in self.networks]
        if len(logits) > 1:
            mean = torch.stack([torch.softmax(single, dim=1) for single in logits]).mean(dim=0)
            # The method takes logits. The clamp prevents the logarithm −inf of an underflowed probability.
            logits = [mean.clamp(min=SMALLEST_PROBABILITY).log()]
        probabilities: Tensor = self.posthoc(logits[0])
        return probabilities.float()  # float32 is what clients of a served model expect


class RawNetworks(nn.Module):
    """Computes calibrated probabilities from the raw inputs of a data set: transform, preprocessing, networks, method.

    Raises:
        SweeperError: the data set says that its transform cannot travel.
    """

    def __init__(self, dataset: DataSet, networks: nn.Module) -> None:
        """Put what the data set declares before `networks`, which take network inputs."""
        super().__init__()
        transform = declared(dataset)
        stages = (None if transform is None else transform.module, dataset.test.preprocessing, networks)
        self.stages = nn.ModuleList(
            stage if isinstance(stage, nn.Module) else _Function(stage) for stage in stages if stage is not None
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        for stage in self.stages:
            inputs = stage(inputs)
        return inputs


class _Function(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def declared(dataset: DataSet) -> Transform | None:
    """Return the transform of a data set; `None` if its stored inputs are raw.

    Raises:
        SweeperError: the data set says that its transform cannot travel.
    """
    if isinstance(dataset.transform, Undeclared):
        raise SweeperError(
            f"{dataset.name} cannot say how its inputs are made from raw ones: {dataset.transform.reason}",
            "an exported model takes raw inputs; train on a data set that declares its transform "
            "(trainables.datasets.transforms)",
        )
    return dataset.transform


def reader_for(dataset: DataSet) -> Reader:
    """Return the reader of a data set's raw inputs.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> reader_for(load_dataset("digits"))
        Numbers(shape=(1, 8, 8), dtype='uint8', low=0, high=16, integers=True)
    """
    transform = declared(dataset)
    if transform is not None and transform.reader is not None:
        return transform.reader
    raw = dataset.test.inputs if transform is None or transform.raw is None else transform.raw
    low: float | None = 0
    if dataset.vocabulary and raw.dim() == 2:
        high: float | None = dataset.vocabulary - 1
    else:
        low, high = (0, 255) if raw.dtype == torch.uint8 else (None, None)
    dtype = str(raw.dtype).removeprefix("torch.")
    return Numbers(tuple(raw.shape[1:]), dtype, low, high, integers=transform is not None)


def raw_batches(dataset: DataSet, size: int) -> Iterator[Tensor]:
    """Yield the raw inputs of the test split in order, [at most size, …] each."""
    transform, split = declared(dataset), dataset.test
    for rows in torch.arange(len(split)).split(size):
        yield split.stored(rows) if transform is None or transform.raw is None else transform.raw[rows]


def joint_logits(logits: Sequence[np.ndarray]) -> Floats:
    """Return the logits [N, K] of one network, or the log of several networks' mean probabilities.

    Example:
        >>> two = [np.log([[0.2, 0.8]]), np.log([[0.4, 0.6]])]
        >>> np.exp(joint_logits(two)).round(6)
        array([[0.3, 0.7]])
    """
    if len(logits) == 1:
        return np.asarray(logits[0], dtype=np.float64)
    # Computed in log space, where small probabilities do not underflow.
    return np.asarray(logsumexp([log_softmax64(single) for single in logits], axis=0) - np.log(len(logits)))


def largest_difference(probabilities: Floats, reference: Floats) -> float:
    """Return the largest absolute difference of probabilities; infinite if shapes differ.

    Example:
        >>> largest_difference(np.array([[0.25, 0.75]]), np.array([[0.5, 0.5]]))
        0.25
    """
    return float(np.abs(probabilities - reference).max()) if probabilities.shape == reference.shape else float("inf")


def exported_program(module: nn.Module, inputs: Tensor) -> torch.export.ExportedProgram:
    """Translate `module` into a program that runs without its source code, for batches of any size.

    Args:
        module: the module, in evaluation mode.
        inputs: at least two example samples.

    Raises:
        SweeperError: torch cannot translate the network.
    """
    # torch.export specialises dimensions of size 0 or 1. With one example, the program would accept only one sample.
    batch = torch.export.Dim("batch")
    try:
        with torch.no_grad(), silenced():
            return torch.export.export(module, (inputs,), dynamic_shapes=({0: batch},))
    except Exception as error:
        # torch raises any of a dozen types for a network that it cannot translate.
        reason = _first_line(error) or type(error).__name__
        raise SweeperError(
            f"torch.export cannot translate the network ({type(error).__name__}: {reason})",
            "a network whose computation depends on its data, or fixes the batch size, cannot be exported",
        ) from error


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Silence torch's exporters."""
    # When exporters fail, they print and log pages of graphs. We report the error in one sentence instead.
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


#: Names of the input [N, …], the output [N, K] and the dimension N in the ONNX file.
INPUT, OUTPUT, BATCH = "inputs", "probabilities", "batch"

#: Largest allowed difference from the torch program's probabilities. Both programs compute the network in float32.
TOLERANCE = 1e-5

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LACKING = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")


def require_onnx() -> None:
    """Raise SweeperError if a package that writes or checks ONNX files is missing."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SweeperError(
            f"ONNX export needs packages that are not installed: {', '.join(missing)}",
            'install them: pip install "calibration-sweeper[onnx]"',
        )


def write_onnx(program: torch.export.ExportedProgram, to: Path, samples: Iterable[Tensor], expected: Floats) -> float:
    """Write a program as ONNX and return the largest difference between the probabilities of both.

    Args:
        program: program from `exported_program`.
        to: path of the file.
        samples: batches of raw inputs to compare; all are used.
        expected: the program's probabilities of these samples [N, K].

    Raises:
        SweeperError: ONNX lacks an operator of the network, or the file computes other probabilities.
    """
    try:
        with warnings.catch_warnings(), silenced():
            warnings.simplefilter("ignore")
            translated = torch.onnx.export(
                program, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
            )
            assert translated is not None
            translated.save(to)
    except OSError:  # a full disk
        raise
    except Exception as error:
        # The exporter raises errors of several types, with pages of text.
        raise SweeperError(
            f"ONNX cannot express the network: {_reason(error)}", "export without --onnx; nothing was written"
        ) from error
    _name_the_batch(to)
    difference = largest_difference(_run(to, samples), expected)
    if not difference <= TOLERANCE:  # also true for NaN
        raise SweeperError(
            f"the ONNX file's test probabilities differ from the program's by {difference:.2g}, above {TOLERANCE:g}",
            "export without --onnx; nothing was written",
        )
    return difference


def _run(path: Path, samples: Iterable[Tensor]) -> Floats:
    """Compute the probabilities of all samples [N, K] with ONNX Runtime."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        parts = [session.run([OUTPUT], {INPUT: given.numpy()})[0] for given in samples]
    except Exception as error:
        # ONNX Runtime has a separate error type for every kind of failure, and exports none of them.
        raise SweeperError(
            f"ONNX Runtime cannot run the network: {str(error).splitlines()[0]}",
            "export without --onnx; nothing was written",
        ) from error
    return np.asarray(np.concatenate(parts), dtype=np.float64)


def _name_the_batch(path: Path) -> None:
    """Name the free dimension, for which the exporter uses a name such as `s77`."""
    import onnx

    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    onnx.save(model, str(path))


def _reason(error: BaseException) -> str:
    """Describe the exporter's failure by the missing operator, or by its error message."""
    cause = error
    for _ in range(10):  # chains of causes are short; the limit guards against circles
        if named := _LACKING.search(str(cause)):
            return f"it lacks the operator {named[1]}"
        cause = cause.__cause__ or cause
    return _first_line(cause) or type(error).__name__


def _first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error, or an empty text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
