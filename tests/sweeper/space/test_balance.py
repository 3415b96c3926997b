"""Each loss and network gets the same number of draws, whatever their number."""

import itertools
from collections import Counter

import pytest

from sweeper.core.domains.base import parse
from sweeper.space.configurations import BalancedMembers, configurations
from sweeper.space.loading import load_spec


def spread_of(counts: Counter[object], among: int) -> int:
    return max(counts.values()) - (min(counts.values()) if len(counts) == among else 0)


@pytest.mark.parametrize("sizes", [(3, 2), (4, 6), (2, 2, 3), (6, 4, 2), (5,)])
@pytest.mark.parametrize("points", [1, 2, 3])
def test_every_prefix_is_balanced_and_every_combination_occurs_once(sizes: tuple[int, ...], points: int) -> None:
    parts = "abc"[: len(sizes)]
    space = {part: {"choice": [*range(size)]} for part, size in zip(parts, sizes, strict=True)}
    tree = parse({**space, "points": {"grid": [*range(points)]}}, "", [])
    members = BalancedMembers(tree, 7, [*parts])  # type: ignore[arg-type]
    block = points * len([*itertools.product(*map(range, sizes))])
    drawn = [{**members.at(index), "point": index % points} for index in range(2 * block)]
    for part, size in zip(parts, sizes, strict=True):
        for upto in range(1, len(drawn)):
            assert spread_of(Counter(of[part] for of in drawn[:upto]), size) <= 1
    for upto in range(1, len(drawn)):
        pairs = Counter((of["point"], of[parts[0]]) for of in drawn[:upto])
        assert spread_of(pairs, points * sizes[0]) <= 1
    for start in (0, block):
        assert len({tuple(of.values()) for of in drawn[start : start + block]}) == block


def test_the_quickstart_draws_each_loss_and_network_equally_and_more_samples_change_no_draw() -> None:
    drawn = [*configurations(load_spec("quickstart"))]
    assert spread_of(Counter(of["loss"]["name"] for of in drawn), 3) <= 1
    assert spread_of(Counter(of["architecture"]["name"] for of in drawn), 2) <= 1
    assert spread_of(Counter((of["loss"]["name"], of["architecture"]["name"]) for of in drawn), 6) <= 1
    assert [*configurations(load_spec("quickstart", ["samples=40"]))][: len(drawn)] == drawn


def test_a_loss_that_stands_twice_is_drawn_twice_as_often() -> None:
    losses = "space.loss={one_of: [cross_entropy, {name: focal, gamma: {uniform: [0, 1]}}, {name: focal, gamma: 5}]}"
    drawn = configurations(load_spec("quickstart", [losses, "samples=30", "which=[]"]))
    assert Counter(of["loss"]["name"] for of in drawn) == {"focal": 20, "cross_entropy": 10}
