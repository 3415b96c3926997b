"""The driver of a sweep whose trials train together in cohorts: `packing: cohort`, and `auto` where cohorts win.

To the journal, the scheduler, retries, budgets and searchers a lane is a trial as any other, given out by itself and
judged by itself. What differs: a process takes trials of its own kind as its lanes fall free, several reports come at
once, and a process that dies takes several trials with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from sweeper.execution.driver.driver import Driver
from sweeper.execution.driver.failures import MEMORY, Failure
from trainables.training.lanes import cohort_key
from trainables.worker.trial_reports import TrialReport


class CohortDriver(Driver):
    """Hands out trials by kind; an assignment is one configuration."""

    def kind_of(self, index: int) -> str | None:
        """Return what a configuration has in common with those it can train with; `None` where it trains alone."""
        if index not in self._kinds:
            self._kinds[index] = cohort_key(self.configurations[index], self.settings.training)
        return self._kinds[index]

    @cached_property
    def _kinds(self) -> dict[int, str | None]:
        return {}

    @property
    def replicates(self) -> int:
        """Lanes of a trial."""
        return self.settings.seeds.count

    def next_of_kind(self, kind: str | None) -> int | None:
        """Return the next trial to join a cohort of a kind; `None` when there is none to give now."""
        return self._next(lambda index: index not in self._alone and self.kind_of(index) == kind)

    def next_for_empty(self, before: str | None = None) -> int | None:
        """Return the next trial for a process that has none; `None` when there is none to give now.

        It is of the kind that the process had `before`, as long as there are any, or for the first process of a driver
        that takes over of the kind that was in training. So with one process kinds take turns as they would have
        undisturbed, and trials come to rungs in the same order: of one kind, who began earlier is never behind, and of
        those that come together the lowest goes first. Promotions begin in an order that the journal does not tell.
        """
        kind, self._interrupted = before or self._interrupted, None
        found = self.next_of_kind(kind) if kind is not None else None
        return self._next(lambda index: True) if found is None else found

    @cached_property
    def _interrupted(self) -> str | None:
        """The kind of the trial that the journal heard of last, when this driver began."""
        last = self.state.last_reported
        return None if last is None else self.kind_of(last)

    def is_suspect(self, index: int) -> bool:
        """Return whether a trial was in a process that died, and has not trained since: it has a process to itself."""
        return index in self._alone

    def on_news(self, reports: Sequence[tuple[TrialReport, bool]], *, trained: bool) -> list[int]:
        """Judge reports in the order of configurations; return the configurations that are over.

        `trained` says that they are of epochs trained since: one that a restarted trial repeats clears nobody.
        """
        given_up, taken = list[int](), list[tuple[TrialReport, bool]]()
        for report, exhausted in sorted(reports, key=lambda each: each[0].configuration):
            if trained:
                self._alone.discard(report.configuration)
            if self._take_in([report.configuration], [report]):
                taken.append((report, exhausted))
            else:
                given_up.append(report.configuration)
        if reports:
            self.flush()  # once for all of them: a decision is acted upon only after this
        ended = [each.configuration for each, last in taken if self._ends([each.configuration], [each], last)]
        return given_up + ended

    def on_shared_failure(self, indices: Sequence[int], failure: Failure) -> None:
        """Journal the death of a process that had several trials; put these back in the queue.

        Which of them it was cannot be told, so it counts against none of them, and each has a process to itself until
        it has trained. So has one that died alone: it would take others along next time. Memory is what they took
        together: there they go on as before, in smaller cohorts.
        """
        if len(indices) == 1:
            if failure.kind not in MEMORY:
                self._alone.update(indices)
            self.on_failure(list(indices), failure)
            return
        shared = f"it shared the process with {len(indices) - 1} more"
        for index in sorted(indices, reverse=True):
            if failure.kind in MEMORY:
                own = replace(failure, reason=f"{failure.reason} ({shared})", counts=False)
            else:
                self._alone.add(index)
                own = replace(failure, reason=f"{failure.reason} ({shared}; each is tried alone)", counts=False)
            self.on_failure([index], own)

    def _next(self, fits: Callable[[int], bool]) -> int | None:
        """Return the first waiting trial that fits; a promotion and a suggestion are asked for where one would fit."""
        if self.closing or not self._has_room:
            return None
        self._promote(fits)
        found = next((index for index in self._queue if fits(index)), None)
        if found is None and self._suggest():
            found = next((index for index in self._queue if fits(index)), None)
        if found is None:
            return None
        self._queue.remove(found)
        self._in_flight.add([found])
        return found
