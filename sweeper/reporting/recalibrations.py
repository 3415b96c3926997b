"""Recalibrations in words: what each post-hoc method changed, and where validation data do not support it."""

from __future__ import annotations

from sweeper.core.labels import BOUND_CAUSES, label, plural
from sweeper.judging.question import NOT_COMPARED
from sweeper.results.recalibrating import Recalibrated
from sweeper.results.recalibration import Change, Effect, method_label


def recalibration_lines(done: Recalibrated) -> list[str]:
    """Return a recalibration in lines: a summary, the effect of each method, and warnings."""
    what = "; ".join(request.label for request in done.requests)
    lines = [f"{done.evaluations:,} evaluations, {done.samples:,} predictions, {done.seconds:.1f} s: {what}"]
    if done.missing:
        lines.append(
            f"warning: {len(done.missing):,} evaluations have no stored predictions and were left out, "
            f"e.g. {done.missing[0]}"
        )
    lines += [effect_sentence(effect) for effect in done.effects]
    lines += [
        f"{request.label}: {', '.join(f'{label(name)} {value:.4g}' for name, value in further.items())}."
        for request, further in zip(done.requests, done.values, strict=False)
        if further
    ]
    lines += [f"warning: {warning}" for effect in done.effects if (warning := effect_warning(effect))]
    for request, count, reason in zip(done.requests, done.unavailable, done.reasons, strict=True):
        if count:
            lines.append(f"{request.label}: unavailable for {count:,} of {done.evaluations:,}, e.g. {reason}")
    return lines


def effect_sentence(effect: Effect) -> str:
    """Return a method and its changes on the measured samples in one sentence."""
    where = "test data" if effect.split == "test" else "cross-fitted"
    return f"{effect.request.label}, {where}: {'; '.join(map(change_text, effect.changes))}."


def effect_warning(effect: Effect) -> str:
    """Return a warning if validation data do not determine some fits, or are too few; else an empty string."""
    method = method_label(effect.request.method.replace("_", " "), effect.request.options)
    if effect.at_bound:
        return (
            f"validation data do not determine {effect.at_bound} of {plural(effect.fits, 'fit')} of {method}, which "
            f"ended at their bound ({BOUND_CAUSES}): do not rely on them"
        )
    if not effect.too_few:
        return ""
    more = f"more than it gains; it needs about {effect.needed:,.0f}" if effect.gain > 0 else "and it shows no gain"
    return (
        f"{plural(effect.samples, 'validation sample')} are too few for {method}: the error of its "
        f"{plural(round(effect.free or 0), 'parameter')} costs about {effect.cost:.2g} of NLL, {more}"
    )


def change_text(change: Change) -> str:
    """Return e.g. `ECE 0.0350 → 0.0210, −0.014 (95 % −0.02 … −0.008), better in 8 of 9 trials`."""
    values = f"{label(change.metric)} {change.before:.4f} → {change.after:.4f}"
    counted = f"better in {change.better} of {plural(change.units, change.unit)}"
    return f"{values}, {rounded_change(change.difference)}{limits(change)}, {counted}"


def limits(change: Change) -> str:
    """Return the difference's interval, e.g. ` (95 % −0.02 … −0.008)`, or an empty string if there is none."""
    if change.verdict.code == NOT_COMPARED:
        return ""
    ends = (change.verdict.low, change.verdict.high)
    # A narrow interval gets enough digits to print two different limits.
    written = ([rounded_change(end, digits) for end in ends] for digits in range(2, 9))
    low, high = next((pair for pair in written if pair[0] != pair[1]), map(rounded_change, ends))
    return f" (95 % {low} … {high})"


def rounded_change(value: float, digits: int = 2) -> str:
    """Return a change with its sign and this many significant digits; from 100 on as a whole number.

    Example:
        >>> rounded_change(-0.0143), rounded_change(1234.5)
        ('−0.014', '+1,234')
    """
    return (f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.{digits}g}").replace("-", "−")
