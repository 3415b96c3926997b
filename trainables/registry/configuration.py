"""A configuration: one point of a search space, with the same object from the draw to the network that it trains."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

#: Key of a component's name.
NAME = "name"


class Configuration(Mapping[str, Any]):
    """The components of a trial with their hyperparameters, and what else its space draws. It cannot be changed.

    A configuration equals a mapping with the same values. Equal configurations have equal hashes, so they can be keys.
    Lists become tuples, and mappings, such as each component, are configurations themselves.

    Example:
        >>> drawn = Configuration({"loss": {"name": "focal", "gamma": 3.0}, "optimizer": {"name": "sgd", "lr": 0.1}})
        >>> drawn["loss"]["gamma"], drawn.at("loss.gamma"), drawn.at("loss.nu"), drawn.name("loss")
        (3.0, 3.0, None, 'focal')
        >>> drawn.columns["config_loss_gamma"], [*drawn.columns][2:]
        (3.0, ['config_optimizer_name', 'config_optimizer_lr'])
        >>> drawn.replaced("loss.gamma", 1.0) == drawn, Configuration(json.loads(drawn.text)) == drawn
        (False, True)
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Take over plain values, nested as in a search space."""
        self._values = {key: _frozen(value) for key, value in values.items()}

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        # 1 and 1.0 are two values, with two digests.
        return self.text == other.text if isinstance(other, Configuration) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Configuration({self.plain()})"

    def __str__(self) -> str:
        return self.text

    def at(self, path: str) -> Any:
        """Return the value at a path such as `loss.gamma` or `loss`; `None` if the configuration has none."""
        part, _, key = path.partition(".")
        value = self._values.get(part)
        if not key:
            return value
        return value.get(key) if isinstance(value, Configuration) else None

    def name(self, part: str) -> str:
        """Return the name of the component of a part, e.g. of its `loss`."""
        return str(self._values[part][NAME])

    def replaced(self, path: str, value: object) -> Self:
        """Return a configuration with another value at a path."""
        part, _, key = path.partition(".")
        return type(self)({**self._values, part: {**self._values[part], key: value} if key else value})

    def plain(self) -> dict[str, Any]:
        """Return the values as nested dicts and lists, for JSON and YAML."""
        return {key: _plain(value) for key, value in self._values.items()}

    @functools.cached_property
    def text(self) -> str:
        """The values as JSON, independent of the order of keys."""
        return json.dumps(self.plain(), sort_keys=True, separators=(",", ":"))

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the values."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def columns(self) -> dict[str, Any]:
        """The values by their columns in tables; lists become JSON text, because a column holds one scalar type."""
        return dict(columns_of("config", self))


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value if isinstance(value, Configuration) else Configuration(value)
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Configuration):
        return value.plain()
    return [*map(_plain, value)] if isinstance(value, tuple) else value


def columns_of(column: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (column, value) of a value whose own column has this name."""
    value = _frozen(value)
    if isinstance(value, Configuration):
        for key, inner in value.items():
            yield from columns_of(f"{column}_{key}", inner)
    else:
        yield column, json.dumps(_plain(value)) if isinstance(value, tuple) else value
