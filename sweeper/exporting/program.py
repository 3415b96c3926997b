"""Networks and a post-hoc method as one program: from network inputs to calibrated probabilities."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from sweeper.core.errors import SweeperError
from trainables.datasets.base import Split, evaluation_batches
from trainables.metrics.base import SMALLEST_PROBABILITY, Floats, log_softmax64
from trainables.posthoc import POSTHOC, Calibrator


def layer_of(calibrator: Calibrator | None) -> nn.Module:
    """Return a fitted method as a module from logits to probabilities [N, K], in float64; of `None`, the softmax.

    Raises:
        SweeperError: the method is not one that torch can compute.
    """
    if calibrator is None:
        return nn.Softmax(dim=1)
    methods = {each.name: each.layer for each in POSTHOC.built_in() if each.layer}
    layer = methods.get(calibrator.name)
    if layer is None:
        raise SweeperError(
            f"the post-hoc method {calibrator.name} cannot be part of a torch program: it is computed outside of torch",
            f"export {', '.join(methods)}, or --posthoc none",
        )
    return layer(calibrator)


class CalibratedNetworks(nn.Module):
    """Calibrated probabilities, float32 [N, K], of network inputs; several networks' are averaged, then calibrated.

    The post-hoc part computes in float64, as the sweep's metrics do. An ensemble of calibrated networks is
    underconfident, so the method follows the mean (Rahaman & Thiery 2021, arXiv:2007.08792).
    """

    def __init__(self, networks: Sequence[nn.Module], calibrator: Calibrator | None) -> None:
        """Take the networks, in evaluation mode, and the method fitted on `joint_logits`."""
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.posthoc = layer_of(calibrator)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return probabilities [N, K]."""
        logits = [network(inputs).double() for network in self.networks]
        if len(logits) > 1:
            mean = torch.stack([torch.softmax(each, dim=1) for each in logits]).mean(dim=0)
            logits = [mean.clamp(min=SMALLEST_PROBABILITY).log()]
        probabilities: Tensor = self.posthoc(logits[0])
        return probabilities.float()


def joint_logits(logits: Sequence[np.ndarray]) -> Floats:
    """Return what the post-hoc method takes: one network's logits [N, K], or the log of several networks' mean."""
    if len(logits) == 1:
        return np.asarray(logits[0], dtype=np.float64)
    return np.asarray(logsumexp([log_softmax64(each) for each in logits], axis=0) - np.log(len(logits)))


def largest_difference(found: Floats, reference: Floats) -> float:
    """Return how far probabilities lie from `reference` at most; inf where sizes differ."""
    return float(np.abs(found - reference).max()) if found.shape == reference.shape else float("inf")


def exported_program(module: nn.Module, inputs: Tensor) -> torch.export.ExportedProgram:
    """Return `module` as a program that runs without its source, for batches of any size.

    Args:
        module: in evaluation mode.
        inputs: at least two samples.

    Raises:
        SweeperError: torch cannot translate the network.
    """
    batch = torch.export.Dim("batch")
    try:
        with torch.no_grad(), silenced():
            return torch.export.export(module, (inputs,), dynamic_shapes=({0: batch},))
    except Exception as error:
        # torch reports what it cannot translate as any of a dozen types.
        reason = _first_line(error) or type(error).__name__
        raise SweeperError(
            f"torch.export cannot translate the network ({type(error).__name__}: {reason})",
            "a network whose computation depends on its data, or fixes the batch size, cannot be exported",
        ) from error


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Keep what torch's exporters print and log on their way to themselves: pages of graphs where they fail."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


#: The names that the file gives to its input [N, …], its output [N, K] and N.
INPUT, OUTPUT, BATCH = "inputs", "probabilities", "batch"

#: How far a probability may lie from the torch program's; both compute the network in float32.
TOLERANCE = 1e-5

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_LACKING = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")


def require_onnx() -> None:
    """Raise SweeperError unless the packages that write and check ONNX files are installed."""
    import importlib.util

    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SweeperError(
            f"ONNX export needs packages that are not installed: {', '.join(missing)}",
            'install them: pip install "calibration-sweeper[onnx]"',
        )


def write_onnx(program: torch.export.ExportedProgram, to: Path, split: Split, expected: Floats) -> float:
    """Write a program as ONNX and return how far its probabilities lie from the program's at most.

    Args:
        program: from `exported_program`.
        to: the file.
        split: the samples to compare, all of them.
        expected: the program's probabilities of these [N, K].

    Raises:
        SweeperError: ONNX lacks an operator of the network, or the file computes something else.
    """
    try:
        with warnings.catch_warnings(), silenced():
            warnings.simplefilter("ignore")
            translated = torch.onnx.export(
                program, input_names=[INPUT], output_names=[OUTPUT], dynamo=True, verbose=False
            )
            assert translated is not None
            translated.save(to)
    except Exception as error:
        # The exporter reports what it cannot translate as one of several types, with pages of text.
        raise SweeperError(
            f"ONNX cannot express the network: {_reason(error)}", "export without --onnx; nothing was written"
        ) from error
    _name_the_batch(to)
    difference = largest_difference(_run(to, split), expected)
    if not difference <= TOLERANCE:
        raise SweeperError(
            f"the ONNX file's test probabilities differ from the program's by {difference:.2g}, above {TOLERANCE:g}",
            "export without --onnx; nothing was written",
        )
    return difference


def _run(path: Path, split: Split) -> Floats:
    """Return ONNX Runtime's probabilities of all samples [N, K]."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        parts = [session.run([OUTPUT], {INPUT: given.numpy()})[0] for given, _ in evaluation_batches(split, 1024)]
    except Exception as error:
        # ONNX Runtime has a type of its own for every kind of failure, none of which it exports.
        raise SweeperError(
            f"ONNX Runtime cannot run the network: {str(error).splitlines()[0]}",
            "export without --onnx; nothing was written",
        ) from error
    return np.asarray(np.concatenate(parts), dtype=np.float64)


def _name_the_batch(path: Path) -> None:
    """Give the free dimension a name that can be read."""
    import onnx

    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    onnx.save(model, str(path))


def _reason(error: BaseException) -> str:
    """Return what the exporter could not translate: an operator's name where one is to blame."""
    cause = error
    for _ in range(10):
        if named := _LACKING.search(str(cause)):
            return f"it lacks the operator {named[1]}"
        cause = cause.__cause__ or cause
    return _first_line(cause) or type(error).__name__


def _first_line(error: BaseException) -> str:
    """Return the first line of an error that says something; empty where none does."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
