"""The base of every part of a search space file: strict, closed and unchangeable."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A mapping of a search space file: no value is converted, and no unknown key is let in."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
