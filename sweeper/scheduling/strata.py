"""Strata: trials of the same kind compete only with each other, so that every kind has trials at the end.

In one pool, weak networks and losses that start slowly are stopped at the first rung, so the sweep shows nothing about
them. With `within: [architecture, loss]` a trial is compared only with trials of its own network and loss: each stratum
has its own rungs, cut-offs and competitors under the same scheduler. Each stratum has its own state of that scheduler,
so it behaves like a single pool. A sweep with one stratum makes the same decisions as a sweep without strata.

A path is a part of the space (`architecture`, which divides by the component's name) or a hyperparameter
(`loss.score`). Configurations without the hyperparameter form a separate stratum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sweeper.core.ids import is_added
from sweeper.journal.records import Decision, Drawn, Record, Suggested
from sweeper.scheduling.base import RungState, Scheduler, Settled
from trainables.registry import Configuration
from trainables.registry.configuration import NAME


def stratum_name(configuration: Configuration, within: Sequence[str]) -> str:
    """Return the name of a configuration's stratum; `within` are the paths that divide trials into strata.

    Example:
        >>> drawn = Configuration({"architecture": {"name": "resnet8"}, "loss": {"name": "focal", "gamma": 2.0}})
        >>> stratum_name(drawn, ["architecture", "loss.gamma", "loss.score"])
        'resnet8, gamma 2, no score'
    """
    return ", ".join(_part(configuration, path) for path in within)


def _part(configuration: Configuration, path: str) -> str:
    part, _, key = path.partition(".")
    component = configuration.at(part)
    # A forged journal can contain anything here. An audit must report this instead of failing, so any value is
    # accepted.
    value = configuration.at(f"{part}.{key or NAME}") if isinstance(component, Configuration) else component
    if key in ("", NAME):
        return str(value)
    return f"no {key}" if value is None else f"{key} {value:.6g}" if isinstance(value, float) else f"{key} {value}"


@dataclass(frozen=True)
class Stratified(Scheduler):
    """A scheduler that compares trials within their strata.

    Attributes:
        inner: the scheduler that decides within each stratum.
        within: paths that divide trials into strata.
        configurations: the sweep's configurations by index, used for configurations that are not yet in the journal;
            `None` if a searcher chooses them.
    """

    inner: Scheduler
    within: tuple[str, ...]
    # Left out of `==` and `repr`: a large space draws its configurations lazily, and these would draw all of them.
    configurations: Sequence[Configuration] | None = field(compare=False, repr=False)
    _drawn: dict[int, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs at which trials are compared, equal in every stratum."""
        return self.inner.rungs

    @property
    def smallest_pool(self) -> int:
        """Smallest number of trials for which a comparison within a stratum is useful."""
        return self.inner.smallest_pool

    def drawn_stratum(self, configuration: int) -> str:
        """Return the stratum of a configuration of the space. Raises KeyError if a searcher chooses configurations."""
        if self.configurations is None:
            raise KeyError(configuration)
        # Cached for all states, because a plan simulates a sweep up to a thousand times.
        if configuration not in self._drawn:
            self._drawn[configuration] = stratum_name(self.configurations[configuration], self.within)
        return self._drawn[configuration]

    def begin(self) -> StrataState:
        """Return the state before the first record."""
        return StrataState(self)


def stratified(
    scheduler: Scheduler, within: Sequence[str], configurations: Sequence[Configuration] | None
) -> Stratified:
    """Return `scheduler` with one pool per stratum; the arguments are the attributes of `Stratified`."""
    return Stratified(scheduler.metric, scheduler.mode, scheduler.max_epochs, scheduler, tuple(within), configurations)


class StrataState(RungState):
    """The states of all strata. A stratum's state is created with its first trial."""

    scheduler: Stratified

    def __init__(self, scheduler: Stratified) -> None:
        """Start without strata."""
        super().__init__(scheduler)
        self._journaled: dict[int, str] = {}
        self._pools: dict[str, RungState] = {}

    def stratum(self, configuration: int) -> str | None:
        """Return the name of a configuration's stratum, `None` for an added seed.

        Raises:
            KeyError: a searcher has not chosen the configuration yet.
        """
        if is_added(configuration):
            return None
        # The journal has precedence: if a later version draws other configurations, trials must not change their
        # stratum.
        journaled = self._journaled.get(configuration)
        return self.scheduler.drawn_stratum(configuration) if journaled is None else journaled

    def pool(self, configuration: int) -> RungState:
        """Return the state of a configuration's stratum."""
        name = self.stratum(configuration)
        if name is None:
            return super().pool(configuration)
        if name not in self._pools:
            self._pools[name] = self.scheduler.inner.begin()
        return self._pools[name]

    def compare(self, rung: int, configuration: int, metric: float) -> Decision:
        """Return the decision of the configuration's stratum. Does not change values or decisions."""
        return self.pool(configuration).compare(rung, configuration, metric)

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Return the promotion from the highest rung of any stratum; of equal rungs, the stratum that began first."""

        # A pool does not know its stratum and passes `None`, which is replaced by the stratum's name.
        def within(stratum: str) -> Settled:
            return lambda _, rung: settled(stratum, rung)

        offers = (pool.promotion(within(name)) for name, pool in self._pools.items())
        promotions = [promotion for promotion in offers if promotion is not None]
        if not promotions:
            return None
        configuration, decision = max(promotions, key=lambda promotion: promotion[1].rung or 0)
        return configuration, replace(decision, stratum=self.stratum(configuration))

    def never_promoted(self, rung: int, configuration: int) -> Decision:
        """Return the decision of the configuration's stratum."""
        decision = self.pool(configuration).never_promoted(rung, configuration)
        return replace(decision, stratum=self.stratum(configuration))

    def apply(self, record: Record) -> None:
        """Add one journal record to the state. A record with a configuration's values determines its stratum."""
        if isinstance(record.body, Suggested):
            self._journaled[record.body.configuration] = stratum_name(record.body.values, self.scheduler.within)
        if isinstance(record.body, Drawn):
            names = (stratum_name(values, self.scheduler.within) for values in record.body.values)
            self._journaled.update(enumerate(names, record.body.first))
        super().apply(record)
