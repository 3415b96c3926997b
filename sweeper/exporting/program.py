"""Networks and a post-hoc method as one program: from network inputs to calibrated probabilities."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sweeper.core.errors import SweeperError
from sweeper.exporting.posthoc_layers import layer_of
from trainables.metrics import SMALLEST_PROBABILITY, softmax64
from trainables.metrics.probabilities import Floats
from trainables.posthoc.base import Calibrator


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
    mean = np.mean([softmax64(each) for each in logits], axis=0)
    return np.asarray(np.log(np.maximum(mean, SMALLEST_PROBABILITY)))


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
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
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
