"""Write a fitted post-hoc method to one file without pickle, and read it back to the bit.

The file is numpy's `.npz`. Its member `description` is JSON; all arrays are members of their own. A calibrator is
described by the name of its class and the values of its attributes: numbers, texts, arrays, sequences, mappings, and
functions of this project by name, with the arguments that `functools.partial` fixed. Reading runs no code of the file:
a class must be a calibrator, and a function must be defined in this folder or in `trainables.metrics`.
"""

from __future__ import annotations

import importlib
import json
import types
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trainables.files.atomic import replacing
from trainables.posthoc.base import Calibrator

#: Number of the format; a file with another number is refused.
FORMAT = 1

_DESCRIPTION = "description"

#: Packages whose functions a file may name.
_OWN = ("trainables.posthoc.", "trainables.metrics.")

#: What damaged archives and descriptions raise in numpy, json and this module.
_DAMAGED = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ImportError, EOFError, zipfile.BadZipFile
)  # fmt: skip

Arrays: TypeAlias = dict[str, NDArray[Any]]


class UnreadableCalibratorError(ValueError):
    """Raised for a file that has no calibrator, a damaged one, or one of another format."""


class UnsavedCalibratorError(ValueError):
    """Raised for a calibrator that has parts which a file without pickle cannot hold, such as a user's own object."""


def save_calibrator(calibrator: Calibrator, path: Path, extra: Mapping[str, Any]) -> None:
    """Write a fitted calibrator to `path`, under a temporary name first.

    Args:
        calibrator: what `fit` returned.
        path: the file.
        extra: further values that `load_calibrator` returns: JSON values and arrays.

    Raises:
        UnsavedCalibratorError: the calibrator is a user's own.
        OSError: the file cannot be written.
    """
    arrays: Arrays = {}
    described = {
        "format": FORMAT,
        "calibrator": {"class": _named(type(calibrator)), "state": _described(vars(calibrator), arrays)},
        "extra": _described(dict(extra), arrays),
    }
    with replacing(path) as temporary, Path(temporary).open("wb") as file:
        np.savez(file, allow_pickle=False, **{_DESCRIPTION: np.array(json.dumps(described))}, **arrays)


def load_calibrator(path: Path) -> tuple[Calibrator, dict[str, Any]]:
    """Read what `save_calibrator` wrote: the calibrator and the further values.

    Raises:
        UnreadableCalibratorError: the file is none of ours, is damaged, or has another format.
        OSError: the file cannot be opened.

    Example:
        >>> import tempfile
        >>> from trainables.posthoc import fit
        >>> fitted = fit("vector", [[2.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 2.0], [1.0, 0.0]], [0, 0, 1, 1, 1])
        >>> path = Path(tempfile.mkdtemp()) / "vector.npz"
        >>> save_calibrator(fitted, path, {"classes": ["cat", "dog"]})
        >>> read, extra = load_calibrator(path)
        >>> bool((read([[2.0, 0.0]]) == fitted([[2.0, 0.0]])).all()), extra
        (True, {'classes': ['cat', 'dog']})
    """
    try:
        with np.load(path, allow_pickle=False) as members:
            described = json.loads(str(members[_DESCRIPTION][()]))
            if described["format"] != FORMAT:
                raise UnreadableCalibratorError(
                    f"{path} has format {described['format']!r}, not {FORMAT}: load it with the release that wrote it"
                )
            arrays = {name: members[name] for name in members.files if name != _DESCRIPTION}
        kind = _found(described["calibrator"]["class"])
        if not (isinstance(kind, type) and issubclass(kind, Calibrator)):
            raise UnreadableCalibratorError(f"{path} names {kind!r}, which is no calibrator")
        calibrator = kind.__new__(kind)
        vars(calibrator).update(_read(described["calibrator"]["state"], arrays))
        calibrator(np.zeros((1, calibrator.classes)))  # a state without all it needs fails here, not at its first use
        return calibrator, _read(described["extra"], arrays)
    except (FileNotFoundError, IsADirectoryError, PermissionError, UnreadableCalibratorError):
        raise
    except _DAMAGED as error:
        raise UnreadableCalibratorError(f"{path} holds no calibrator: {type(error).__name__}: {error}") from error


def _described(value: object, arrays: Arrays) -> Any:
    """Return a value as JSON; arrays are added to `arrays` and named by their position there."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in "biufU":
            name = f"array_{len(arrays)}"
            arrays[name] = value
            return {"array": name}
        case np.generic() if value.dtype.kind in "biuf":
            return value.item()
        case list() | tuple():
            return {type(value).__name__: [_described(item, arrays) for item in value]}
        case dict() if all(isinstance(key, str) for key in value):
            return {"dict": {key: _described(item, arrays) for key, item in value.items()}}
        case partial():
            return {
                "function": _named(value.func),
                "given": _described(list(value.args), arrays),
                "named": _described(dict(value.keywords), arrays),
            }
        case types.FunctionType():
            return {"function": _named(value)}
    raise UnsavedCalibratorError(f"a {type(value).__name__} cannot be written to a file without pickle")


def _read(value: Any, arrays: Arrays) -> Any:
    match value:
        case {"array": str(name)}:
            return arrays[name]
        case {"list": list(items)}:
            return [_read(item, arrays) for item in items]
        case {"tuple": list(items)}:
            return tuple(_read(item, arrays) for item in items)
        case {"dict": dict(items)}:
            return {key: _read(item, arrays) for key, item in items.items()}
        case {"function": str(name), "given": given, "named": named}:
            return partial(_found(name), *_read(given, arrays), **_read(named, arrays))
        case {"function": str(name)}:
            return _found(name)
        case None | bool() | int() | float() | str():
            return value
    raise UnreadableCalibratorError(f"{value!r} is none of the values that a calibrator has")


def _named(target: Any) -> str:
    """Return `module:name` of a class or function of this project."""
    name = f"{target.__module__}:{target.__qualname__}"
    try:
        found = _found(name)
    except UnreadableCalibratorError:
        found = None
    if found is not target:
        raise UnsavedCalibratorError(f"{name} is not part of this project, so a file cannot name it")
    return name


def _found(name: str) -> Any:
    """Return the class or function `module:name`, which must be defined in that module of this project."""
    module, _, own = name.partition(":")
    if not module.startswith(_OWN):
        raise UnreadableCalibratorError(f"{name!r} is outside {' and '.join(_OWN)}")
    target = getattr(importlib.import_module(module), own, None)
    if not isinstance(target, (type, types.FunctionType)) or target.__module__ != module:
        raise UnreadableCalibratorError(f"{name!r} is no class or function of this project")
    return target
