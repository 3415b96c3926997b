"""The parts of a search space file that name a plug-in of the sweep: its scheduler and its searcher."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from sweeper.scheduling import DEFAULT
from sweeper.search.base import SEARCHERS, SearchMethod
from sweeper.space.part import Part

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
