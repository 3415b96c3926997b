"""Strata: trials of one kind compete among themselves, so that every kind is compared at the end.

In one pool, weak networks and losses that start slowly are gone after the first rung, and nothing can be said about
them. With `within: [architecture, loss]` a trial is compared only with those of its own network and loss: each stratum
has rungs, cut-offs and competitors of its own, under the same scheduler. A stratum is a scheduler's own state, so what
holds for one pool holds for each stratum, and one stratum decides as no strata do.

A path names a component (`architecture`: by its name) or any of its hyperparameters (`loss.score`). A configuration
that lacks the hyperparameter is in a stratum with those that lack it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sweeper.core.ids import is_added
from sweeper.journal.records import Decision, Drawn, Record, Suggested
from sweeper.scheduling.base import Measured, RungState, Scheduler, Settled
from sweeper.scheduling.ranking import Constraint


def stratum_name(values: Mapping[str, object], within: Sequence[str]) -> str:
    """Return the name of the stratum of a configuration: `resnet8, focal`, or `focal, score msp` for `loss.score`.

    Args:
        values: the configuration, a mapping with a `name` for each part of the space.
        within: the paths that divide trials.
    """
    return ", ".join(_part(values, path) for path in within)


def _part(values: Mapping[str, object], path: str) -> str:
    part, _, key = path.partition(".")
    component = values.get(part, {})
    # A journal that somebody forged may have anything there; what it names is a stratum then.
    found = component.get(key or "name") if isinstance(component, Mapping) else component
    if not key or key == "name":
        return str(found)
    return f"no {key}" if found is None else f"{key} {found:.6g}" if isinstance(found, float) else f"{key} {found}"


@dataclass(frozen=True)
class Stratified(Scheduler):
    """A scheduler that compares trials within their strata.

    Attributes:
        one_pool: what decides within each stratum.
        within: the paths that divide trials.
        configurations: all of them, by index, for those that the journal does not have; `None` where a searcher chooses
            them.
    """

    one_pool: Scheduler
    within: tuple[str, ...]
    configurations: Sequence[Mapping[str, object]] | None = field(compare=False, repr=False)
    _drawn: dict[int, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The same epochs in every stratum."""
        return self.one_pool.rungs

    @property
    def metrics(self) -> tuple[str, ...]:
        """What is compared in every stratum."""
        return self.one_pool.metrics

    @property
    def constraints(self) -> Sequence[Constraint]:
        """The same constraints in every stratum."""
        return self.one_pool.constraints

    @property
    def smallest_pool(self) -> int:
        """The fewest trials that a stratum should have."""
        return self.one_pool.smallest_pool

    def drawn_stratum(self, configuration: int) -> str:
        """Return the name of a configuration's stratum. Raises KeyError where a searcher chooses configurations.

        Each is drawn once for all states: a plan plays a sweep a thousand times.
        """
        if self.configurations is None:
            raise KeyError(configuration)
        if configuration not in self._drawn:
            self._drawn[configuration] = stratum_name(self.configurations[configuration], self.within)
        return self._drawn[configuration]

    def begin(self) -> StrataState:
        """Return the state before the first record."""
        return StrataState(self)


def stratified(
    scheduler: Scheduler, within: Sequence[str], configurations: Sequence[Mapping[str, object]] | None
) -> Stratified:
    """Return `scheduler` with a pool for each stratum; arguments as the attributes of `Stratified`."""
    return Stratified(scheduler.metric, scheduler.mode, scheduler.max_epochs, scheduler, tuple(within), configurations)


class StrataState(RungState):
    """The state of every stratum, each begun when its first trial is asked for."""

    scheduler: Stratified

    def __init__(self, scheduler: Stratified) -> None:
        """Start without strata."""
        super().__init__(scheduler)
        self._journaled: dict[int, str] = {}
        self._pools: dict[str, RungState] = {}

    def stratum(self, configuration: int) -> str | None:
        """Return the name of a configuration's stratum, `None` for an added seed.

        Raises KeyError where no searcher has chosen it yet.
        """
        if is_added(configuration):
            return None
        found = self._journaled.get(configuration)
        return self.scheduler.drawn_stratum(configuration) if found is None else found

    def pool(self, configuration: int) -> RungState:
        """Return the state of a configuration's stratum."""
        name = self.stratum(configuration)
        if name is None:
            return super().pool(configuration)
        if name not in self._pools:
            self._pools[name] = self.scheduler.one_pool.begin()
        return self._pools[name]

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Return whether a configuration continues from a rung, by its stratum. Changes nothing that decides."""
        return self.pool(configuration).compare(rung, configuration, metric, measured)

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return the promotion from the highest rung of any stratum; of equals, from the stratum that began first."""

        def within(stratum: str) -> Settled:
            return lambda _, rung: settled(stratum, rung)

        pools = self._pools.items()
        found = [each for name, pool in pools if (each := pool.promotion(within(name))) is not None]
        if not found:
            return None
        configuration, decision = max(found, key=lambda each: each[1].rung or 0)
        return configuration, replace(decision, stratum=self.stratum(configuration))

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision of the configuration's stratum."""
        decision = self.pool(configuration).never_promoted(rung, configuration)
        return replace(decision, stratum=self.stratum(configuration))

    def apply(self, record: Record) -> None:
        """Fold one journal record in; one with a configuration's values says what its stratum is."""
        if isinstance(record.body, Suggested):
            self._journaled[record.body.configuration] = stratum_name(record.body.values, self.scheduler.within)
        if isinstance(record.body, Drawn):
            names = (stratum_name(values, self.scheduler.within) for values in record.body.values)
            self._journaled.update(enumerate(names, record.body.first))
        super().apply(record)
