"""Directives of several controllers as one."""

from __future__ import annotations

from sweeper.execution.controllers.base import Directive, combined


def test_nothing_is_asked_for_without_controllers():
    assert combined([]) == Directive()


def test_the_first_reason_and_the_last_number_of_slots_count():
    asked = [Directive(slots=2), Directive(stop="first", wind_down="spent"), Directive(stop="second", slots=4)]
    assert combined(asked) == Directive(stop="first", wind_down="spent", slots=4)


def test_a_sweep_is_alone_only_if_all_say_so():
    assert combined([Directive(), Directive(alone=False, yields_to="higher"), Directive()]) == Directive(
        alone=False, yields_to="higher"
    )
