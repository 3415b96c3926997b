"""Readable names of configurations, `focal (γ 1.9) · resnet8 · lr 0.12`, and of metrics, numbers and durations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sweeper.core.cells import Row
from trainables.curvature.statistics.base import statistic_words
from trainables.metrics.base import metric_of
from trainables.registry.names import QUANTITIES

#: Words for names of columns that are neither metrics nor hyperparameters.
LABELS = {"loss": "loss", "val": "validation"}

#: Column of a hyperparameter → its symbol, if it is a quantity with another name (`symbols_of`).
Symbols = Mapping[str, str]

#: The parts of a configuration; any other name is a hyperparameter of a user's training loop.
PARTS = ("loss", "architecture", "optimizer", "dataset")

#: Prefixes of metrics that are measured after a post-hoc method.
AFTER_METHODS = ("cross_fitted_", "posthoc_")

#: A trial's status in words.
STATUS_WORDS = {
    "completed": "finished", "early_stopped": "stopped early", "failed": "failed", "running": "running",
    "waiting": "waiting", "interrupted": "interrupted",
}  # fmt: skip


#: Reasons why validation data do not determine a fit.
BOUND_CAUSES = "too few samples, all predicted right, none of a class, or predictions no better than chance"

#: Prefix of every progress line in a driver's log; `status` and the cluster commands search for it.
PROGRESS = "progress: "


def group(column: str) -> str:
    """Return the part of a configuration that a column belongs to, e.g. `loss` of `config_loss_gamma`."""
    return split(column)[0]


def split(column: str) -> tuple[str, str]:
    """Split a column into part and hyperparameter: `("loss", "gamma")`, or `("", "lora_rank")` without a part."""
    part, _, rest = (name := column.removeprefix("config_")).partition("_")
    return (part, rest) if part in PARTS else ("", name)


def in_order(columns: Iterable[str]) -> tuple[str, ...]:
    """Sort `config_…` columns for reading: the loss, the architecture, the rest; within a part, its name first."""
    order = {"loss": 0, "architecture": 1}
    return tuple(sorted(columns, key=lambda name: (order.get(group(name), 2), not name.endswith("_name"))))


def symbols_of(quantities: Mapping[str, Mapping[str, str]]) -> Symbols:
    """Return the symbol of each column whose components all mean one quantity by it, see `Space.renamed_quantities`.

    Example:
        >>> symbols_of({"config_loss_focus": {"my_losses:Focused": "gamma"}})
        {'config_loss_focus': 'γ'}
    """
    meant = {column: {*of.values()} for column, of in quantities.items()}
    return {column: QUANTITIES[name] for column, names in meant.items() for name in names if len(names) == 1}


def describe(row: Row, columns: Sequence[str], symbols: Symbols | None = None) -> str:
    """Describe a configuration by the values of its `config_…` columns.

    Hyperparameters follow their component's name in parentheses if that name varies, too.

    Example:
        >>> row = {"config_loss_name": "focal", "config_loss_gamma": 1.9, "config_optimizer_lr": 0.12}
        >>> describe(row, [*row])
        'focal (γ 1.9) · lr 0.12'
    """
    parts: dict[str, list[str]] = {}
    for column in columns:
        value = row.get(column)
        if value is None:
            continue
        part, rest = split(column)
        if part and rest == "name":
            parts[part] = [str(value)]
        else:
            parts.setdefault(part if part in parts else column, []).append(f"{short(column, symbols)} {number(value)}")
    described = (f"{first} ({', '.join(inside)})" if inside else first for first, *inside in parts.values())
    return " · ".join(described) or "the only configuration"


def label(name: str) -> str:
    """Return the conventional notation of a hyperparameter or metric; a post-hoc method follows its metric."""
    if (words := LABELS.get(name) or QUANTITIES.get(name) or statistic_words(name)) is not None:
        return words
    metric = metric_of(name)
    method = next((name.removeprefix(start) for start in AFTER_METHODS if name.startswith(start)), None)
    if metric is not None and method is not None and method != metric.name:
        return f"{metric.words} after {method.removesuffix(f'_{metric.name}').replace('_', ' ')}"
    return metric.words if metric is not None and metric.name == name else name.replace("_", " ")


def unit(metric: str) -> str:
    """Return the unit of a metric, as it follows a number; empty for one without a unit.

    Example:
        >>> unit("val_posthoc_temperature_nll"), unit("val_ece")
        (' nats', ' on a scale from 0 to 1')
    """
    known = metric_of(metric)
    if known is None:
        return ""
    return " nats" if known.name.endswith("nll") else " on a scale from 0 to 1" if known.range == (0, 1) else ""


def number(value: object) -> str:
    """Format a value; a float with three significant digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def near_path(path: Path) -> str:
    """Return a path relative to the current folder if it lies below it, else unchanged."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def plural(count: int, noun: str) -> str:
    """Return e.g. `1 trial`, `1,200 trials`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def short(name: str, symbols: Symbols | None = None) -> str:
    """Return the readable name of a hyperparameter's column."""
    part, rest = split(name)
    return part if part and rest == "name" else (symbols or {}).get(name) or label(rest)


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: `40 s`, `2 min 5 s`, `3 h 10 min`, `2 d 4 h`."""
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


#: Suffix of a rehearsal's name.
REHEARSAL_SUFFIX = "-rehearsal"


def rehearsal_name(name: str) -> str:
    """Return the name of a sweep's rehearsal, so that its folder and its tracker cannot be taken for the sweep's."""
    # Names have at most 100 characters (`sweeper.core.ids.SWEEP_NAME`), the suffix included.
    return name if name.endswith(REHEARSAL_SUFFIX) else name[: 100 - len(REHEARSAL_SUFFIX)] + REHEARSAL_SUFFIX


def rehearsal_notice(rehearsed: Sequence[str]) -> str:
    """Return the warning above every result of a rehearsal."""
    return f"REHEARSAL, not a result: {'; '.join(rehearsed)}. These numbers show that the sweep works, nothing else."
