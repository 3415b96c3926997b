"""Which configurations several ranks cannot train, known before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainables.losses import LOSSES, build_loss
from trainables.models import ARCHITECTURES


def ranks_fault(configuration: Mapping[str, Any], workers: int) -> str | None:
    """Return why `workers` ranks cannot train a configuration, or `None`."""
    if workers < 2:
        return None
    size, network = configuration["optimizer"]["batch_size"], configuration["architecture"]["name"]
    if size < workers:
        return (
            f"workers = {workers} cannot share batches of batch_size = {size}: each needs a sample of every batch; "
            f"choose at most {size} workers"
        )
    if not ARCHITECTURES.is_own(network) and ARCHITECTURES.has_tag(network, "follows_data"):
        return (
            f"workers = {workers} cannot train {network}, whose batches are not divided into samples of one size; "
            "choose workers: 1"
        )
    loss = configuration["loss"]["name"]
    if not LOSSES.is_own(loss):
        return None
    built = build_loss(**configuration["loss"])
    if built.needs_model and not built.takes_share:
        return (
            f"workers = {workers} cannot train {loss}, which takes the network itself and does not say what it "
            "is on a part of a batch; choose workers: 1"
        )
    return None
