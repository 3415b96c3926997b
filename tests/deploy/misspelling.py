"""Misspelling one field name of a document, at random: what every check of a manifest must notice."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Path = tuple[str | int, ...]


def fields(node: Any, free: Callable[[Path], bool], path: Path = ()) -> Iterator[Path]:
    """Yield the path of every field; below a path that is `free`, names are the author's own and are left out."""
    if isinstance(node, dict):
        for key, value in node.items():
            here = (*path, key)
            if not free(path):
                yield here
            yield from fields(value, free, here)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from fields(value, free, (*path, index))


def misspelt(document: Any, path: Path, rng: random.Random) -> tuple[Any, str]:
    """Return a copy with the field at `path` misspelt, and what was done in words."""
    changed = copy.deepcopy(document)
    node = changed
    for part in path[:-1]:
        node = node[part]
    name = str(path[-1])
    wrong = name
    while wrong == name or wrong in node:
        place = rng.randrange(len(name))
        wrong = rng.choice(
            [name[:place] + name[place + 1 :], name[:place] + name[place] * 2 + name[place + 1 :], name + "s"]
        )
        wrong = wrong or name + "x"
    # In its place, so that order and everything else stay as they are.
    items = [(wrong if key == path[-1] else key, value) for key, value in node.items()]
    node.clear()
    node.update(items)
    return changed, f"{'/'.join(map(str, path))} → {wrong}"
