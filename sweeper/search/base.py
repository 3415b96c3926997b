"""The interface of searchers, and the history from which they learn. Uses no Ray, no Optuna and no I/O.

A search space names a `SearchMethod`. The method checks or rewrites the space and, if it learns, creates a `Searcher`.
A suggestion depends only on its index and on the journal. So a driver that takes over a sweep makes the same
suggestions as its predecessor would have, and an audit can recompute all of them.

A searcher observes the values that the scheduler compares: the objective at every rung. For a trial that was stopped
early, the searcher knows the highest rung, so it does not mistake the value for a final one. A failed trial has no
value.

To add a searcher, add one file to this folder; it is discovered there:

    @SEARCHERS.add("halton", "a quasi-random sequence", "source")
    class Halton(SearchMethod):
        learns: ClassVar[bool] = True
        def begin(self, space: Space, *, mode: str, seed: int) -> Searcher:
            return HaltonSearcher(space, seed)        # a `Searcher` with `maker`, `suggest` and `apply`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sweeper.core.domains.nodes import Choice, Node
from sweeper.core.domains.space import Space
from sweeper.core.errors import Fault
from sweeper.core.ids import trial_name
from sweeper.journal.records import Failed, Judged, Record, Reported, Suggested
from sweeper.journal.state import ENDED, FAILED, RUNNING
from trainables.registry import Configuration, Registry

#: Relative tolerance within which an audit counts suggestions as equal. Processors round logarithms differently.
SAME_NUMBER = 1e-9


#: Searchers by their name in a search space. Each builds a `SearchMethod` from its settings.
SEARCHERS = Registry("searcher")


@dataclass(frozen=True)
class Suggestion:
    """A configuration, and the choices from which it results (`sweeper.core.domains`)."""

    values: Configuration
    choices: dict[str, Choice]


@SEARCHERS.add("random")
class SearchMethod:
    """Draws each configuration independently; cycles through the values of every grid.

    The base class of searchers as a search space names them, with their settings; it is itself `random`.

    A method that does not learn can rewrite the space; configurations are drawn from the result, and the members of
    every `grid` are taken in turn. A method that learns chooses each configuration when a trial can start.

    Source: Bergstra and Bengio 2012 (Random Search for Hyper-Parameter Optimization).

    Attributes:
        learns: whether a configuration depends on earlier observations, so that none is known in advance.

    Example:
        >>> from sweeper.search import SEARCHERS
        >>> SEARCHERS.build("random").learns, SEARCHERS.build("optuna", startup=4).learns
        (False, True)
        >>> SEARCHERS.build("optuna", startup=4).course
        '4 trials at random, then from what was observed'
    """

    learns: ClassVar[bool] = False

    @property
    def course(self) -> str:
        """How configurations are chosen during a sweep, in words; empty if they follow from the space alone."""
        return ""

    def adapt(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Adapt the parts of a space to the searcher, and check its rules.

        Args:
            nodes: parts of the space by key, as written. A part that already has a fault is `INVALID`.
            faults: list to which each broken rule is appended, with its path below `space`.
        """
        return nodes

    def begin(self, space: Space, *, mode: str, seed: int) -> Searcher:
        """Return a searcher without observations. Called only if the method learns, so it can import slow packages."""
        raise NotImplementedError(f"{type(self).__name__} does not learn: its configurations follow from the space")


def written_method(written: Mapping[str, object]) -> SearchMethod:
    """Build the searcher of a resolved search space, `random` if this version does not know it.

    Example:
        >>> written_method({"name": "optuna", "startup": 4}).learns
        True
    """
    settings = {key: value for key, value in written.items() if key != "name"}
    try:
        method: SearchMethod = SEARCHERS.build(str(written.get("name")), **settings)
    except ValueError:
        # Reports of a finished sweep must work without the package that registered its searcher.
        return SearchMethod()
    return method


class Searcher(Protocol):
    """Chooses configurations from observations."""

    #: Package and version, journaled with each suggestion. Other versions can differ, so an audit skips their
    #: suggestions.
    maker: str

    def suggest(self, configuration: int) -> Suggestion:
        """Suggest the configuration with index `configuration`, the one after the last that was suggested."""

    def apply(self, record: Record) -> None:
        """Observe one record of the journal; records arrive in order."""


@dataclass
class Observed:
    """The observations of a suggested trial.

    Attributes:
        choices: choices from which its configuration results.
        rungs: epoch → objective on arrival.
        status: `running` until the trial has ended; then `completed`, `early_stopped` or `failed`.
    """

    choices: Mapping[str, Choice]
    rungs: dict[int, float] = field(default_factory=dict)
    status: str = RUNNING


class History:
    """The observations of a searcher, computed from the journal.

    Attributes:
        trials: configuration → its observations, in the order of suggestion.
    """

    def __init__(self) -> None:
        """Create a history without observations."""
        self.trials: dict[int, Observed] = {}

    def apply(self, record: Record) -> None:
        """Add the observations of one record."""
        match record.body:
            case Suggested() as body:
                self.trials[body.configuration] = Observed(body.choices)
            case Reported() as body if body.configuration in self.trials:
                self._reported(self.trials[body.configuration], body)
            case Judged() as body if body.configuration in self.trials and body.status in ENDED:
                self.trials[body.configuration].status = body.status
            case Failed(final=True) as body if body.configuration in self.trials:
                self.trials[body.configuration].status = FAILED

    def _reported(self, trial: Observed, body: Reported) -> None:
        # A report after a failure or an interruption means that the trial was started again.
        trial.status = body.status if body.status in ENDED else RUNNING
        decision = body.decision
        # Only values at rungs are used: between rungs the objective may not be measured.
        if decision and decision.kind != "fail" and decision.rung is not None and decision.metric is not None:
            trial.rungs[decision.rung] = decision.metric


def suggested_body(configuration: int, suggestion: Suggestion, maker: str) -> Suggested:
    """Return the body of the record that stores a suggestion as configuration `configuration` of its sweep."""
    values = suggestion.values
    return Suggested(configuration, values, suggestion.choices, values.digest, maker)


@dataclass(frozen=True)
class SuggestionAudit:
    """The result of recomputing all suggestions.

    Attributes:
        checked: number of suggestions recomputed.
        differences: one sentence for each difference.
        unchecked: number of suggestions that were not recomputed: those by another version, or after the first
            difference.
    """

    checked: int
    differences: list[str]
    unchecked: int


def audit_suggestions(begin: Callable[[], Searcher], records: Iterable[Record]) -> SuggestionAudit:
    """Recompute every journaled suggestion from the records before it.

    Args:
        begin: returns a searcher without observations; called only if the journal has a suggestion.
        records: records of the journal, in order.
    """
    searcher: Searcher | None = None
    checked, unchecked, differences, expected = 0, 0, list[str](), 0
    for record in records:
        # The searcher is created late, because this imports Optuna and most sweeps have no suggestions.
        if isinstance(record.body, Suggested) and searcher is None:
            searcher = begin()
        if searcher is None:
            continue
        if isinstance(record.body, Suggested):
            body = record.body
            name = f"record {record.sequence}: suggestion of {trial_name(body.configuration)}"
            if body.configuration != expected or body.config_hash != body.values.digest:
                differences.append(f"{name}: its index is not {expected}, or its hash does not match its values")
            expected += 1
            # After a difference, the searcher's state is not that of the driver, so comparing later suggestions is
            # useless.
            if differences or body.searcher != searcher.maker:
                unchecked += 1
            else:
                again = searcher.suggest(body.configuration)
                checked += 1
                if not _same(again.choices, body.choices):
                    differences.append(f"{name}: journaled {body.choices}, recomputed {again.choices}")
                elif again.choices == body.choices and again.values != body.values:
                    differences.append(f"{name}: its values do not follow from its choices")
        searcher.apply(record)
    return SuggestionAudit(checked, differences, unchecked)


def _same(one: Mapping[str, Choice], other: Mapping[str, Choice]) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[key], other[key], rel_tol=SAME_NUMBER) for key in one)
