"""Terms of drivers and what counts of their records, against drivers that are simulated one record at a time."""

import itertools
import random

import pytest

from sweeper.core.errors import SweeperError
from sweeper.storage.store_journal import Part, Term, count_of, settled, term_names


def _numbers(parts: list[Part]) -> list[tuple[str, int]]:
    return [(part.name, sequence) for part in parts for sequence in range(part.first, part.last + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_what_drivers_acted_on_counts_and_nothing_else(seed: int) -> None:
    """Drivers follow each other; earlier ones put more when they wake up, and groups are sealed at any time."""
    draw = random.Random(seed)
    terms: list[Term] = []
    names: set[str] = set()
    expected: list[str] = []
    for number in range(1, draw.randint(2, 6)):
        term = Term(number, f"{draw.getrandbits(64):016x}", count_of(terms, settled(terms, names)))
        assert term.after == len(expected)
        terms.append(term)
        for _ in range(draw.randint(0, 5)):
            size = draw.randint(1, 4)
            names.add(term.group_name(len(expected), len(expected) + size - 1))
            expected += [f"{term.number:05d}-{term.token}"] * size
        if len(expected) > term.after and draw.random() < 0.5:
            whole = term.group_name(term.after, len(expected) - 1)
            names = {name for name in names if draw.random() < 0.5 or term.token not in name} | {whole}
    for term, following in itertools.pairwise(terms):
        # What a paused driver puts when it wakes up begins where it had stopped.
        names.add(term.group_name(following.after, following.after + draw.randint(0, 3)))
    draw.shuffle(terms)
    found = _numbers(settled(terms, names))
    assert [sequence for _, sequence in found] == [*range(len(expected))]
    assert [name.split("/")[1] for name, _ in found] == expected


def test_discarded_records_are_left_out_by_a_new_term() -> None:
    first, second = Term(1, "a" * 16, 0), Term(2, "b" * 16, 3)
    names = [first.group_name(0, 4), second.group_name(3, 3)]
    assert _numbers(settled([first, second], names)) == [
        (first.group_name(0, 4), 0), (first.group_name(0, 4), 1), (first.group_name(0, 4), 2),
        (second.group_name(3, 3), 3),
    ]  # fmt: skip


def test_a_missing_group_leaves_a_gap() -> None:
    first, second = Term(1, "a" * 16, 0), Term(2, "b" * 16, 6)
    names = [first.group_name(0, 1), first.group_name(4, 5), second.group_name(6, 6)]
    assert [sequence for _, sequence in _numbers(settled([first, second], names))] == [0, 1, 4, 5, 6]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"term": 2, "token": "00", "after": 0}', b'{"term": 1, "token": "../../x", "after": 0}']
)
def test_a_term_that_is_none_is_named(content: bytes) -> None:
    with pytest.raises(SweeperError, match=r"terms/00001\.json .* is damaged"):
        Term.from_bytes("terms/00001.json", content)
    term = Term(1, "0123456789abcdef", 12)
    assert Term.from_bytes(term.object_name, term.to_bytes()) == term
    assert term_names(["terms/00002.json", "terms/x", "journal/1", term.object_name]) == [
        term.object_name,
        "terms/00002.json",
    ]
