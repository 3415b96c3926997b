"""The report's card of claims: what a paper says, and what this sweep says about it."""

from __future__ import annotations

from sweeper.analysis.claims import CLAIMS
from sweeper.analysis.judging import judge_claims, named_claims
from sweeper.reporting.markup import Markup, tag
from sweeper.results import Results


def claims_section(results: Results) -> Markup:
    """Return a card with the verdict on each claim that the sweep's header names; nothing where it names none."""
    names = named_claims(results)
    if not names:
        return Markup("")
    cards = []
    for verdict in judge_claims(results, names):
        claim = CLAIMS[verdict.claim]
        word = "rehearsal: no verdict" if results.rehearsed else verdict.verdict
        cards += [
            tag("h3", f"{claim.statement} ({claim.paper})"),
            tag("p", tag("strong", word.capitalize()), f". {begun(verdict.sentence)}."),
            tag("details", tag("summary", "Rule, fixed beforehand"), tag("p", claim.rule), class_="rule"),
        ]
    return tag("section", tag("h2", "Claims"), *cards, class_="card claims", id="claims")


def begun(sentence: str) -> str:
    """Return the sentence with a capital, unless it begins with a symbol: ρ is no Ρ."""
    return sentence[0].upper() + sentence[1:] if sentence[0].isascii() else sentence
