"""A loss of one's own: the first-order polynomial loss, cross-entropy + ε (1 − p_y)."""

from torch import Tensor
from torch.nn import functional

from trainables.losses import Loss
from trainables.registry import Hyperparameter


class Poly1(Loss):
    """Poly-1 cross-entropy (Leng et al. 2022, arXiv:2204.12511, Eq. 4); ε = 0 is cross-entropy."""

    HYPERPARAMETERS = (
        Hyperparameter(
            "epsilon",
            default=1.0,
            minimum=-1.0,
            reason="below -1 the gradient of a confident mistake turns around",
            source="Leng et al. 2022, section 5",
        ),
    )

    def __init__(self, epsilon: float = 1.0) -> None:
        self.epsilon = epsilon

    def values(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the [N] values; the mean over the batch is the loss."""
        log_p = functional.log_softmax(logits, dim=-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return -log_p + self.epsilon * (1.0 - log_p.exp())
