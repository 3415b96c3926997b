"""Import what an import path names, and trace a user's exception to the line of their code that raised it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from trainables.extensions.installed import look_again
from trainables.registry import ExtensionError
from trainables.registry.nearest import did_you_mean

OUR_PACKAGES = ("sweeper", "trainables", "search_spaces")

_roots: list[str] = []
_added: list[str] = []  # roots that were not on the module search path before
_loaded: set[str] = set()


def look_in(folders: Sequence[Path]) -> None:
    """Search `folders` for import paths, after everything installed; they replace the folders given before.

    Modules that import paths brought in are imported again on the next request, so that edits take effect.
    """
    for root in _added:
        if root in sys.path:
            sys.path.remove(root)
    _added.clear()
    _roots[:] = [str(folder.resolve()) for folder in folders]
    forget_loaded()


def look_first_in(folder: Path, others: Sequence[Path] = ()) -> None:
    """Search `folder` for import paths before everything else: it holds the code that the sweep started with.

    `others` are searched after everything installed.
    """
    look_in(others)
    sys.path.insert(0, str(folder))
    _added.append(str(folder))
    _roots.insert(0, str(folder))


def looks_first_in(folder: Path) -> bool:
    """Return whether `folder` is searched before everything else."""
    return _roots[:1] == sys.path[:1] == [str(folder)]


def forget_loaded() -> None:
    """Unload the modules that import paths brought in."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _loaded]:
        del sys.modules[name]
    _loaded.clear()
    importlib.invalidate_caches()
    look_again()


def import_target(path: str) -> object:
    """Return the object that an import path such as `my_package.losses:Tilted` names.

    Raises:
        ExtensionError: it is not an import path, the module is missing or raises, or it has no such name.
    """
    module_name, _, names = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *names.split("."))):
        raise ExtensionError(f"{path!r} is not an import path; write module.file:Name, e.g. my_losses:Tilted")
    found: object = _imported(path, module_name)
    for name in names.split("."):
        if not hasattr(found, name):
            known = tuple(key for key in vars(found) if not key.startswith("_")) if hasattr(found, "__dict__") else ()
            near = did_you_mean(name, known)
            hint = near if near.startswith("; did") else ""
            raise ExtensionError(f"{path}: {module_name} has no {name!r}{_elsewhere(module_name)}{hint}")
        found = getattr(found, name)
    return found


def _elsewhere(module_name: str) -> str:
    """Return, for messages, the place of a module that shadows the user's; empty where it is the user's own."""
    place = package_place(module_name.partition(".")[0])
    return "" if place is None or str(place.parent) in _roots else f" (it is the one in {place.parent})"


def _imported(path: str, module_name: str) -> ModuleType:
    for root in _roots:
        if root not in sys.path:
            sys.path.append(root)
            _added.append(root)
    before = set(sys.modules)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ExtensionError(f"{path} cannot be imported: {describe_error(error, module_name)}") from error
        places = ", ".join(dict.fromkeys([*_roots, "the installed packages"]))
        raise ExtensionError(f"{path}: there is no module {error.name!r} in {places}") from error
    except (Exception, SystemExit) as error:
        raise ExtensionError(f"{path} cannot be imported: {describe_error(error, module_name)}") from error
    finally:
        tops = {name.partition(".")[0] for name in set(sys.modules) - before}
        _loaded.update(top for top in tops if top not in OUR_PACKAGES and _lies_in_a_root(top))


def _lies_in_a_root(top: str) -> bool:
    place = package_place(top)
    return place is not None and str(place.parent) in _roots


def package_place(top: str) -> Path | None:
    """Return the folder of a top-level package, or the file of a top-level module; `None` for one without."""
    module = sys.modules.get(top)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None


def describe_error(error: BaseException, target: str) -> str:
    """Return an exception of a user's code as one sentence that begins with the line it comes from.

    Args:
        error: as it was caught.
        target: the user's import path or module; frames of its package count as theirs.
    """
    words = " ".join(str(error).split()) or "no message"
    sentence = f"{type(error).__name__}: {words[:300]}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {sentence}"
    frames = traceback.extract_tb(error.__traceback__)
    place = package_place(target.partition(":")[0].partition(".")[0])
    own = [f for f in frames if place is not None and Path(f.filename).is_relative_to(place)]
    return f"{own[-1].filename}:{own[-1].lineno}: {sentence}" if own else sentence
