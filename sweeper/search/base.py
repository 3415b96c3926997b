"""The interface of searchers, and the history that they learn from. No Ray, no Optuna, no I/O.

A `SearchMethod` is what a search space names: it says what it asks of the space, and begins a `Searcher` if it learns.
What that is told is a fold of the journal, and a suggestion depends on that fold and on its own number alone. So a
driver that takes a sweep up suggests what its predecessor would have, and an audit can suggest everything again.

It is told of a trial what the scheduler judged: the objective at every rung. A trial that was stopped early stays one
that was stopped, at its highest rung, and is never compared with finished ones as if its value were final; a failed one
has no value at all.

A new searcher is one file in this folder, which is found there by its place:

    @SEARCHERS.add("halton", "a quasi-random sequence", "source")
    class Halton(SearchMethod):
        learns: ClassVar[bool] = True
        def begin(self, space: Fields, *, mode: str, seed: int) -> Searcher:
            return HaltonSearcher(space, seed)        # a `Searcher` with `maker`, `suggest` and `apply`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from sweeper.core.domains import Choice, Configuration, Fields, Node
from sweeper.core.errors import Fault
from sweeper.core.ids import config_hash, trial_name
from sweeper.journal.records import Failed, Judged, Record, Reported, Suggested
from sweeper.journal.state import ENDED, FAILED, RUNNING
from trainables.registry import Registry

#: Two suggestions are one if their numbers differ by less than this share: processors round logarithms differently.
SAME_NUMBER = 1e-9


#: Searchers by the name that a search space gives. A component's build takes its settings, returns a `SearchMethod`.
SEARCHERS = Registry("searcher")


@dataclass(frozen=True)
class Suggestion:
    """A configuration that a searcher chose, and the choices that lead to it (`sweeper.core.domains`)."""

    values: Configuration
    choices: dict[str, Choice]


@SEARCHERS.add("random")
class SearchMethod:
    """Draws each configuration independently; cycles through the values of every grid.

    A searcher as a search space names it, with its settings; as it stands, `random`.

    One that does not learn may rewrite the space; its configurations are drawn from that, and every `grid` is taken
    member by member. One that learns chooses each configuration when a trial can start.

    Source: Bergstra and Bengio 2012 (Random Search for Hyper-Parameter Optimization).

    Attributes:
        learns: whether a configuration depends on what was observed before, so that none is known in advance.
    """

    learns: ClassVar[bool] = False

    @property
    def course(self) -> str:
        """How configurations are chosen during a sweep, in words; empty if they follow from the space alone."""
        return ""

    def suit(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Return the parts of a space as they will be searched.

        Args:
            nodes: as they were written, by key; `INVALID` where they have a fault already.
            faults: takes each rule of the searcher that the space breaks, with its place below `space`.
        """
        return nodes

    def begin(self, space: Fields, *, mode: str, seed: int) -> Searcher:
        """Return a searcher without observations; called only if the method learns. May import slow packages."""
        raise NotImplementedError(f"{type(self).__name__} does not learn: its configurations follow from the space")


def written_method(written: Mapping[str, object]) -> SearchMethod:
    """Return the searcher of a resolved search space; the plain one where this version knows no such searcher."""
    settings = {key: value for key, value in written.items() if key != "name"}
    try:
        method: SearchMethod = SEARCHERS.build(str(written.get("name")), **settings)
    except ValueError:
        return SearchMethod()
    return method


class Searcher(Protocol):
    """Chooses configurations from what was observed."""

    #: What chooses, with its version: another one would choose otherwise.
    maker: str

    def suggest(self, configuration: int) -> Suggestion:
        """Return configuration number `configuration`, the one after the last that was suggested."""

    def apply(self, record: Record) -> None:
        """Take one record of the journal in; records come in order."""


@dataclass
class Observed:
    """What is known of a suggested trial.

    Attributes:
        choices: that lead to its configuration.
        rungs: epoch → the objective with which it arrived there.
        status: `running` until it has ended; then `completed`, `early_stopped` or `failed`.
    """

    choices: Mapping[str, Choice]
    rungs: dict[int, float] = field(default_factory=dict)
    status: str = RUNNING


class History:
    """What a searcher has observed: a fold of the journal.

    Attributes:
        trials: of this sweep, by configuration, in the order in which they were suggested.
    """

    def __init__(self) -> None:
        """Begin before the first record."""
        self.trials: dict[int, Observed] = {}

    def apply(self, record: Record) -> None:
        """Fold one record in."""
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
        trial.status = body.status if body.status in ENDED else RUNNING
        made = body.decision
        if made is not None and made.kind != "fail" and made.rung is not None and made.metric is not None:
            trial.rungs[made.rung] = made.metric


def suggested_body(configuration: int, suggestion: Suggestion, maker: str) -> Suggested:
    """Return the body of the record that makes a suggestion configuration number `configuration` of its sweep."""
    digest = config_hash(suggestion.values)
    return Suggested(configuration, suggestion.values, suggestion.choices, digest, maker)


@dataclass(frozen=True)
class SuggestionAudit:
    """What came of suggesting everything again.

    Attributes:
        checked: suggestions that were recomputed.
        differences: one sentence for each fault; after a suggestion that differs, no later one is checked.
        unchecked: how many another version had made, or came after one that differs.
    """

    checked: int
    differences: list[str]
    unchecked: int


def audit_suggestions(begin: Callable[[], Searcher], records: Iterable[Record]) -> SuggestionAudit:
    """Make every journaled suggestion again from the records before it.

    Args:
        begin: makes a searcher with an empty history; asked only if the journal has a suggestion.
        records: of the journal, in order.
    """
    searcher: Searcher | None = None
    checked, unchecked, differences, expected = 0, 0, list[str](), 0
    for record in records:
        if isinstance(record.body, Suggested) and searcher is None:
            searcher = begin()
        if searcher is None:
            continue
        if isinstance(record.body, Suggested):
            body = record.body
            name = f"record {record.sequence}: suggestion of {trial_name(body.configuration)}"
            if body.configuration != expected or body.config_hash != config_hash(body.values):
                differences.append(f"{name}: it is not number {expected}, or its values are not what its hash says")
            expected += 1
            if differences or body.searcher != searcher.maker:
                unchecked += 1
            else:
                again = searcher.suggest(body.configuration)
                checked += 1
                if not _same(again.choices, body.choices):
                    differences.append(f"{name}: journaled {body.choices}, made again {again.choices}")
                elif again.choices == body.choices and again.values != body.values:
                    differences.append(f"{name}: its values are not what its choices lead to")
        searcher.apply(record)
    return SuggestionAudit(checked, differences, unchecked)


def _same(one: Mapping[str, Choice], other: Mapping[str, Choice]) -> bool:
    return one.keys() == other.keys() and all(math.isclose(one[key], other[key], rel_tol=SAME_NUMBER) for key in one)
