"""Registries: the components of each kind by name, described once for building, validation and listing.

A `Registry` maps a name in a search space (a loss, an architecture, a data set, an optimiser, a post-hoc
method) to a `Component`: how to build it and which `Hyperparameter`s it takes. The search-space reader checks
values against these descriptions before anything runs, and `sweeper spaces` prints them.

A name can also be user-defined: an import path, `my_losses:Tilted`, or an entry point of an installed package
(`trainables.extensions`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from trainables.registry.hyperparameters import ExtensionError, Hyperparameter, catalogue_words, hyperparameters_of
from trainables.registry.names import did_you_mean, hint

#: The splits that every data set has.
SPLITS = ("train", "val", "test")

#: Every tag with its meaning.
TAGS = {
    "batch_coupled": "a loss whose samples' values depend on each other",
    "stateful": "a loss that keeps state between batches",
    "needs_model": "a loss that is computed from the network and the inputs, not from logits",
    "third_order": "a loss whose gradient differentiates the network three times, as often as its `probes` say",
    "text": "a network that takes token ids, and with them the data set's vocabulary and word vectors",
    "follows_data": "a network whose computation depends on the values of its inputs, not on their shape alone",
}


@dataclass(frozen=True)
class DataSetSize:
    """The size of a data set, known without its files.

    Attributes:
        input_shape: shape of one network input.
        classes: number of classes K.
        train, val, test: number of samples of each split.
        text: whether inputs are token ids.
        further: number of samples of further splits, by name.
    """

    input_shape: tuple[int, ...]
    classes: int
    train: int
    val: int
    test: int
    text: bool = False
    further: Mapping[str, int] = field(default_factory=dict)

    def samples(self, split: str) -> int:
        """Return the number of samples of `split`; for a split of unknown size, the number of test samples."""
        return {"train": self.train, "val": self.val, "test": self.test, **self.further}.get(split, self.test)


#: A component's hyperparameters by name.
Options = Mapping[str, Any]

#: The hyperparameter that breaks a rule over several of them, and the rule in one sentence.
BrokenRule = tuple[str, str]


@dataclass(frozen=True)
class Component:
    """A loss, network, data set, optimiser, metric or post-hoc method that a search space can name.

    A family whose members declare more attributes has a subclass in its `base` module.

    Attributes:
        name: name in a search space.
        build: function that makes the component from the arguments of its kind and its hyperparameters.
        hyperparameters: descriptions of its hyperparameters.
        summary: one line for `sweeper spaces`.
        source: paper and section, or the package of a user-defined component.
        check: function that returns the rule that several hyperparameters together break, or None.
        tags: keys of `TAGS`.

    Example:
        >>> tilted = Component("tilted", lambda tilt=0.0: tilt, (Hyperparameter("tilt", range="[0, 2]"),))
        >>> tilted.faults({"tilt": 3.0})
        ['tilt = 3 is outside [0, 2]']
    """

    name: str
    build: Callable[..., Any]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    summary: str = ""
    source: str = ""
    check: Callable[[Options], BrokenRule | None] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Take defaults from the signature of `build`, which alone states them; an empty list means none."""
        try:
            arguments = inspect.signature(self.build).parameters
        except ValueError:  # a builtin such as `dict` has no signature
            return
        known = {n: given.default for n, given in arguments.items() if given.default not in (given.empty, ())}
        filled = (replace(h, default=known.get(h.name)) if h.default is None else h for h in self.hyperparameters)
        object.__setattr__(self, "hyperparameters", tuple(filled))  # the class is frozen

    def hyperparameter(self, name: str) -> Hyperparameter | None:
        """Return the description of hyperparameter `name`, or `None`."""
        return next((h for h in self.hyperparameters if h.name == name), None)

    def faults(self, values: Options) -> list[str]:
        """Return one sentence for each rule that concrete `values` break."""
        known = tuple(h.name for h in self.hyperparameters)
        faults = [
            f"{self.name} takes no hyperparameter {key!r}{did_you_mean(key, known)}"
            for key in values
            if key not in known
        ]
        for description in self.hyperparameters:
            if description.name in values:
                fault = description.fault(values[description.name])
                faults += [fault] if fault else []
            elif description.required:
                faults.append(f"{self.name} needs {description.name} ({description.range_text})")
        if not faults and self.check is not None:  # a check over several values may assume that each is valid
            broken = self.check(values)
            faults += [broken[1]] if broken else []
        return faults


#: Keys of a post-hoc method in an evaluation: the label of its columns, so that one method can appear twice, and the
#: split that it is fitted on, by default `val`.
LABEL, FITTED_ON = "label", "fitted_on"


#: The name of a loss, network, optimiser or data set that a user's training loop provides itself.
OWN = "own"

#: The name of the training loop that reads results of training elsewhere.
IMPORTED = "imported"


#: The class of a registry's components.
Family = TypeVar("Family", bound=Component, default=Component, covariant=True)
Built = TypeVar("Built", bound=Callable[..., Any])
_Value = TypeVar("_Value")


@contextmanager
def set_within(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Set a context variable within this context."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


_reopening: ContextVar[bool] = ContextVar("reopening", default=False)
_permitted: frozenset[str] | None = None


def importing_nothing() -> AbstractContextManager[None]:
    """Accept user-defined names unchecked and import none of them within this context.

    The search space was checked when its sweep began. Someone else may have changed it since, and reading a results
    folder must not run the code that it names.
    """
    return set_within(_reopening, True)


def permit_only(names: Iterable[str] | None) -> None:
    """Limit the user-defined names that this process's registries import; `None` permits all.

    A user's own program can name anything. Before a results folder runs, its user approves the names of the code in it.
    Only these names are imported, so a name that the approval did not show is refused instead of run.
    """
    global _permitted
    _permitted = None if names is None else frozenset(names)


class OwnComponents(Protocol):
    """Finds user-defined objects and makes `Component`s of them: `trainables.extensions.targets.OwnFamily`."""

    @property
    def group(self) -> str:
        """Last part of the entry-point group's name, e.g. `losses`."""

    def names(self) -> Mapping[str, str]:
        """Return the names from installed packages, each with its import path, without importing anything."""

    def component(self, name: str, path: str) -> Component:
        """Return the component called `name`, imported from `path`. Raises ExtensionError when it cannot be used."""


class Registry(Mapping[str, Family], Generic[Family]):
    """The components of one kind by name, added by the files of one folder.

    A registry with `own` also knows user-defined components, by import path and by the entry points of installed
    packages. They are imported at their first use.

    Example:
        >>> scores = Registry("score")
        >>> @scores.add("margin", "top probability minus the second", "")
        ... def margin(scale: float = 1.0) -> float:
        ...     return scale
        >>> scores.build("margin", scale=2.0)
        2.0
        >>> scores.fault("margn")
        "unknown score 'margn'; did you mean 'margin'?"
    """

    def __init__(
        self,
        kind: str,
        own: OwnComponents | None = None,
        component: type[Family] = Component,  # type: ignore[assignment]  # the default of the class of components
        leading: Sequence[str] = (),
    ) -> None:
        """Create an empty registry.

        Args:
            kind: noun used in messages, e.g. `loss`.
            own: finder of user-defined components; None if there can be none.
            component: type of the components.
            leading: names of the arguments before the hyperparameters.
        """
        self.kind = kind
        self.own = own
        self._component, self._leading = component, leading
        self._modules: dict[str, str] = {}
        self._components: dict[str, Family] = {}
        self._own: dict[str, Family] = {}

    def __getitem__(self, name: str) -> Family:
        """Return a component. Raises KeyError for an unknown name, ExtensionError for one that cannot be used."""
        if name in self._components:
            return self._components[name]
        if not (is_import_path(name) or name in self._own or name in self.installed()):
            raise KeyError(name)
        if _reopening.get() or not (_permitted is None or name in _permitted):
            raise ExtensionError(
                f"{name}: this {self.kind} was not imported, because its code has not been approved; pass --trust"
            )
        if name not in self._own:  # imported once, so that equal names give the same class
            if self.own is None:
                raise ExtensionError(f"{name}: your own {self.kind} is not supported; name a built-in one")
            own = self.own.component(name, self.installed().get(name, name))
            # User code may give a plain `Component`, which lacks the attributes of the family's class.
            self._own[name] = own if isinstance(own, self._component) else self._component(**vars(own))
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        # With the method of `Mapping`, `name in registry` would raise the ExtensionError of broken user code.
        return isinstance(name, str) and self.fault(name) is None

    def __iter__(self) -> Iterator[str]:
        return iter((*self._components, *(name for name in self.installed() if name not in self._components)))

    def __len__(self) -> int:
        return len([*iter(self)])

    def register(self, component: Family) -> None:  # type: ignore[misc]  # filled before it is read
        """Add a component. Raises ValueError when the name is taken."""
        # Silently replacing a member would make its meaning depend on the order of imports.
        if component.name in self._components:
            raise ValueError(f"the {self.kind} {component.name!r} is registered already")
        self._components[component.name] = component

    def add(
        self,
        name: str,
        summary: str = "",
        source: str = "",
        *,
        apart: Sequence[str] = (),
        more: Sequence[Hyperparameter] = (),
        **declared: Any,
    ) -> Callable[[Built], Built]:
        """Return a decorator that registers a function or class under `name` and returns it unchanged.

        Signature and docstring declare the hyperparameters, see `trainables.registry.hyperparameters`. A class gets
        each tag that is the name of one of its attributes with a true value. Its attribute `name` is set to this name.

        Args:
            name: name in a search space.
            summary: one line for `sweeper spaces`; by default the docstring's first paragraph.
            source: paper and section; by default the docstring's `Source:`, see `catalogue_words`.
            apart: arguments that are not hyperparameters.
            more: hyperparameters that are not separate arguments.
            declared: further attributes of the registry's component type.
        """

        def register(build: Built) -> Built:
            # An argument that a `partial` fixes is no hyperparameter: two members can share one function.
            bound = build.keywords if isinstance(build, partial) else {}
            taken = hyperparameters_of(build, name, self._leading, {*apart, *bound})
            tags = {*declared.pop("tags", ()), *(tag for tag in TAGS if getattr(build, tag, False) is True)}
            words = (summary, source) if summary else catalogue_words(build)
            component = self._component(name, build, (*taken, *more), *words, tags=frozenset(tags), **declared)
            self._modules[name] = (build.func if isinstance(build, partial) else build).__module__
            self.register(component)
            if isinstance(getattr(build, "name", None), str):
                build.name = name  # type: ignore[attr-defined]  # it has one
            return build

        return register

    def discover(self, package: str) -> None:
        """Import every module of a package, which registers its members, and order them by module name.

        The package's `__init__` calls this once with its `__name__`, so a new member needs only a new file.
        """
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not module.ispkg:
                importlib.import_module(module.name)
        # Modules register in the order in which they import each other, which would make listings depend on imports.
        self._components = dict(sorted(self._components.items(), key=lambda item: self._modules.get(item[0], "")))

    def installed(self) -> Mapping[str, str]:
        """Return the names that installed packages register, with import paths, without importing anything."""
        return {} if self.own is None else self.own.names()

    @property
    def group(self) -> str:
        """Last part of the entry-point group's name, e.g. `losses`; empty if there are no user-defined components."""
        return "" if self.own is None else self.own.group

    def is_own(self, name: str) -> bool:
        """Return whether a name is user-defined, i.e. not a component of the project."""
        return name not in self._components

    def has_tag(self, name: str, tag: str) -> bool:
        """Return whether the component `name` is one of the project's and has `tag`, a key of `TAGS`."""
        return name in self._components and tag in self._components[name].tags

    def trusts(self, name: str) -> bool:
        """Return whether `name` and its hyperparameters are accepted unchecked, as `importing_nothing` says."""
        return _reopening.get() and self.is_own(name)

    def only(self, kept: Callable[[Family], bool]) -> Registry[Family]:
        """Return a registry with the project's components that satisfy `kept` and all user-defined ones."""
        view = Registry(self.kind, self.own, self._component, self._leading)
        view._components = {name: member for name, member in self._components.items() if kept(member)}
        view._own = self._own  # shared, so that `forget_own` of one registry applies to both
        return view

    def built_in(self) -> tuple[Family, ...]:
        """Return the project's components, without user-defined ones."""
        return tuple(self._components.values())

    def forget_own(self) -> None:
        """Import user-defined components again at their next use."""
        self._own.clear()

    def refusal(self, name: str) -> tuple[str, str] | None:
        """Return why `name` cannot be built and what to write instead; `None` if it can."""
        try:
            self[name]
        except KeyError:
            return f"unknown {self.kind} {name!r}", hint(name, self)
        except ExtensionError as error:
            return str(error), ""
        return None

    def fault(self, name: str) -> str | None:
        """Return `refusal` as one sentence."""
        refusal = self.refusal(name)
        return refusal and "; ".join(filter(None, refusal))

    def build(self, name: str, *arguments: object, **hyperparameters: object) -> Any:
        """Build component `name`. Raises ValueError with every rule that the name or the hyperparameters break."""
        return self.checked(name, hyperparameters).build(*arguments, **hyperparameters)

    def checked(self, name: str, hyperparameters: Options) -> Family:
        """Return component `name`. Raises ValueError with every rule that the name or the hyperparameters break."""
        unknown = self.fault(name)
        if unknown:
            raise ValueError(unknown)
        # Lanes pass tensors of values from configurations that were checked before.
        faults = self[name].faults({k: v for k, v in hyperparameters.items() if not hasattr(v, "shape")})
        if faults:
            raise ValueError("; ".join(faults))
        return self[name]


def is_import_path(name: str) -> bool:
    """Return whether a name is written as an import path, `module.file:Name`."""
    return ":" in name


def column_label(name: str) -> str:
    """Return a component's name in the form used in column names, so that SQL needs no quotes.

    Plain names have this form already. For an import path, the part after the colon is converted:
    `my_package.methods:ShiftScale` becomes `shift_scale`.
    """
    if not is_import_path(name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(":")[2])
    return re.sub(r"\W+", "_", words).lower()


def entry_label(entry: Mapping[str, object]) -> str:
    """Return a component's name in an evaluation's columns: its `label` if it has one, else its `column_label`."""
    label = entry.get(LABEL)
    return label if isinstance(label, str) else column_label(str(entry["name"]))
