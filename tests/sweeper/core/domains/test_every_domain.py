"""What holds for every domain of numbers, of whatever kind: bounds, types, writing, resuming, Optuna and lines."""

import json
import math

import pytest
from hypothesis import assume, given, strategies as st

from sweeper.core.domains.base import DOMAINS, Interval, parse
from sweeper.core.domains.nodes import Choice, Members, Uniforms
from sweeper.core.domains.space import Space
from sweeper.scheduling.lines import spread
from sweeper.search.optuna import OptunaSearcher
from sweeper.space.components import resolve_component
from trainables.registry import Component, Hyperparameter, Registry

KINDS = [kind for kind, domain in DOMAINS.items() if issubclass(domain, Interval)]
FRACTIONS = st.floats(0, 1, exclude_max=True)


@st.composite
def intervals(draws: st.DrawFn, kind: str, unit: float = 0.1) -> Interval:
    """A sound interval: `low` and a width of so many steps, as many numbers as its form has names."""
    step, low, count = draws(st.integers(1, 5)), draws(st.integers(1, 40)), draws(st.integers(1, 30))
    numbers = [low, low + step * count, step][: DOMAINS[kind].form.count(",") + 1]
    faults: list = []
    scaled = [round(number * unit, 6) for number in numbers]
    node = parse({kind: scaled}, "x", faults)
    assume(not faults and isinstance(node, Interval))
    return node


@pytest.mark.parametrize("unit", [0.1, 1])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), u=FRACTIONS)
def test_a_draw_is_inside_and_follows_from_a_choice_that_json_keeps(kind: str, unit: float, data, u: float) -> None:
    if unit < 1 and DOMAINS[kind].written_as is int:
        unit = 1
    node = data.draw(intervals(kind, unit))
    choice = node.choice(u)
    value = node.number(choice)
    assert node.low <= value <= node.high and type(value) is type(node.low)
    assert value == node.draw("x", 0, Uniforms(lambda path: u)) == node.number(json.loads(json.dumps(choice)))
    if node.size < math.inf:
        every = [*node.every_value()]
        assert value in every and len(set(every)) == node.size == node.sizes[0]
        assert every[0] == node.low and every[-1] == node.high
    # a writer's number is the same number, and so is the space that is read again
    assert parse(json.loads(json.dumps(node.plain())), "x", []) == node


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_draws_rise_with_the_quantile_from_end_to_end(kind: str, data) -> None:
    node = data.draw(intervals(kind, 1))
    values = [node.number(node.choice(u)) for u in (0, 0.01, 0.3, 0.5, 0.8, 0.99, 1 - 2**-53)]
    assert values == sorted(values)
    assert values[0] == pytest.approx(node.low) and values[-1] == pytest.approx(node.high)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), taken=st.lists(st.floats(0.1, 50), max_size=3))
def test_a_line_takes_distinct_values_inside(kind: str, data, taken: list[float]) -> None:
    node = data.draw(intervals(kind, 1))
    values = spread(node, taken, 3)
    assert len({*values, *taken}) == len(values) + len({*taken})
    # labels have three digits, so a value may be rounded over an end
    assert all(node.low * 0.99 <= value <= node.high * 1.01 for value in values)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_hyperparameter_gives_its_type_to_the_numbers(kind: str, data) -> None:
    node = data.draw(intervals(kind, 1))
    for number in (int, float):
        registry, faults = Registry("thing"), []
        registry.register(Component("it", dict, (Hyperparameter("x", kind="integer" if number is int else "number"),)))
        resolved = resolve_component({"name": "it", "x": node.plain()}, registry, "space.thing", faults)
        assert bool(faults) == (number is int and not node.whole)
        if not faults:
            assert {type(end) for end in resolved.nodes["x"].numbers} == {number}


@pytest.mark.parametrize("kind", KINDS)
def test_optuna_suggests_choices_from_which_the_same_value_follows(kind: str) -> None:
    numbers = [1, 31, 5][: DOMAINS[kind].form.count(",") + 1]
    node = parse({kind: numbers}, "x", [])
    searcher = OptunaSearcher(Space({"x": node}), mode="min", seed=3, startup=2)
    seen = set[object]()
    for index in range(6):
        suggestion = searcher.suggest(index)
        value = suggestion.values["x"]
        choices: dict[str, Choice] = json.loads(json.dumps(suggestion.choices))
        assert node.low <= value <= node.high and node.number(choices["x"]) == value
        seen.add(value)
    assert len(seen) > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [[], [1], [1, 2, 3, 4], ["a", "b"], 7, [2, 1], [1, math.inf], [True, 2]])
def test_what_is_not_sound_is_refused_at_its_path(kind: str, wrong: object) -> None:
    faults: list = []
    parse({kind: wrong}, "space.x", faults)
    assert [fault.path for fault in faults] == [f"space.x.{kind}"] and kind in faults[0].remedy


@pytest.mark.parametrize("kind", [kind for kind, domain in DOMAINS.items() if issubclass(domain, Members)])
def test_a_list_is_written_as_it_was_read(kind: str) -> None:
    members = [{"name": "a"}, {"name": "b"}]
    faults: list = []
    node = parse({kind: members}, "x", faults)
    assert not faults and node.plain() == {kind: members}
    places = [(0, 0.1), (1, 0.1)] if node.in_turn else [(0, 0.1), (0, 0.9)]
    drawn = [node.draw("x", point, Uniforms({"x": u}.__getitem__)) for point, u in places]
    assert drawn == members
