"""What an hour of a GPU costs, where the environment says it."""

from __future__ import annotations

import math
from collections.abc import Mapping


def price_from(environment: Mapping[str, str]) -> float | None:
    """Return the price of a GPU-hour from `SWEEPER_GPU_HOUR_PRICE`, or `None` where it is unset or no number."""
    try:
        price = float(environment.get("SWEEPER_GPU_HOUR_PRICE", ""))
    except ValueError:
        return None
    return price if math.isfinite(price) and price >= 0 else None
