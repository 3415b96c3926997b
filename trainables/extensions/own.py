"""Users' own objects as `Component`s, like the project's own.

The file `own.py` of each family (losses, networks, data sets, metrics, post-hoc methods) adapts a user's function or
class; this file holds what all families share.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from trainables.extensions.targets import import_target, installed_names, provenance
from trainables.registry import Component

Adapter = Callable[[object, str, str], Component]
"""Makes a component from (target, import path, name). Raises ExtensionError for a target of the wrong kind."""


@dataclass(frozen=True)
class OwnFamily:
    """The components of one kind that come from users' own code.

    Attributes:
        group: of their entry points, e.g. `losses`.
        adapt: makes a component from an imported object.
    """

    group: str
    adapt: Adapter

    def names(self) -> Mapping[str, str]:
        """Return the names that installed packages register, each with its import path. Nothing is imported."""
        return installed_names(self.group)

    def component(self, name: str, path: str) -> Component:
        """Return the component called `name`.

        Args:
            name: as a search space writes it.
            path: its import path.

        Raises:
            ExtensionError: it cannot be imported, or is of the wrong kind.
        """
        target = import_target(path)
        origin = ", ".join(part for part in (provenance(self.group, name), path if path != name else "") if part)
        if isinstance(target, Component):
            return replace(target, name=name, source=target.source or origin)
        component = self.adapt(target, path, name)
        summary = (inspect.getdoc(target) or "").partition("\n")[0]
        return replace(component, summary=summary, source=origin or "import path")


def described(target: object) -> str:
    """Return what a target is, for messages: `the class Tilted`, `a function`, `a str`."""
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return "a function" if inspect.isfunction(target) else f"a {type(target).__name__}"
