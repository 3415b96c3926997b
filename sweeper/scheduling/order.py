"""The order in which reports are judged: that of a virtual machine, whatever the real processes do.

Asynchronous schedulers judge a trial against the trials that reached its rung earlier. If "earlier" meant "reported
earlier", decisions would depend on the speed of processes, and the same command would give two answers. Here `width`
virtual workers train the sweep in virtual time: an assignment (a configuration from one rung to the next) lasts epochs
× seeds. Reports are judged in the order of their virtual ends, ties by the configuration's number. A virtual worker
that is free then takes the next assignment: a promotion, a configuration that waits, or a searcher's suggestion.

Real processes train whatever assignments virtual workers hold, the earliest virtual end first. A report that comes
early is journaled at once and judged when its turn comes. So decisions follow from the search space alone, for any
number of processes. They have to wait only if every assignment that is held has been trained.

The machine is computed from the journal, so a resumed sweep continues its order and an audit can recompute it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from sweeper.core.ids import is_added, trial_name
from sweeper.journal.records import Added, Attempt, Body, Decision, Failed, Judged, Record, Reported, Started, Suggested
from sweeper.scheduling.base import Difference, RungState, settled_but_for
from trainables.worker.trial_reports import ERROR, NON_FINITE

#: Kinds of failure that follow from the search space; another run can lack the others.
REPEATABLE = frozenset({NON_FINITE, ERROR})


@dataclass(frozen=True)
class Step:
    """An assignment of a virtual worker.

    Attributes:
        end: virtual time at which it is judged.
        epochs: epochs trained before it.
    """

    end: float
    epochs: int


@dataclass(eq=False)
class VirtualOrder:
    """The virtual machine; `apply` folds the journal's records, after `rungs` has folded them.

    Attributes:
        rungs: state of the scheduler.
        width: number of virtual workers.
        pace: virtual time per epoch of a configuration; by default 1.
        learns: whether a searcher chooses configurations, so that none waits before it is suggested.
        now: virtual time up to which reports have been judged.
        running: configuration → the assignment that a virtual worker holds.
        waiting: configurations that no worker has taken yet, in order.
        failed: failed configuration → epochs before its last assignment, from which it can be tried again.
        issued: configurations whose assignments have begun and were not fetched by `take_issued`.

    Example:
        >>> from sweeper.scheduling.asha import Halving
        >>> order = VirtualOrder(Halving("val_nll", "min", max_epochs=9, grace_epochs=3).begin(), width=2)
        >>> order.waiting.extend([0, 1, 2])
        >>> order.begin_waiting()
        >>> order.first, order.running[1], list(order.waiting)
        (0, Step(end=3, epochs=0), [2])
        >>> order.end(0, Decision("continue", "first", 3))
        >>> order.first, order.running[0], order.now, order.take_issued()
        (1, Step(end=9, epochs=3), 3, [0, 1])
    """

    rungs: RungState
    width: int
    pace: Callable[[int], float] = lambda configuration: 1
    learns: bool = False
    now: float = field(default=0, init=False)
    running: dict[int, Step] = field(default_factory=dict, init=False)
    waiting: deque[int] = field(default_factory=deque, init=False)
    failed: dict[int, int] = field(default_factory=dict, init=False)
    issued: list[int] = field(default_factory=list, init=False)
    _ends: list[tuple[float, int]] = field(default_factory=list, init=False)
    _drawn: int = field(default=0, init=False)
    _suggested: int = field(default=0, init=False)

    @property
    def first(self) -> int | None:
        """The configuration whose report is judged next; `None` if no worker holds an assignment."""
        # An assignment that ended out of turn, in a journal of another order, is still in the heap.
        while self._ends and self.end_of(self._ends[0][1]) != self._ends[0][0]:
            heapq.heappop(self._ends)
        return self._ends[0][1] if self._ends else None

    @property
    def is_free(self) -> bool:
        """Whether a virtual worker can take an assignment."""
        return len(self.running) < self.width

    @property
    def unsuggested(self) -> bool:
        """Whether the searcher has configurations to suggest."""
        return self.learns and self._suggested < self._drawn

    @property
    def drained(self) -> bool:
        """Whether no assignment is held or waits, apart from promotions."""
        return not (self.running or self.waiting or self.unsuggested)

    def end_of(self, configuration: int) -> float | None:
        """Return the virtual end of a configuration's assignment; `None` if no worker holds one."""
        step = self.running.get(configuration)
        return None if step is None else step.end

    def promotion(self) -> tuple[int, Decision] | None:
        """Return the paused trial that a free worker has to take, and the decision; `None` if there is none."""
        return self.rungs.promotion(self._settled)

    def _settled(self, stratum: str | None, rung: int) -> bool:
        return not self.unsuggested and settled_but_for(self.rungs, self._under_way)(stratum, rung)

    def _under_way(self) -> Iterator[tuple[int, int]]:
        """Yield the configurations that run or wait, each with the epochs before its assignment."""
        yield from ((index, self.failed.get(index, 0)) for index in self.waiting if not is_added(index))
        yield from ((index, step.epochs) for index, step in self.running.items() if not is_added(index))

    def begin_waiting(self) -> None:
        """Let the free workers take configurations that wait."""
        while self.is_free and self.waiting:
            self.begin(self.waiting.popleft(), 0)

    def begin(self, configuration: int, epochs: int) -> None:
        """Let a worker take the assignment from `epochs` to the next rung."""
        end = self.end_from(self.now, configuration, epochs)
        self.running[configuration] = Step(end, epochs)
        heapq.heappush(self._ends, (end, configuration))
        self.issued.append(configuration)

    def end_from(self, begin: float, configuration: int, epochs: int) -> float:
        """Return the virtual end of an assignment that begins after `epochs` epochs."""
        scheduler = self.rungs.scheduler
        # Added seeds run to the last epoch.
        rungs = scheduler.rungs[-1:] if is_added(configuration) else scheduler.rungs
        until = next((rung for rung in rungs if rung > epochs), epochs)
        return begin + (until - epochs) * self.pace(configuration)

    def take_issued(self) -> list[int]:
        """Return the configurations whose assignments have begun since the last call and have not ended."""
        issued, self.issued = dict.fromkeys(self.issued), []
        return [configuration for configuration in issued if configuration in self.running]

    def end(self, configuration: int, decision: Decision) -> None:
        """End an assignment that has been judged; its worker goes on with it, or is free."""
        step = self.running.pop(configuration, None)
        if step is None:
            return
        self.now = max(self.now, step.end)
        if decision.kind == "continue" and decision.rung is not None:
            self.begin(configuration, decision.rung)
        elif decision.kind == "fail":
            self.failed[configuration] = step.epochs

    def reopen(self) -> None:
        """Let failed trials wait before all others; each is tried again from its `Started` record on."""
        self.waiting.extendleft(sorted(self.failed, reverse=True))

    def apply(self, record: Record) -> None:
        """Fold one record; records come in order, and are folded into `rungs` before."""
        ended = judged_in(record.body)
        if ended is not None:
            # Workers take waiting configurations without a record. Promotions and suggestions at the same virtual time
            # come first, and have records.
            self.begin_waiting()
            self.end(*ended)
        match record.body:
            case Attempt() as body:
                self._grow(body.configurations or 0)
            case Suggested() as body:
                self._suggested += 1
                self.begin(body.configuration, 0)
            case Added() as body:
                self.waiting.extend(seed.configuration for seed in body.seeds)
            case Judged(decision=Decision(kind="continue", rung=int(rung))) as body:
                self.begin(body.configuration, rung)
            case Started(configuration=index) if index in self.failed:
                self.waiting = deque(other for other in self.waiting if other != index)
                self.begin(index, self.failed.pop(index))

    def _grow(self, configurations: int) -> None:
        """Let the configurations wait that the sweep did not have before."""
        if not self.learns:
            self.waiting.extend(range(self._drawn, configurations))
        self._drawn = max(self._drawn, configurations)


def judged_in(body: Body) -> tuple[int, Decision] | None:
    """Return the configuration that a record judges, and the decision; `None` if it judges none."""
    match body:
        case Reported(decision=Decision() as decision):
            return body.configuration, decision
        case Failed(final=True):
            return body.configuration, Decision("fail", body.failure.kind, None)
    return None


@dataclass
class OrderAudit:
    """The result of recomputing the order of a sweep.

    Attributes:
        checked: number of judgements, promotions and suggestions whose turn was recomputed.
        differences: those that came out of turn.
        until: virtual time up to which every run of the search space decides alike.
        failed: trial whose failure at that time another run can lack; `None` if no failure limits the order.
        cut: whether a record that differs limits it.
    """

    checked: int = 0
    differences: list[Difference] = field(default_factory=list)
    until: float = 0
    failed: int | None = None
    cut: bool = False


def audit_order(order: VirtualOrder, records: Iterable[Record], differing: Collection[int] = ()) -> OrderAudit:
    """Recompute the turn of every judgement, promotion and suggestion.

    Args:
        order: the sweep's order and rungs, without records.
        records: records of the journal, in order.
        differing: numbers of the records whose decisions differ from recomputed ones.
    """
    audit = OrderAudit()
    for record in records:
        body, ended = record.body, judged_in(record.body)
        audit.cut |= audit.failed is None and record.sequence in differing
        if ended is not None and ended[1].rung not in (None, *order.rungs.epochs):
            continue  # a forged rung, which the audit of decisions reports
        if ended is not None or isinstance(body, Suggested | Judged):
            audit.checked += 1
            fault = _out_of_turn(order, body, ended)
            audit.differences += [Difference(record.sequence, fault)] if fault else []
            audit.cut |= audit.failed is None and bool(fault)
        order.rungs.apply(record)
        order.apply(record)
        if not audit.cut and audit.failed is None:
            audit.until = order.now
            audit.failed = None if ended is None or _is_repeatable(body) else ended[0]
    return audit


def _is_repeatable(body: Body) -> bool:
    """Return whether every run reports the failures, if any, of a judged trial and of its replicates."""
    failures = [body.failure] if isinstance(body, Failed) else []
    if isinstance(body, Reported):
        failures = [*body.report.replicate_errors.values(), *filter(None, [body.report.failure])]
    return all(failure.kind in REPEATABLE for failure in failures)


def _out_of_turn(order: VirtualOrder, body: Body, ended: tuple[int, Decision] | None) -> str:
    """Return why a record came out of turn; empty if it was its turn."""
    promoted = order.promotion() if order.is_free else None
    if ended is None:
        # The paused trials that were never promoted are stopped once nothing else is left.
        stops = isinstance(body, Judged) and body.decision.kind == "stop"
        held = not order.drained if stops else not order.is_free
        return "a virtual worker took an assignment although none was free" if held else ""
    if promoted is not None or (order.is_free and order.unsuggested):
        return f"{trial_name(ended[0])} was judged while a virtual worker had an assignment to take"
    order.begin_waiting()
    if order.first != ended[0]:
        turn = "none" if order.first is None else trial_name(order.first)
        return f"{trial_name(ended[0])} was judged, but it was the turn of {turn}"
    return ""
