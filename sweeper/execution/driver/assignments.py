"""Choose what runs next: waiting trials, promotions, suggestions of a searcher; and track assignments in flight.

The unit of work is a configuration with all its replicates, or one replicate. An executor gets an assignment and later
reports on the same assignment:

* An assignment is usually one configuration, or several short ones that no scheduler can stop, `[7, 8, 9]`.
* With `packing: trials` it is one replicate on its way to its configuration's next rung, `[7, 1]`. At the rung its
  process reports and becomes free; the replicate later continues from its checkpoint.
* If trials train as lanes of a cohort, a process takes further trials of the same kind as lanes become free.

In canonical order (`sweeper.scheduling.order`), virtual workers choose what is trained, and the queue contains the
assignments that they hold, the earliest virtual end first.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from sweeper.core.ids import is_added, trial_name
from sweeper.execution.driver.context import DriverSettings, Shares, TrialValues
from sweeper.execution.driver.steering import Steering
from sweeper.journal.records import Body, Decision, Judged, Started
from sweeper.journal.state import ENDED, FAILED, WAITING, ReplicateState, SweepState, TrialState
from sweeper.scheduling.base import RungState, Settled, settled_but_for
from sweeper.scheduling.order import VirtualOrder
from sweeper.search.base import Searcher, suggested_body
from trainables.training.lanes.packing import cohort_key
from trainables.worker.checkpoints import replicate_folder
from trainables.worker.trial_settings import Assignment

#: A configuration's index, and a replicate's number if replicates have separate processes (else `None`: all of them).
Unit: TypeAlias = tuple[int, int | None]

#: Most configurations per assignment. A Tune trial costs 0.03 s, so larger batches would save nothing noticeable.
BATCH_LIMIT = 8


@dataclass(eq=False)
class Assignments:
    """Queue of waiting units and the assignments in flight; answers an executor that asks for work.

    Attributes:
        settings: Settings of the driver.
        state: State of the sweep, which `commit` changes.
        rungs: State of the rungs, folded from the same journal.
        values: Values of configurations.
        steering: Requests to stop or wind down; while there is one, no trial starts.
        commit: Function that journals a record durably.
        order: Virtual order in which reports are judged; `None` for the order of arrival.
        searcher: Searcher that chooses configurations, replayed from the journal; `None` if they follow from the
            space. It is called only when a trial could start at once, so that it has seen as many results as possible.
        shares: GPU share of each configuration.
        slots: Trials that run at once; determines the size of assignments.
        failed_too: Whether failed trials are run again.
        clock: Clock in seconds.
        processes: Processes that fit at once.
    """

    settings: DriverSettings
    state: SweepState
    rungs: RungState
    values: TrialValues
    steering: Steering
    commit: Callable[[Body], None]
    _: KW_ONLY
    order: VirtualOrder | None
    searcher: Searcher | None
    shares: Shares
    slots: int
    failed_too: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Queue the unfinished units according to `state` and `rungs`."""
        self.processes = self.slots
        waiting = (i for i in self.state.unfinished(failed_too=self.failed_too) if i not in self.unsuggested)
        self._queue = deque(unit for i in waiting if not self.state.trials[i].paused for unit in self.units_of(i))
        if self.order is not None:  # virtual workers fill it
            self._queue.clear()
        #: Trials that continue in their process; their next assignments are not queued.
        self._going_on: set[int] = set()
        #: Trials of a process that died, which train alone until they have trained an epoch.
        self._suspects: set[int] = set()
        #: Unit → time until which it waits, because other programs use the machine's memory.
        self._held: dict[Unit, float] = {}
        self._kinds: dict[int, str | None] = {}
        #: Assignments in flight.
        self._in_flight: set[tuple[int, ...]] = set()

    def resize(self, slots: int) -> None:
        """Set the number of trials that run at once, which changes with a cluster's nodes and with lanes."""
        self.slots = max(1, slots)

    def fit(self, processes: int) -> None:
        """Set the number of processes that fit at once."""
        self.processes = processes
        if not self.settings.together:
            self.resize(processes)

    def put_back(self, units: Iterable[Unit]) -> None:
        """Put units that have not ended at the head of the queue, in their order, or in their place of the order."""
        left = [unit for unit in units if not self.has_ended(unit)]
        if self.order is None:
            self._queue.extendleft(reversed(left))  # `extendleft` reverses the order, so reverse first
        else:
            self._enter(unit for unit in left if unit not in self._queue)

    def _enter(self, units: Iterable[Unit]) -> None:
        """Put units into the queue in canonical order."""
        for unit in units:
            bisect.insort(self._queue, unit, key=self._turn)

    def _turn(self, unit: Unit) -> tuple[float, int, int]:
        assert self.order is not None
        return self.order.end_of(unit[0]) or 0, unit[0], unit[1] or 0

    def take_virtually(self) -> None:
        """Let free virtual workers take promotions, waiting configurations and suggestions; queue what they hold."""
        order = self.order
        while order is not None and order.is_free:
            promoted = order.promotion()
            if promoted is not None:
                self._record_promotion(*promoted)
            elif order.waiting and order.waiting[0] in order.failed:
                self.commit(Started(order.waiting[0], self.state.attempt))  # it is tried again
            elif order.waiting:
                order.begin_waiting()
            elif self.unsuggested:
                self._record_suggestion()
            else:
                break
        for index in [] if order is None else order.take_issued():
            if index in self._going_on:
                self._going_on.discard(index)
            elif self.state.trials[index].arrived is None:
                self._enter(self.units_of(index))

    def goes_on(self, index: int, epochs: int) -> bool:
        """Note whether a trial continues after a rung in its process, because no other one's turn comes first."""
        order = self.order
        if order is None or (index,) not in self._in_flight:
            return order is None
        turn = order.end_from(order.end_of(index) or order.now, index, epochs), index, 0
        others = (unit for unit in self._queue if self._may_start(unit) and self._turn(unit) < turn)
        kind = self.kind_of(index) if self.settings.together else None
        if any(kind is None or self.kind_of(unit[0]) == kind for unit in others):
            return False
        self._going_on.add(index)
        return True

    def leaves(self, assignment: Sequence[int]) -> bool:
        """Return whether a trial that continues has left its process and waits in the queue."""
        return self.order is not None and (assignment[0], None) in self._queue

    def add(self, index: int) -> None:
        """Put a configuration at the end of the queue."""
        self._queue.extend(self.units_of(index))

    def leave_out(self, is_left_out: Callable[[Unit], bool]) -> list[int]:
        """Remove units from the queue; return the configurations that were in it before."""
        before = [*dict.fromkeys(index for index, _ in self._queue)]
        self._queue = deque(unit for unit in self._queue if not is_left_out(unit))
        return before

    def take_back(self, assignment: Sequence[int]) -> bool:
        """End an assignment; return whether it was in flight."""
        given_out = tuple(assignment) in self._in_flight
        self._in_flight.discard(tuple(assignment))
        return given_out

    def hold(self, units: Iterable[Unit], seconds: float) -> None:
        """Keep units from starting for some seconds, so that memory can become free."""
        self._held.update(dict.fromkeys(units, self.clock() + seconds))

    def suspect(self, indices: Iterable[int]) -> None:
        """Run each of these trials in its own process until it has trained an epoch."""
        self._suspects.update(indices)

    def clear(self, indices: Iterable[int]) -> None:
        """Stop suspecting these trials."""
        self._suspects.difference_update(indices)

    @property
    def outstanding(self) -> int:
        """Number of trials that could train at once, including running trials; 0 if no trial may start now."""
        if self.steering.closing or self._is_full or not self._waiting:
            return 0
        ready = sum(map(self._may_start, self._queue))
        least = 1 if ready == len(self._queue) else 0
        further = len(self.unsuggested) if self.order is None else 0
        return max(len(self._in_flight) + ready + further, least)

    @property
    def next_share(self) -> float | None:
        """GPU share that the next trial needs; `None` if trials use no GPU or whole GPUs."""
        promoted = self.rungs.promotion(self._settled) if self.order is None else None
        first = promoted[0] if promoted else self._queue[0][0] if self._queue else None
        if first is None:
            return None if self.shares.measured is None else self.shares.usual
        return self.share_of([first])

    def next(self, fits: Callable[[int], bool] = lambda index: True) -> list[int] | None:
        """Return the next assignment of configurations that fit; `None` if there is none now.

        In order of arrival, promotions come first, then the queue, then a new suggestion of the searcher.
        """
        if self.steering.closing or self._is_full:
            return None
        if self.order is None:
            self._promote(fits)
        unit = self._first(fits)
        if unit is None and self.order is None and self._suggest():
            unit = self._first(fits)
        if unit is None:
            return None
        index, number = unit
        assignment = [index] if number is None else [index, number]
        for _ in range(1, self._batch_size):
            # The queue in canonical order can be shorter than the batches that it allows.
            if (
                not self._queue
                or not self._go_together(index, self._queue[0][0])
                or not self._may_start(self._queue[0])
            ):
                break
            assignment.append(self._queue.popleft()[0])
        self._in_flight.add(tuple(assignment))
        return assignment

    def next_of_kind(self, kind: str | None, share: float | None = None) -> list[int] | None:
        """Return the next trial to join a cohort of a kind on a GPU share; `None` if there is none now."""

        def fits(index: int) -> bool:
            return index not in self._suspects and self.kind_of(index) == kind and self._fits_on(index, share)

        return self.next(fits)

    def next_for_empty(self, before: str | None = None, share: float | None = None) -> list[int] | None:
        """Return the next assignment for a process that has none; `None` if there is none now.

        In cohorts it prefers the kind that the process trained `before`. The first process of a resumed sweep prefers
        the kind that was training last. So with one process, kinds alternate as in an uninterrupted run, and trials
        reach rungs in the same order. Within a kind, a trial that started earlier is never behind; if trials start
        together, the lowest index comes first. Only the order of promotions is not in the journal.
        """
        if not self.settings.together:
            return self.next()
        kind, self._interrupted = before or self._interrupted, None
        assignment = self.next_of_kind(kind, share) if kind is not None else None
        return self.next(lambda index: self._fits_on(index, share)) if assignment is None else assignment

    def _fits_on(self, index: int, share: float | None) -> bool:
        return share is None or (self.share_of([index]) or 0) <= share

    @cached_property
    def _interrupted(self) -> str | None:
        """Kind of the trial that had reported last when this driver began."""
        last = self.state.last_reported
        return None if last is None else self.kind_of(last)

    def kind_of(self, index: int) -> str | None:
        """Return the key that configurations of one cohort share; `None` if the configuration trains alone."""
        if index not in self._kinds:
            self._kinds[index] = cohort_key(self.values.look(index), self.settings.training)
        return self._kinds[index]

    def is_suspect(self, index: int) -> bool:
        """Return whether a trial was in a process that died and has not trained since; such a trial trains alone."""
        return index in self._suspects

    def describe(self, assignment: Sequence[int]) -> list[Assignment]:
        """Return an assignment as the worker receives it, with values and seeds."""
        described = []
        for index, number in self.units(assignment):
            values, added = self.values.of(index), self.state.trials[index].added
            if added is not None:
                place = place_of_unit((index, number))
                name = trial_name(added.trial)
                described.append(Assignment(index, name, values, [added.seed], added.replicate, place, final=True))
                continue
            seeds = self.settings.seeds.of(index)
            own = seeds if number is None else [seeds[number]]
            described.append(Assignment(index, trial_name(index), values, own, number))
        return described

    def share_of(self, assignment: Sequence[int]) -> float | None:
        """Return the GPU share of an assignment: the measured one, or a larger one after memory ran out."""
        shares = [self.shares.of(unit[0], self.state_of(unit).share) for unit in self.units(assignment)]
        return max((share for share in shares if share is not None), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to assign and no assignment is in flight."""
        return not self._in_flight and (not self._waiting or self.steering.closing is not None)

    @property
    def done(self) -> bool:
        """Whether nothing runs or waits although no stop was requested."""
        return not (self.steering.closing or self._in_flight or self._waiting)

    @property
    def _is_full(self) -> bool:
        """Whether as many assignments are in flight as `max_concurrent` allows."""
        return self.settings.max_concurrent is not None and len(self._in_flight) >= self.settings.max_concurrent

    def _first(self, fits: Callable[[int], bool]) -> Unit | None:
        """Remove the first unit that fits from the queue and return it; `None` if there is none."""
        # A trial can end while it waits: another replicate's report may have stopped it.
        while self._queue and self.state.trials[self._queue[0][0]].status in ENDED:
            self._queue.popleft()
        first = next((unit for unit in self._queue if self._may_start(unit) and fits(unit[0])), None)
        if first is not None:
            self._queue.remove(first)
        return first

    def _may_start(self, unit: Unit) -> bool:
        """Return whether a unit need not wait for memory."""
        return self.clock() >= self._held.get(unit, -math.inf)

    @property
    def _batch_size(self) -> int:
        """Number of configurations in an assignment whose first has been taken from the queue.

        More than one only if no trial can be stopped before its last epoch, that is, if the only rung is the last.
        """
        settings = self.settings
        if len(self.settings.schedule.rungs) > 1 or self.searcher is not None or settings.apart or settings.together:
            return 1
        # Batches shrink towards the end (guided self-scheduling), so that no process is left with a long one.
        return min(BATCH_LIMIT, math.ceil((1 + len(self._queue)) / (4 * self.slots)))

    def _go_together(self, first: int, second: int) -> bool:
        alike = self.share_of([first]) == self.share_of([second])
        return alike and self._suspects.isdisjoint((first, second))

    def _promote(self, fits: Callable[[int], bool]) -> None:
        """Put the trial that the scheduler promotes now, if any, at the head of the queue."""
        promoted = self.rungs.promotion(self._settled) if len(self._in_flight) < self.slots else None
        # A trial that does not fit now is not promoted yet: the promotion's record would take effect before it can
        # train.
        if promoted is None or not fits(promoted[0]):
            return
        self._record_promotion(*promoted)
        self._queue.appendleft((promoted[0], None))

    def _record_promotion(self, index: int, decision: Decision) -> None:
        self.commit(Judged(index, self.state.attempt, self.state.trials[index].epochs, WAITING, decision))

    def _suggest(self) -> bool:
        """Let the searcher choose configurations while slots are free; return whether one waits in the queue.

        A suggestion becomes configuration *i* when its record is durable. Only then can it be assigned.
        """
        # Trials in flight and in the queue occupy slots.
        while self.searcher and self.unsuggested and len(self._in_flight) + len(self._queue) < self.slots:
            self.add(self._record_suggestion())
            if self._queue:
                return True
        return False

    def _record_suggestion(self) -> int:
        """Let the searcher choose the next configuration; return its index."""
        assert self.searcher is not None
        index = self.unsuggested[0]
        self.commit(suggested_body(index, self.searcher.suggest(index), self.searcher.maker))
        return index

    @property
    def unsuggested(self) -> range:
        """Indices of the configurations that the searcher has not chosen yet."""
        return (
            range(0)
            if self.searcher is None
            else range(len(self.state.configurations), len(self.values.configurations))
        )

    @property
    def _waiting(self) -> bool:
        """Whether there is anything to assign, or to judge in its turn."""
        if self.order is not None:
            return not self.order.drained
        return bool(self._queue or self.unsuggested) or self.rungs.promotion(self._settled) is not None

    @property
    def _settled(self) -> Settled:
        """Predicate for rungs that no further trial can reach; false for all while a searcher can add trials."""
        if self.unsuggested:
            return lambda stratum, rung: False
        return settled_but_for(self.rungs, self._under_way)

    def _under_way(self) -> Iterator[tuple[int, int]]:
        """Yield the trials that run or wait, each with its epochs so far."""
        for index in itertools.chain((index for index, _ in self._queue), *self._in_flight):
            if not is_added(index):
                yield index, self.state.trials[index].epochs

    def numbers(self, index: int) -> Sequence[int]:
        """Return the numbers of a configuration's replicates."""
        added = self.state.trials[index].added
        return range(self.settings.seeds.count) if added is None else (added.replicate,)

    def units_of(self, index: int) -> list[Unit]:
        """Return the units of a configuration: itself, or each of its replicates."""
        numbers = self.numbers(index) if self.settings.apart else (None,)
        return [(index, number) for number in numbers]

    def units(self, assignment: Sequence[int]) -> list[Unit]:
        """Return the units of an assignment."""
        return [(assignment[0], assignment[1])] if self.settings.apart else [(index, None) for index in assignment]

    def state_of(self, unit: Unit) -> TrialState | ReplicateState:
        """Return the state of a unit."""
        index, number = unit
        trial = self.state.trials[index]
        return trial if number is None else trial.replicates.get(number, ReplicateState())

    def has_ended(self, unit: Unit) -> bool:
        """Return whether a unit has ended, or its configuration waits for its turn to be judged."""
        return self.state_of(unit).status in ENDED or self.state.trials[unit[0]].arrived is not None

    def is_over(self, unit: Unit) -> bool:
        """Return whether a unit has nothing to do: it has ended, pauses at a rung, or waits for other reports."""
        known = self.state_of(unit)
        waits = known.status == WAITING if isinstance(known, ReplicateState) else known.paused
        return self.has_ended(unit) or waits

    def rests(self, unit: Unit) -> bool:
        """Return whether a replicate has nothing to do: it has failed, or waits at a rung to be judged."""
        replicate = self.state_of(unit)
        return replicate.status == FAILED or self.is_open_rung(unit[0], replicate.epochs)

    def is_open_rung(self, index: int, epoch: int) -> bool:
        """Return whether an epoch is a rung of a configuration that is not judged yet."""
        return epoch > self.state.trials[index].epochs and epoch in self.rungs_of(index)

    def rungs_of(self, index: int) -> Collection[int]:
        """Return the epochs at which a configuration is judged."""
        return self.rungs.pool(index).epochs if is_added(index) else self.rungs.epochs


def place_of_unit(unit: Unit) -> str:
    """Return the folder of a unit's checkpoints, relative to the folder of all checkpoints."""
    index, number = unit
    return trial_name(index) if number is None else replicate_folder(Path(trial_name(index)), number).as_posix()
