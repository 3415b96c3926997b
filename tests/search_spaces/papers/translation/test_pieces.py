"""Sentences as word pieces."""

from __future__ import annotations

from search_spaces.papers.translation.pieces import UNKNOWN, encoded_pairs, loaded_tokenizer, trained_tokenizer


def test_unknown_letters_become_the_unknown_token() -> None:
    tokenizer = loaded_tokenizer(trained_tokenizer(["ein Haus", "a house"] * 10, 40))
    rows, kept = encoded_pairs(tokenizer, ["a house", "ψ"], ["ein Haus", "Haus"], 12, cut=True)
    assert kept.tolist() == [0, 1]
    assert UNKNOWN in rows[1, 0] and UNKNOWN not in rows[0]
