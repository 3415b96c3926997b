"""User-defined objects: found by import path or entry point, and converted to `Component`s.

Exceptions of user code are traced to their lines. The `base` module of each family says which objects it accepts.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from trainables.registry import Component, ExtensionError, permit_only
from trainables.registry.names import nearest

OUR_PACKAGES = ("sweeper", "trainables", "search_spaces")

_roots: list[str] = []
_added: list[str] = []  # roots that were not in `sys.path` before, to be removed again
_loaded: set[str] = set()
_archived: _Archived | None = None


class _Archived:
    """Finds the modules of a sweep's user-defined code in its unpacked archive, before all other places.

    The folder comes last in `sys.path`, like every folder of user code. If it came first, a `torch.py` in it would be
    imported instead of PyTorch. So the top-level modules that take precedence are listed by name.
    """

    def __init__(self, folder: Path, modules: Collection[str]) -> None:
        self.folder, self._modules = folder, frozenset(modules)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of the archive; `None` for other modules, which the next finder looks for."""
        return PathFinder.find_spec(name, [str(self.folder)]) if path is None and name in self._modules else None


def look_in(folders: Sequence[Path]) -> None:
    """Search `folders` for import paths, after all installed packages. They replace the folders of earlier calls.

    Results folders and folders inside them are left out, since someone else may have written them.

    Modules loaded by import paths are imported again on the next request, so that edits take effect. Any name can be
    imported until `permit_only` limits the names.
    """
    global _archived
    permit_only(None)
    if _archived is not None:
        sys.meta_path.remove(_archived)
        _archived = None
    for root in _added:
        if root in sys.path:
            sys.path.remove(root)
    _added.clear()
    _roots[:] = [str(folder.resolve()) for folder in folders if not in_results(folder)]
    forget_loaded()


def look_first_in(folder: Path, modules: Collection[str], others: Sequence[Path] = ()) -> None:
    """Import the top-level `modules` from `folder` first, because it has the code with which the sweep started.

    The rest of the folder, and then `others`, are searched after everything installed.
    """
    global _archived
    look_in(others)
    _roots.insert(0, str(folder))
    for root in _roots:
        _search_last(root)
    _archived = _Archived(folder, modules)
    sys.meta_path.insert(0, _archived)


def looks_first_in(folder: Path) -> bool:
    """Return whether `folder` was passed to the last call of `look_first_in`."""
    return _archived is not None and _archived.folder == folder


def in_results(place: Path) -> bool:
    """Return whether `place` is a sweep's results folder or lies in one."""
    resolved = place.resolve()
    return any(
        (folder / "sweep.yaml").is_file() and ((folder / "journal").is_dir() or (folder / "manifest.json").is_file())
        for folder in (resolved, *resolved.parents)
    )


def _search_last(root: str) -> None:
    if root not in sys.path:
        sys.path.append(root)
        _added.append(root)


def forget_loaded() -> None:
    """Unload the modules loaded by import paths."""
    for name in [name for name in sys.modules if name.partition(".")[0] in _loaded]:
        del sys.modules[name]
    _loaded.clear()
    importlib.invalidate_caches()  # finders cache folder listings, and a module written just now would be missed
    entry_points.cache_clear()


def import_target(path: str) -> object:
    """Import the object at an import path such as `my_package.losses:Tilted`.

    Raises:
        ExtensionError: it is not an import path, the module is missing or raises, or it has no such name.

    Example:
        >>> import_target("math:sqrt")(4.0)
        2.0
    """
    module_name, _, names = path.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *names.split("."))):
        raise ExtensionError(f"{path!r} is not an import path; write module.file:Name, e.g. my_losses:Tilted")
    target: object = _imported(path, module_name)
    for name in names.split("."):
        if not hasattr(target, name):
            known = tuple(key for key in vars(target) if not key.startswith("_")) if hasattr(target, "__dict__") else ()
            hint = nearest(name, known)
            raise ExtensionError(f"{path}: {module_name} has no {name!r}{_elsewhere(module_name)}{hint}")
        target = getattr(target, name)
    return target


def _elsewhere(module_name: str) -> str:
    """Return the location of a module that shadows the user's, for messages; empty if nothing shadows it."""
    place = package_place(module_name.partition(".")[0])
    return "" if place is None or str(place.parent) in _roots else f" (it is the one in {place.parent})"


def _imported(path: str, module_name: str) -> ModuleType:
    # At every import, since user code may have changed `sys.path`.
    for root in _roots:
        _search_last(root)
    inside = _in_results(module_name)
    if inside is not None:
        raise ExtensionError(
            f"{path}: {inside} lies in a results folder, from which nothing is imported; if you wrote it, move it next "
            "to your search space"
        )
    before = set(sys.modules)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # The module exists, but one that it imports does not.
            said = describe_error(error, module_name)
            raise ExtensionError(f"{path} cannot be imported: {said}{_how_to_install(error.name)}") from error
        places = ", ".join(dict.fromkeys([*_roots, "the installed packages"]))
        raise ExtensionError(f"{path}: there is no module {error.name!r} in {places}") from error
    except (Exception, SystemExit) as error:  # a script without a `__main__` guard may call `sys.exit`
        raise ExtensionError(f"{path} cannot be imported: {describe_error(error, module_name)}") from error
    finally:
        tops = {name.partition(".")[0] for name in set(sys.modules) - before}
        _loaded.update(top for top in tops if top not in OUR_PACKAGES and _lies_in_a_root(top))


def _how_to_install(module: str | None) -> str:
    """Return the command that installs a missing module, for messages; empty unless one of our extras brings it."""
    with suppress(metadata.PackageNotFoundError):  # code that runs from an archive
        for requirement in metadata.requires("calibration-sweeper") or []:
            found = re.match(r"""([\w-]+).*extra == ['"]([\w-]+)['"]""", requirement)
            if found is not None and module is not None and found[1] == module.partition(".")[0]:
                return f"; run pip install 'calibration-sweeper[{found[2]}]'"
    return ""


def _in_results(module_name: str) -> Path | None:
    """Return the folder of a module inside a results folder; `None` for any other. Nothing is imported."""
    # By looking for files: `find_spec` of a submodule would import its package.
    *packages, last = module_name.split(".")
    for root in sys.path:
        folder = Path(root, *packages)
        if ((folder / last).is_dir() or (folder / f"{last}.py").is_file()) and in_results(folder / last):
            return folder
    return None


def _lies_in_a_root(top: str) -> bool:
    place = package_place(top)
    return place is not None and str(place.parent) in _roots


def package_place(top: str) -> Path | None:
    """Return the folder of a top-level package, or the file of a top-level module; `None` for a built-in one."""
    # `find_spec` raises ValueError for a loaded module without a spec, such as `__main__`.
    module = sys.modules.get(top)
    spec = getattr(module, "__spec__", None) if module is not None else importlib.util.find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.has_location and spec.origin else None


def describe_error(error: BaseException, target: str) -> str:
    """Describe an exception of user code in one sentence that begins with the line it comes from.

    Args:
        error: the exception.
        target: the user's import path or module; frames of its package count as user code.

    Example:
        >>> describe_error(ValueError("gamma must be positive"), "my_losses:Tilted")
        'ValueError: gamma must be positive'
    """
    # On one line and bounded: a message with a tensor in it can be pages long.
    words = " ".join(str(error).split()) or "no message"
    sentence = f"{type(error).__name__}: {words[:300]}"
    # A syntax error has no frame in the file: its traceback ends in the import.
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {sentence}"
    frames = traceback.extract_tb(error.__traceback__)
    place = package_place(target.partition(":")[0].partition(".")[0])
    own = [f for f in frames if place is not None and Path(f.filename).is_relative_to(place)]
    return f"{own[-1].filename}:{own[-1].lineno}: {sentence}" if own else sentence


#: Prefix of the entry-point groups `calibration_sweeper.losses`, `.architectures`, `.datasets`, `.metrics`, `.posthoc`.
GROUP = "calibration_sweeper"

#: Allowed names of entry points: they become parts of column names, and these must not need quotes in SQL.
NAME = re.compile(r"[a-z][a-z0-9_]*")


@functools.cache
def entry_points(group: str) -> Mapping[str, metadata.EntryPoint]:
    """Return the entry points of a group by name; if two packages use one name, the first on the path counts.

    After a change of `sys.path`, call `entry_points.cache_clear()`.
    """
    points: dict[str, metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=f"{GROUP}.{group}"):
        points.setdefault(point.name, point)
    return points


def provenance(group: str, name: str) -> str:
    """Return the package and version that registers a name, e.g. `my-package 1.0`; empty if none does."""
    point = entry_points(group).get(name)
    return f"{point.dist.name} {point.dist.version}" if point is not None and point.dist is not None else ""


@dataclass(frozen=True)
class OwnFamily:
    """The user-defined components of one kind.

    Attributes:
        group: group of their entry points, e.g. `losses`.
        adapt: function from (imported object, import path, name) to a component. It raises ExtensionError for an object
            of the wrong kind.
    """

    group: str
    adapt: Callable[[object, str, str], Component]

    def names(self) -> Mapping[str, str]:
        """Return the names that installed packages register, each with its import path. Nothing is imported.

        Names that cannot be part of a column name are left out; `sweeper doctor` reports them.
        """
        return {name: point.value for name, point in entry_points(self.group).items() if NAME.fullmatch(name)}

    def component(self, name: str, path: str) -> Component:
        """Import the component called `name`.

        Args:
            name: its name in a search space.
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
    """Describe a target's type for messages: `the class Tilted`, `a function`, `a str`."""
    if isinstance(target, type):
        return f"the class {target.__name__}"
    return "a function" if inspect.isfunction(target) else f"a {type(target).__name__}"
