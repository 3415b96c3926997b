"""Readable names of configurations, `focal (γ 1.9) · resnet8 · lr 0.12`, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sweeper.core.cells import Row
from trainables.curvature.statistics.base import statistic_words
from trainables.metrics.base import metric_of

#: Names of columns that are no metric's as the field writes them.
LABELS = {"loss": "loss", "gamma": "γ", "nu": "ν", "alpha": "α", "val": "validation"}

#: The parts of a configuration; any other name is a hyperparameter of a training loop of the user's own.
PARTS = ("loss", "architecture", "optimizer", "dataset")

#: What the names of metrics after a post-hoc method begin with.
AFTER_METHODS = ("cross_fitted_", "posthoc_")

#: A trial's status in words.
STATUS_WORDS = {
    "completed": "finished", "early_stopped": "stopped early", "failed": "failed", "running": "running",
    "waiting": "waiting", "interrupted": "interrupted",
}  # fmt: skip


#: What each line of progress in a driver's log begins with, by which others find it.
PROGRESS = "progress: "


def group(column: str) -> str:
    """Return the part of a configuration that a column belongs to, e.g. `loss` of `config_loss_gamma`."""
    return split(column)[0]


def split(column: str) -> tuple[str, str]:
    """Return the part of a configuration and what it is of that part: `("loss", "gamma")`, or `("", "lora_rank")`."""
    part, _, rest = (name := column.removeprefix("config_")).partition("_")
    return (part, rest) if part in PARTS else ("", name)


def in_order(columns: Iterable[str]) -> tuple[str, ...]:
    """Return `config_…` columns in reading order: the loss, the architecture, the rest; names come first."""
    order = {"loss": 0, "architecture": 1}
    return tuple(sorted(columns, key=lambda name: (order.get(group(name), 2), not name.endswith("_name"))))


def describe(row: Row, columns: Sequence[str]) -> str:
    """Return the values of `config_…` columns in a few words: `focal (γ 1.9) · resnet8 · lr 0.12`.

    Hyperparameters follow their component's name in parentheses if that name varies, too.
    """
    parts: dict[str, list[str]] = {}
    for column in columns:
        value = row.get(column)
        if value is None:
            continue
        part, short = split(column)
        if part and short == "name":
            parts[part] = [str(value)]
        elif part in parts:
            parts[part].append(f"{label(short)} {number(value)}")
        else:
            parts[column] = [f"{label(short)} {number(value)}"]
    said = (f"{first} ({', '.join(inside)})" if inside else first for first, *inside in parts.values())
    return " · ".join(said) or "the only configuration"


def label(name: str) -> str:
    """Return a hyperparameter's or metric's name as the field writes it; a post-hoc method's comes after the metric."""
    if (words := LABELS.get(name) or statistic_words(name)) is not None:
        return words
    metric = metric_of(name)
    method = next((name.removeprefix(start) for start in AFTER_METHODS if name.startswith(start)), None)
    if metric is not None and method is not None and method != metric.name:
        return f"{metric.words} after {method.removesuffix(f'_{metric.name}').replace('_', ' ')}"
    return metric.words if metric is not None and metric.name == name else name.replace("_", " ")


def number(value: object) -> str:
    """Return a value in three significant digits where it is a float."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def near_path(path: Path) -> str:
    """Return a path relative to the current folder where it is below that."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def plural(count: int, noun: str) -> str:
    """Return e.g. `1 trial`, `1,200 trials`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def short(name: str) -> str:
    """Return the readable name of a hyperparameter's column."""
    part, rest = split(name)
    return part if part and rest == "name" else label(rest)


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


#: What a rehearsal's name ends with.
REHEARSAL_SUFFIX = "-rehearsal"


def rehearsal_name(name: str) -> str:
    """Return the name of a sweep's rehearsal, so that its folder and its tracker say what they hold."""
    return name if name.endswith(REHEARSAL_SUFFIX) else name[: 100 - len(REHEARSAL_SUFFIX)] + REHEARSAL_SUFFIX


def rehearsal_notice(rehearsed: Sequence[str]) -> str:
    """Return the warning above every result of a rehearsal."""
    return f"REHEARSAL, not a result: {'; '.join(rehearsed)}. These numbers show that the sweep works, nothing else."
