"""Metrics of next-token predictions from a few sums instead of 37,000 logits per token.

For a temperature T and a token's logits z with the largest z₁, three sums over the vocabulary determine everything that
`evaluate_probabilities` measures except class-wise errors: Σ e^((z−z₁)/T), Σ e^(2(z−z₁)/T) and Σ (z−z₁) e^((z−z₁)/T).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainables.metrics import METRIC_NAMES
from trainables.metrics.base import Booleans, Floats, Integers
from trainables.metrics.binning import calibration_error
from trainables.metrics.evaluate import confidence_metrics, means_of_samples

if TYPE_CHECKING:
    from torch import Tensor

SUMS = 3

#: The most probable class and the target determine these metrics; others need every class, and are not measured for
#: tokens.
_MEASURED = {
    **confidence_metrics(np.ones(1), np.ones(1, bool), 1),
    **means_of_samples(np.ones(1, bool), *np.ones((4, 1))),
}
TOKEN_METRICS = tuple(name for name in METRIC_NAMES if name in _MEASURED)

#: Temperatures of the curves of BLEU and calibration error (mukhoti Fig. 5; the text does not give its axis).
TEMPERATURES = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)


def column_at(metric: str, temperature: float) -> str:
    """Return the column of a metric at one of TEMPERATURES.

    >>> column_at("bleu", 0.9)
    'bleu_at_0_9'
    """
    return f"{metric}_at_{temperature:g}".replace(".", "_")


@dataclass(frozen=True)
class TokenStatistics:
    """Sufficient statistics of the predictions of N tokens at G temperatures.

    Attributes:
        temperatures: temperatures [G].
        targets: target classes, int64 [N].
        top_logits: largest logits, float32 [N].
        target_logits: logits of the targets, float32 [N].
        ahead: number of classes ranked before the target by logit (ties by class number), int64 [N].
        sums: the three sums of the module's docstring, float64 [N, G, 3].
    """

    temperatures: Floats
    targets: Integers
    top_logits: Floats
    target_logits: Floats
    ahead: Integers
    sums: Floats

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.targets)

    @property
    def correct(self) -> Booleans:
        """Whether the target has the largest logit, the first of tied ones, [N]."""
        right: Booleans = self.ahead == 0
        return right

    def place(self, temperature: float) -> int:
        """Return the index of a temperature. Raises ValueError if it has no statistics."""
        places = np.flatnonzero(self.temperatures == temperature)
        if not len(places):
            raise ValueError(f"no statistics at T = {temperature:g}; known: {self.temperatures.tolist()}")
        return int(places[0])

    def confidence(self, temperature: float = 1.0) -> Floats:
        """Return the largest probability of each token, [N]."""
        return 1.0 / self.sums[:, self.place(temperature), 0]

    def nll(self, temperature: float = 1.0) -> Floats:
        """Return each token's negative log-likelihood in nats, [N]."""
        below = self.top_logits.astype(np.float64) - self.target_logits
        return np.log(self.sums[:, self.place(temperature), 0]) + below / temperature


def token_statistics(logits: Tensor, targets: Tensor, temperatures: Sequence[float]) -> TokenStatistics:
    """Return the statistics of logits [N, K] and targets int64 [N]; sums are float64."""
    import torch  # imported here: readers of results import this file for labels only, and torch takes seconds

    top = logits.amax(1)
    of_target = logits.gather(1, targets[:, None])
    # Ties go to the lower class number, as argmax decides; so accuracy equals that of full logits.
    ahead = (logits > of_target).sum(1)
    ahead += ((logits == of_target) & (torch.arange(logits.shape[1], device=logits.device) < targets[:, None])).sum(1)
    # Differences to the largest logit: exp cannot overflow, and the largest probability is 1 / sum.
    below = logits.double() - top[:, None].double()
    sums = torch.empty((len(logits), len(temperatures), SUMS), dtype=torch.float64, device=logits.device)
    for place, temperature in enumerate(temperatures):
        weights = torch.exp(below / temperature)
        sums[:, place, 0] = weights.sum(1)
        sums[:, place, 1] = weights.square().sum(1)
        sums[:, place, 2] = (weights * below).sum(1)
    arrays = (targets, top, of_target[:, 0], ahead, sums)
    return TokenStatistics(np.asarray(temperatures, np.float64), *(array.cpu().numpy() for array in arrays))


def joined(parts: Sequence[TokenStatistics]) -> TokenStatistics:
    """Concatenate the statistics of several groups of tokens."""
    columns = ("targets", "top_logits", "target_logits", "ahead", "sums")
    together = (np.concatenate([getattr(part, name) for part in parts]) for name in columns)
    return TokenStatistics(parts[0].temperatures, *together)


def token_metrics(tokens: TokenStatistics, temperature: float = 1.0, bins: int = 15) -> dict[str, float]:
    """Return those metrics of `evaluate_probabilities` that are in TOKEN_METRICS, at a temperature."""
    sums = tokens.sums[:, tokens.place(temperature)]
    nll, correct = tokens.nll(temperature), tokens.correct
    of_target = np.exp(-nll)
    entropy = np.log(sums[:, 0]) - sums[:, 2] / (temperature * sums[:, 0])
    brier = sums[:, 1] / sums[:, 0] ** 2 - 2 * of_target + 1
    metrics = confidence_metrics(tokens.confidence(temperature), correct, bins)
    metrics |= means_of_samples(correct, tokens.ahead, nll, brier, entropy)
    return {name: float(value) for name, value in metrics.items()}


def token_ece(tokens: TokenStatistics, temperature: float, bins: int = 15) -> float:
    """Return the calibration error of the tokens' largest probabilities at a temperature."""
    return calibration_error(tokens.confidence(temperature), tokens.correct.astype(np.float64), bins)
