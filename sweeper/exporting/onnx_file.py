"""An exported program as an ONNX file, for runtimes without torch: translated, run by ONNX Runtime and compared."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import torch

from sweeper.core.errors import SweeperError
from sweeper.exporting.program import silenced
from trainables.datasets.base import Split, evaluation_batches
from trainables.metrics.probabilities import Floats

INPUT, OUTPUT, BATCH = "inputs", "probabilities", "batch"
"""The names that the file gives to its input [N, …], its output [N, K] and N."""

TOLERANCE = 1e-5
"""How far a probability may lie from the torch program's; both compute the network in float32."""

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
    difference = _difference(to, split, expected)
    if not difference <= TOLERANCE:
        raise SweeperError(
            f"the ONNX file's test probabilities differ from the program's by {difference:.2g}, above {TOLERANCE:g}",
            "export without --onnx; nothing was written",
        )
    return difference


def _difference(path: Path, split: Split, expected: Floats) -> float:
    """Return how far ONNX Runtime's probabilities lie from `expected` at most; inf where sizes differ."""
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
    found = np.concatenate(parts).astype(np.float64)
    return float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")


def _name_the_batch(path: Path) -> None:
    """Give the free dimension a name that can be read."""
    import onnx

    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    onnx.save(model, str(path))


def _reason(error: BaseException) -> str:
    """Return what the exporter could not translate: an operator's name where one is to blame."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 10:
        texts.append(str(cause))
        cause = cause.__cause__
    named = next((match for text in texts if (match := _LACKING.search(text))), None)
    if named is not None:
        return f"it lacks the operator {named[1]}"
    lines = [line.strip() for line in texts[-1].splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
