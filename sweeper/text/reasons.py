"""The scheduler's reasons as readers are shown them.

A reason is journaled in the words of the release that decided, which an audit makes again; what readers see is this.
"""

from __future__ import annotations

import re

_PROMOTION = re.compile(
    r"(?:promoted: |never promoted: )?\S+ \S+ is number (?P<place>\d+) of (?P<count>\d+) at rung (?P<rung>\d+), "
    r"of which the first (?P<quota>\d+) are promoted; it (?P<verb>pauses|continues|stops)"
    r"(?P<kept>, for nothing else is left and the best (?P<least>\d+) are kept \(keep_at_least\))?"
    r"(?:, within (?P<stratum>.+))?"
)


def plain_reason(reason: str) -> str:
    """Return e.g. `Epoch 9: 1st of 1 (resnet8, cross_entropy); none promoted yet. Paused.`; others as they are."""
    found = _PROMOTION.fullmatch(reason)
    if found is None:
        return reason
    where = f" ({found['stratum']})" if found["stratum"] else ""
    promoted = "none" if found["quota"] == "0" else f"the first {found['quota']}"
    yet = " yet" if found["verb"] == "pauses" and promoted == "none" else ""
    if found["kept"]:
        least = found["least"]
        rule = f"keep_at_least: {least} always trains {'one' if least == '1' else least} to the end"
        return f"Epoch {found['rung']}: {ordinal(int(found['place']))} of {found['count']}{where}. Promoted: {rule}."
    end = {"pauses": "Paused", "continues": "Promoted", "stops": "Never promoted, so stopped"}[found["verb"]]
    place = f"{ordinal(int(found['place']))} of {found['count']}"
    return f"Epoch {found['rung']}: {place}{where}; {promoted} promoted{yet}. {end}."


def ordinal(place: int) -> str:
    """Return e.g. `1st`, `12th`, `23rd`."""
    last = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if 10 < place % 100 < 14 else last}"
