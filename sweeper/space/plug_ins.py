"""The base of every part of a search space file, and the parts that name a plug-in: scheduler and searcher."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.objective import Mode
from sweeper.scheduling import DEFAULT, SCHEDULERS, Scheduler
from sweeper.scheduling.base import TOO_SMALL, WITHIN
from sweeper.search.base import SEARCHERS, SearchMethod


class Part(BaseModel):
    """A mapping of a search space file: no value is converted, and no unknown key is let in."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Setting = str | bool | int | float | list[float] | list[str] | None
"""A plug-in's setting as YAML writes it."""


class _PlugIn(Part):
    """A plug-in's name and settings. They were checked against its registry, which also filled in the defaults."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Setting] = Field(init=False)

    @property
    def settings(self) -> dict[str, Setting]:
        """The plug-in's own settings, without those that all of its kind have."""
        return dict(self.__pydantic_extra__)


class SchedulerSettings(_PlugIn):
    """How long trials run, and which stop early: a name of `sweeper.scheduling.SCHEDULERS` and its settings."""

    name: str = DEFAULT
    max_epochs: int

    def built(self, metric: str, mode: Mode) -> Scheduler:
        """Return the scheduler that compares one objective in one pool.

        Raises InvalidSearchSpace where settings that nobody checked, as of a file that is only read, are not valid.
        """
        apart = (WITHIN.name, TOO_SMALL.name)
        settings = {key: value for key, value in self.settings.items() if key not in apart}
        try:
            scheduler: Scheduler = SCHEDULERS.build(self.name, metric, mode, max_epochs=self.max_epochs, **settings)
        except (ValueError, TypeError) as error:
            raise InvalidSearchSpace([Fault("scheduler", str(error))]) from error
        return scheduler


class SearcherSettings(_PlugIn):
    """How configurations are chosen: a name of `sweeper.search.SEARCHERS` and its settings.

    Attributes:
        warm_start: names of earlier sweeps whose finished configurations a searcher that learns has observed when it
            begins.
    """

    name: str = "random"
    warm_start: list[str] = Field(default_factory=list)

    @property
    def method(self) -> SearchMethod:
        """The searcher with its settings."""
        method: SearchMethod = SEARCHERS.build(self.name, **self.settings)
        return method

    @property
    def learns(self) -> bool:
        """Whether a configuration depends on what was observed before, so that none is known in advance."""
        return self.method.learns
