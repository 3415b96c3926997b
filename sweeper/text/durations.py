"""A time in words, the same everywhere."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Return a duration as people say it: `40 s`, `2 min 5 s`, `3 h 10 min`, `2 d 4 h`."""
    units = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)]
    parts: list[str] = []
    rest = round(seconds)
    for unit, size in units:
        count, rest = divmod(rest, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
        elif parts:
            break
    return " ".join(parts[:2])
