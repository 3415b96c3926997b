"""What runs next: the trials that wait, promotions and suggestions that go before them, and what is given out.

The unit of work is a configuration with all its replicates, or one of these. Executors hand back what they were given:

* An assignment is usually one configuration, or several short ones that no scheduler can stop, `[7, 8, 9]`.
* With `packing: trials` it is one replicate on its way to its configuration's next rung, `[7, 1]`. There its process
  reports and is free for others; nothing waits in memory, the replicate continues from its checkpoint.
* Where trials train together, as lanes of a cohort, a process takes trials of its own kind as its lanes fall free.
"""

from __future__ import annotations

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
from sweeper.journal.records import Body, Judged
from sweeper.journal.state import ENDED, FAILED, WAITING, ReplicateState, SweepState, TrialState
from sweeper.scheduling.base import RungState, Settled, settled_but_for
from sweeper.search.base import Searcher, suggested_body
from trainables.training.lanes.packing import cohort_key
from trainables.worker.checkpoints import replicate_folder
from trainables.worker.trial_settings import Assignment

#: A configuration and, where replicates have separate processes, the number of one; `None` for all of them.
Unit: TypeAlias = tuple[int, int | None]

#: The most configurations that one assignment carries: more saves nothing that shows (0.03 s a Tune trial).
BATCH_LIMIT = 8


@dataclass(eq=False)
class Assignments:
    """What waits, and what is given out of it; answers an executor that asks for work.

    Attributes:
        settings: the driver's.
        state: of the sweep, which `commit` continues changing.
        rungs: the same fold, as the scheduler needs it.
        values: of configurations.
        steering: says whether anything may start.
        commit: journals a record, durably.
        searcher: chooses the configurations, and has been told the journal so far; `None` where they follow from
            the space. It is asked when a trial could start at once, so that it knows as much as can be known.
        shares: of a GPU.
        slots: trials that run at once, for cutting assignments.
        failed_too: run failed trials again.
        clock: seconds.
        processes: that fit at once.
    """

    settings: DriverSettings
    state: SweepState
    rungs: RungState
    values: TrialValues
    steering: Steering
    commit: Callable[[Body], None]
    _: KW_ONLY
    searcher: Searcher | None
    shares: Shares
    slots: int
    failed_too: bool
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Queue what is unfinished: what `state` and `rungs` were folded to."""
        self.processes = self.slots
        waiting = (i for i in self.state.unfinished(failed_too=self.failed_too) if i not in self.unsuggested)
        self._queue = deque(unit for i in waiting if not self.state.trials[i].paused for unit in self.units_of(i))
        self._suspects: set[int] = set()
        #: Until when units wait, as others took the memory of the machine.
        self._held: dict[Unit, float] = {}
        self._kinds: dict[int, str | None] = {}
        #: The assignments that are given out and not over.
        self._in_flight: set[tuple[int, ...]] = set()

    def resize(self, slots: int) -> None:
        """Record how many trials run at once from now on: a cluster's nodes come and go, and so do lanes."""
        self.slots = max(1, slots)

    def fit(self, processes: int) -> None:
        """Record how many processes fit at once from now on."""
        self.processes = processes
        if not self.settings.together:
            self.resize(processes)

    def put_back(self, units: Iterable[Unit]) -> None:
        """Put units at the head of the queue, in their order, but for those that have ended."""
        self._queue.extendleft(reversed([unit for unit in units if self.state_of(unit).status not in ENDED]))

    def add(self, index: int) -> None:
        """Put a configuration at the end of the queue."""
        self._queue.extend(self.units_of(index))

    def leave_out(self, is_left_out: Callable[[Unit], bool]) -> list[int]:
        """Take units out of the queue; return the configurations that were in it before."""
        before = [*dict.fromkeys(index for index, _ in self._queue)]
        self._queue = deque(unit for unit in self._queue if not is_left_out(unit))
        return before

    def take_back(self, assignment: Sequence[int]) -> bool:
        """Return whether an assignment was given out; it is over now."""
        given_out = tuple(assignment) in self._in_flight
        self._in_flight.discard(tuple(assignment))
        return given_out

    def hold(self, units: Iterable[Unit], seconds: float) -> None:
        """Let units wait for memory."""
        self._held.update(dict.fromkeys(units, self.clock() + seconds))

    def suspect(self, indices: Iterable[int]) -> None:
        """Give each of these trials a process to itself until it has trained."""
        self._suspects.update(indices)

    def clear(self, indices: Iterable[int]) -> None:
        """Suspect these trials no more."""
        self._suspects.difference_update(indices)

    @property
    def outstanding(self) -> int:
        """How many trials could train at once, those that do included; 0 where none may start now."""
        if self.steering.closing or self._is_full or not self._waiting:
            return 0
        ready = sum(map(self._may_start, self._queue))
        least = 1 if ready == len(self._queue) else 0
        return max(len(self._in_flight) + ready + len(self.unsuggested), least)

    @property
    def next_share(self) -> float | None:
        """The share of a GPU that the next trial needs; `None` where trials take nothing of one, or whole ones."""
        promoted = self.rungs.promotion(self._settled)
        first = promoted[0] if promoted else self._queue[0][0] if self._queue else None
        if first is None:
            return None if self.shares.measured is None else self.shares.usual
        return self.share_of([first])

    def next(self, fits: Callable[[int], bool] = lambda index: True) -> list[int] | None:
        """Return the next assignment, of configurations that fit; `None` when there is none to give now.

        A promotion and a suggestion are asked for where one would fit.
        """
        if self.steering.closing or self._is_full:
            return None
        self._promote(fits)
        unit = self._first(fits)
        if unit is None and self._suggest():
            unit = self._first(fits)
        if unit is None:
            return None
        index, number = unit
        assignment = [index] if number is None else [index, number]
        for _ in range(1, self._batch_size):
            if not self._go_together(index, self._queue[0][0]) or not self._may_start(self._queue[0]):
                break
            assignment.append(self._queue.popleft()[0])
        self._in_flight.add(tuple(assignment))
        return assignment

    def next_of_kind(self, kind: str | None, share: float | None = None) -> list[int] | None:
        """Return the next trial to join a cohort of a kind, on a share of a GPU; `None` when there is none now."""

        def fits(index: int) -> bool:
            return index not in self._suspects and self.kind_of(index) == kind and self._fits_on(index, share)

        return self.next(fits)

    def next_for_empty(self, before: str | None = None, share: float | None = None) -> list[int] | None:
        """Return the next assignment for a process that has none; `None` when there is none to give now.

        Where trials train together it is of the kind that the process had `before`, as long as there are any, or for
        the first process of a driver that takes over of the kind that was in training. So with one process kinds take
        turns as they would have undisturbed, and trials come to rungs in the same order: of one kind, who began earlier
        is never behind, and of those that come together the lowest goes first. Promotions begin in an order that the
        journal does not tell.
        """
        if not self.settings.together:
            return self.next()
        kind, self._interrupted = before or self._interrupted, None
        found = self.next_of_kind(kind, share) if kind is not None else None
        return self.next(lambda index: self._fits_on(index, share)) if found is None else found

    def _fits_on(self, index: int, share: float | None) -> bool:
        return share is None or (self.share_of([index]) or 0) <= share

    @cached_property
    def _interrupted(self) -> str | None:
        """The kind of the trial that the journal heard of last, when this driver began."""
        last = self.state.last_reported
        return None if last is None else self.kind_of(last)

    def kind_of(self, index: int) -> str | None:
        """Return what a configuration has in common with those it can train with; `None` where it trains alone."""
        if index not in self._kinds:
            self._kinds[index] = cohort_key(self.values.look(index), self.settings.training)
        return self._kinds[index]

    def is_suspect(self, index: int) -> bool:
        """Return whether a trial was in a process that died, and has not trained since: it has a process to itself."""
        return index in self._suspects

    def describe(self, assignment: Sequence[int]) -> list[Assignment]:
        """Return an assignment for the worker: one of a replicate with a separate process has its seed alone."""
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
        """Return the share of a GPU for an assignment: what was measured, or more after memory ran out."""
        shares = [self.shares.of(unit[0], self.state_of(unit).share) for unit in self.units(assignment)]
        return max((share for share in shares if share is not None), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to give out and nothing given out can come back."""
        return not self._in_flight and (not self._waiting or self.steering.closing is not None)

    @property
    def done(self) -> bool:
        """Whether nothing runs or waits, though nobody has asked for the end."""
        return not (self.steering.closing or self._in_flight or self._waiting)

    @property
    def _is_full(self) -> bool:
        """Whether as many assignments are given out as the sweep allows at once."""
        return self.settings.max_concurrent is not None and len(self._in_flight) >= self.settings.max_concurrent

    def _first(self, fits: Callable[[int], bool]) -> Unit | None:
        """Take the first unit that fits out of the queue; what has ended since it was put there is left out."""
        while self._queue and self.state.trials[self._queue[0][0]].status in ENDED:
            self._queue.popleft()
        found = next((unit for unit in self._queue if self._may_start(unit) and fits(unit[0])), None)
        if found is not None:
            self._queue.remove(found)
        return found

    def _may_start(self, unit: Unit) -> bool:
        """Return whether a unit does not have to wait for memory."""
        return self.clock() >= self._held.get(unit, -math.inf)

    @property
    def _batch_size(self) -> int:
        """How many configurations go into an assignment whose first has been taken from the queue.

        More than one do only where no trial can be stopped before its last epoch: the only rung is the last.
        """
        settings = self.settings
        if len(self.settings.schedule.rungs) > 1 or self.searcher is not None or settings.apart or settings.together:
            return 1
        # Shares shrink towards the end, so that no process is left with a long rest to do alone.
        return min(BATCH_LIMIT, math.ceil((1 + len(self._queue)) / (4 * self.slots)))

    def _go_together(self, first: int, second: int) -> bool:
        alike = self.share_of([first]) == self.share_of([second])
        return alike and self._suspects.isdisjoint((first, second))

    def _promote(self, fits: Callable[[int], bool]) -> None:
        """Put the paused trial that the scheduler promotes now at the head of the queue, if there is one.

        One that does not fit where it would train now is not promoted yet.
        """
        found = self.rungs.promotion(self._settled) if len(self._in_flight) < self.slots else None
        if found is None or not fits(found[0]):
            return
        index, decision = found
        trial = self.state.trials[index]
        self.commit(Judged(index, self.state.attempt, trial.epochs, WAITING, decision))
        self._queue.appendleft((index, None))

    def _suggest(self) -> bool:
        """Have the searcher choose the next configuration, if a trial could start now; return whether one waits then.

        It is configuration *i* from the moment its record is durable, and only then is it given out.
        """
        # What is given out or waits to be counts against the slots.
        while self.searcher and self.unsuggested and len(self._in_flight) + len(self._queue) < self.slots:
            index = self.unsuggested[0]
            suggestion = self.searcher.suggest(index)
            self.commit(suggested_body(index, suggestion, self.searcher.maker))
            self.add(index)
            if self._queue:
                return True
        return False

    @property
    def unsuggested(self) -> range:
        """The configurations that the searcher has not chosen yet: all after the last that it has."""
        return (
            range(0)
            if self.searcher is None
            else range(len(self.state.configurations), len(self.values.configurations))
        )

    @property
    def _waiting(self) -> bool:
        """Whether there is anything to give out."""
        return bool(self._queue or self.unsuggested) or self.rungs.promotion(self._settled) is not None

    @property
    def _settled(self) -> Settled:
        """The rungs that no trial can come to any more; none while a searcher may still choose trials for any."""
        if self.unsuggested:
            return lambda stratum, rung: False
        return settled_but_for(self.rungs, self._under_way)

    def _under_way(self) -> Iterator[tuple[int, int]]:
        """Yield the trials that run or are yet to begin, each with its epochs so far."""
        for index in itertools.chain((index for index, _ in self._queue), *self._in_flight):
            if not is_added(index):
                yield index, self.state.trials[index].epochs

    def numbers(self, index: int) -> Sequence[int]:
        """Return the numbers of a configuration's replicates."""
        added = self.state.trials[index].added
        return range(self.settings.seeds.count) if added is None else (added.replicate,)

    def units_of(self, index: int) -> list[Unit]:
        """Return what there is to give out of a configuration."""
        numbers = self.numbers(index) if self.settings.apart else (None,)
        return [(index, number) for number in numbers]

    def units(self, assignment: Sequence[int]) -> list[Unit]:
        """Return what an assignment consists of."""
        return [(assignment[0], assignment[1])] if self.settings.apart else [(index, None) for index in assignment]

    def state_of(self, unit: Unit) -> TrialState | ReplicateState:
        """Return what has come of a unit so far."""
        index, number = unit
        trial = self.state.trials[index]
        return trial if number is None else trial.replicates.get(number, ReplicateState())

    def is_over(self, unit: Unit) -> bool:
        """Return whether a unit has nothing to do: it has ended, pauses at a rung, or waits there for the others."""
        known = self.state_of(unit)
        return known.status in ENDED or (known.status == WAITING if isinstance(known, ReplicateState) else known.paused)

    def rests(self, unit: Unit) -> bool:
        """Return whether a replicate has nothing to do: it has failed, or stands at a rung that is not judged yet."""
        replicate = self.state_of(unit)
        return replicate.status == FAILED or self.is_open_rung(unit[0], replicate.epochs)

    def is_open_rung(self, index: int, epoch: int) -> bool:
        """Return whether a configuration is judged at an epoch, and has not been yet."""
        return epoch > self.state.trials[index].epochs and epoch in self.rungs_of(index)

    def rungs_of(self, index: int) -> Collection[int]:
        """Return the epochs at which a configuration is judged."""
        return self.rungs.pool(index).epochs if is_added(index) else self.rungs.epochs


def place_of_unit(unit: Unit) -> str:
    """Return the folder of a unit's checkpoints, below that of all trials."""
    index, number = unit
    return trial_name(index) if number is None else replicate_folder(Path(trial_name(index)), number).as_posix()
