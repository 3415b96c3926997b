"""The components of each kind by name: one description, used to build, to validate and to list.

A `Registry` maps a name in a search space (a loss, an architecture, a data set, an optimiser, a post-hoc
method) to a `Component`: how to build it and which `Hyperparameter`s it takes. The search-space reader checks
values against these descriptions before anything runs, and `sweeper spaces` prints them.

A name may also be a user's own: an import path, `my_losses:Tilted`, or an entry point of an installed package
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

#: Every tag and what it says of a component.
TAGS = {
    "batch_coupled": "a loss whose samples' values depend on each other",
    "stateful": "a loss that keeps a state between batches",
    "needs_model": "a loss that is computed from the network and the inputs, not from logits",
    "third_order": "a loss whose gradient differentiates the network three times, as often as its `probes` say",
    "text": "a network that takes token ids, and with them the data set's vocabulary and word vectors",
    "follows_data": "a network whose computation depends on the values of its inputs, not on their shape alone",
}


@dataclass(frozen=True)
class DataSetSize:
    """How large a data set is, known without its files.

    Attributes:
        input_shape: of one network input.
        classes: number of classes K.
        train, val, test: samples of each split.
        text: whether inputs are token ids.
        further: samples of the splits besides these three, by name.
    """

    input_shape: tuple[int, ...]
    classes: int
    train: int
    val: int
    test: int
    text: bool = False
    further: Mapping[str, int] = field(default_factory=dict)

    def samples(self, split: str) -> int:
        """Return the samples of `split`; one whose size is not said counts as many as the test split."""
        return {"train": self.train, "val": self.val, "test": self.test, **self.further}.get(split, self.test)


#: A component's hyperparameters by name.
Options = Mapping[str, Any]

#: What a replicate is made of: `loss`, `architecture` and `optimizer`, each a name with its hyperparameters.
Configuration = Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """A named, buildable thing; a family whose members declare more has a subclass, beside its registry.

    Attributes:
        name: in a search space.
        build: makes it, from what its kind is given and its hyperparameters.
        hyperparameters: what it takes.
        summary: one line for `sweeper spaces`.
        source: paper and section, or the package that a user's own comes from.
        check: adds a rule over several hyperparameters at once.
        tags: marks that the project's own code looks at; `TAGS` says what each means.
    """

    name: str
    build: Callable[..., Any]
    hyperparameters: tuple[Hyperparameter, ...] = ()
    summary: str = ""
    source: str = ""
    check: Callable[[Options], str | None] | None = None
    tags: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        """Take defaults from the signature of `build`, their one place; an empty list there stands for none."""
        try:
            arguments = inspect.signature(self.build).parameters
        except ValueError:  # of a builtin such as `dict`, which has none
            return
        known = {name: each.default for name, each in arguments.items() if each.default not in (each.empty, ())}
        filled = (replace(h, default=known.get(h.name)) if h.default is None else h for h in self.hyperparameters)
        object.__setattr__(self, "hyperparameters", tuple(filled))

    def hyperparameter(self, name: str) -> Hyperparameter | None:
        """Return the description of hyperparameter `name`, or `None`."""
        return next((h for h in self.hyperparameters if h.name == name), None)

    def faults(self, values: Options) -> list[str]:
        """Return every rule that concrete `values` break, one sentence each."""
        known = tuple(h.name for h in self.hyperparameters)
        found = [
            f"{self.name} takes no hyperparameter {key!r}{did_you_mean(key, known)}"
            for key in values
            if key not in known
        ]
        for description in self.hyperparameters:
            if description.name in values:
                fault = description.fault(values[description.name])
                found += [fault] if fault else []
            elif description.required:
                found.append(f"{self.name} needs {description.name} ({description.range_text})")
        if not found and self.check is not None:
            fault = self.check(values)
            found += [fault] if fault else []
        return found


#: Keys of a post-hoc method in an evaluation: what its columns are called, so that one method may stand twice, and the
#: split that it is fitted on, `val` where it says none.
LABEL, FITTED_ON = "label", "fitted_on"


#: The name of a loss, network, optimiser or data set that is the business of a training loop of the user's own.
OWN = "own"

#: The name of the training loop that stands for training elsewhere.
IMPORTED = "imported"


#: The class of a registry's components.
Family = TypeVar("Family", bound=Component, default=Component, covariant=True)
Built = TypeVar("Built", bound=Callable[..., Any])
_Value = TypeVar("_Value")


@contextmanager
def set_within(variable: ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Within this context a context variable has this value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


_reopening: ContextVar[bool] = ContextVar("reopening", default=False)
_permitted: frozenset[str] | None = None


def importing_nothing() -> AbstractContextManager[None]:
    """Accept names of the user's own unchecked and import none: the file was checked when its sweep began.

    Somebody else may have changed it since, and reading a results folder must not run what it names.
    """
    return set_within(_reopening, True)


def permit_only(names: Iterable[str] | None) -> None:
    """Let the registries of this process import these names of the user's own and no others; `None` permits all.

    A program of the user's own may name anything. Once a results folder is about to be run, only what its user was
    asked about is imported, so that a name which nobody found in the folder is refused instead of run.
    """
    global _permitted
    _permitted = None if names is None else frozenset(names)


class OwnComponents(Protocol):
    """Finds user-defined components and makes them into `Component`s: `trainables.extensions.targets.OwnFamily`."""

    @property
    def group(self) -> str:
        """The last part of the name of its entry points, e.g. `losses`."""

    def names(self) -> Mapping[str, str]:
        """Return the names from installed packages, each with its import path, without importing anything."""

    def component(self, name: str, path: str) -> Component:
        """Return the component called `name`, imported from `path`. Raises ExtensionError when it cannot be used."""


class Registry(Mapping[str, Family], Generic[Family]):
    """The components of one kind, by name, as the files of its folder add them.

    A registry with `own` also knows user-defined components: by import path, and by the names that installed
    packages give in their entry points. They are imported when they are asked for.
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
            kind: the noun used in messages, e.g. `loss`.
            own: finds users' components.
            component: the type of its components.
            leading: names of the arguments that each is built with before its hyperparameters.
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
                f"{name}: it was not imported, because nobody was asked whether this {self.kind} may be run"
            )
        if name not in self._own:
            if self.own is None:
                raise ExtensionError(f"{name}: your own {self.kind} is not supported; name a built-in one")
            own = self.own.component(name, self.installed().get(name, name))
            self._own[name] = own if isinstance(own, self._component) else self._component(**vars(own))
        return self._own[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.fault(name) is None

    def __iter__(self) -> Iterator[str]:
        return iter((*self._components, *(name for name in self.installed() if name not in self._components)))

    def __len__(self) -> int:
        return len([*iter(self)])

    def register(self, component: Family) -> None:  # type: ignore[misc]  # filled before it is read
        """Add a component. Raises ValueError when the name is taken."""
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
        """Return a decorator that registers a function or class under `name`; what it returns is what it was given.

        Its hyperparameters are what its signature and docstring declare, see `trainables.registry.hyperparameters`. A
        class has every tag that it has an attribute of that name for which is true, and its `name` becomes this.

        Args:
            name: in a search space.
            summary: one line for `sweeper spaces`, and
            source: paper and section, where the docstring does not say them (`signatures.catalogue_words`).
            apart: arguments that are no hyperparameters.
            more: hyperparameters that are no arguments of their own.
            declared: other attributes of the registry's type of component.
        """

        def register(build: Built) -> Built:
            bound = build.keywords if isinstance(build, partial) else {}
            taken = hyperparameters_of(build, name, self._leading, {*apart, *bound})
            tags = {*declared.pop("tags", ()), *(tag for tag in TAGS if getattr(build, tag, False) is True)}
            words = (summary, source) if summary else catalogue_words(build)
            found = self._component(name, build, (*taken, *more), *words, tags=frozenset(tags), **declared)
            self._modules[name] = (build.func if isinstance(build, partial) else build).__module__
            self.register(found)
            if isinstance(getattr(build, "name", None), str):
                build.name = name  # type: ignore[attr-defined]  # it has one
            return build

        return register

    def discover(self, package: str) -> None:
        """Import every module of a package, whose members are then known, in the order of the modules' names.

        Called once, by the package's `__init__` with its `__name__`: a new member is a new file and nothing else.
        """
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
            if not module.ispkg:
                importlib.import_module(module.name)
        # Not in the order in which they import each other, which says nothing.
        self._components = dict(sorted(self._components.items(), key=lambda each: self._modules.get(each[0], "")))

    def installed(self) -> Mapping[str, str]:
        """Return the names from installed packages, each with its import path, without importing anything."""
        return {} if self.own is None else self.own.names()

    @property
    def group(self) -> str:
        """The last part of its entry points' name, `losses` say; empty where it takes no user-defined components."""
        return "" if self.own is None else self.own.group

    def is_own(self, name: str) -> bool:
        """Return whether a name is a user's own: not one of the project's components."""
        return name not in self._components

    def has_tag(self, name: str, tag: str) -> bool:
        """Return whether one of the project's components has a tag of `TAGS`."""
        return name in self._components and tag in self._components[name].tags

    def trusts(self, name: str) -> bool:
        """Return whether `name` and its hyperparameters are accepted unchecked, as `importing_nothing` says."""
        return _reopening.get() and self.is_own(name)

    def only(self, kept: Callable[[Family], bool]) -> Registry[Family]:
        """Return a registry of those of the project's components that are `kept`, and of all of users' own."""
        view = Registry(self.kind, self.own, self._component, self._leading)
        view._components = {name: each for name, each in self._components.items() if kept(each)}
        view._own = self._own  # so that forgetting them in one forgets them in both
        return view

    def built_in(self) -> tuple[Family, ...]:
        """Return the project's components, without users' own."""
        return tuple(self._components.values())

    def forget_own(self) -> None:
        """Reimport the user's own components at their next use."""
        self._own.clear()

    def refusal(self, name: str) -> tuple[str, str] | None:
        """Return why `name` cannot be built and what to write instead, or `None` when it can."""
        try:
            self[name]
        except KeyError:
            return f"unknown {self.kind} {name!r}", hint(name, self)
        except ExtensionError as error:
            return str(error), ""
        return None

    def fault(self, name: str) -> str | None:
        """Return the same in one sentence."""
        refusal = self.refusal(name)
        return refusal and "; ".join(filter(None, refusal))

    def build(self, name: str, *arguments: Any, **hyperparameters: Any) -> Any:
        """Build component `name`. Raises ValueError with every rule that name or hyperparameters break."""
        unknown = self.fault(name)
        if unknown:
            raise ValueError(unknown)
        faults = self[name].faults({k: v for k, v in hyperparameters.items() if not hasattr(v, "shape")})
        if faults:
            raise ValueError("; ".join(faults))
        return self[name].build(*arguments, **hyperparameters)


def is_import_path(name: str) -> bool:
    """Return whether a name is written as an import path, `module.file:Name`."""
    return ":" in name


def column_label(name: str) -> str:
    """Return a component's name as part of a column's name, which SQL must not need to quote.

    Names are so already; of an import path it is what stands after the colon, `my_package.methods:ShiftScale` as
    `shift_scale`.
    """
    if not is_import_path(name):
        return name
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.rpartition(":")[2])
    return re.sub(r"\W+", "_", words).lower()


def entry_label(entry: Mapping[str, object]) -> str:
    """Return how the columns of a component that an evaluation names are called: its `label`, else after its name."""
    label = entry.get(LABEL)
    return label if isinstance(label, str) else column_label(str(entry["name"]))
