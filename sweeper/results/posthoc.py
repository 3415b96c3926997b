"""Post-hoc methods on every replicate's last evaluation, from the sweep's own evaluations and from `recalibrations`.

If both contain a method with the same options and bins, the recalibration is used, because it is newer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sweeper.core.cells import Rows, text_of
from sweeper.results.leaderboard import FINISHED, leaderboard
from sweeper.results.queries import literal
from sweeper.results.recalibration import UNCALIBRATED, Effect, effects, measured_split, options_that_differ
from sweeper.results.results import Results
from trainables.registry import FITTED_ON, LABEL, entry_label
from trainables.registry.names import CROSS_FITTED

METRICS = ("ece", "ada_ece", "nll")
#: The method that is listed first, because readers compare the other methods with it.
BASELINE = "temperature"

#: Largest number of configurations in a table; those that are best by the sweep's objective.
MOST_ROWS = 24


@dataclass(frozen=True, order=True)
class Variant:
    """One post-hoc method with the options that differ from its defaults, as JSON."""

    method: str
    options: str

    @property
    def label(self) -> str:
        """Name for readers, e.g. `temperature (objective ece)`."""
        words = ", ".join(f"{key} {value}" for key, value in sorted(json.loads(self.options).items()))
        name = method_words(self.method)
        return f"{name} ({words})" if words else name


@dataclass(frozen=True)
class Posthoc:
    """The measurements behind the post-hoc figures.

    Attributes:
        sql: the query.
        rows: one per replicate, split, method, options and bins, for the configurations in `names`: the columns of
            `recalibrations`, `seed` and `status`. The sweep's own evaluations have METRICS, but no further metrics.
        names: trial → configuration in words, in the order of the trials.
        left_out: number of finished or evaluated configurations that are not shown.
    """

    sql: str
    rows: Rows
    names: dict[str, str]
    left_out: int

    @property
    def split(self) -> str:
        """The split that shows how good the methods are."""
        return measured_split(self.rows)

    @property
    def variants(self) -> list[Variant]:
        """The uncalibrated probabilities, the baseline, then the other methods by name, options in order."""
        measured = {Variant(text_of(row, "method"), text_of(row, "options")) for row in self.rows}
        return sorted(
            measured, key=lambda v: (v.method != UNCALIBRATED, v.method != BASELINE, v.method, v.options != "{}", v)
        )


def method_words(method: str) -> str:
    """Return a post-hoc method's display name."""
    # A user's own method is shown by its import path, because reading a sweep must not run its code.
    from trainables.posthoc import POSTHOC

    if method == UNCALIBRATED:
        return "uncalibrated"
    return method.replace("_", " ") if POSTHOC.is_own(method) else POSTHOC[method].words


def posthoc_measurements(results: Results) -> Posthoc | None:
    """Return the measurements of post-hoc methods on the last evaluations; None if there are none.

    Only finished configurations are included. If none has finished, all evaluated ones are.
    """
    sql = posthoc_sql(results)
    rows = results.rows(sql)
    if all(row["method"] == UNCALIBRATED for row in rows) and len({row["bins"] for row in rows}) < 2:
        return None
    board = leaderboard(results)
    shown = [row for row in board.rows if row["status"] == FINISHED] or list(board.rows)
    chosen = sorted(shown[:MOST_ROWS], key=lambda row: str(row["trial"]))
    names = {str(row["trial"]): board.describe(row) for row in chosen}
    return Posthoc(sql, [row for row in rows if row["trial"] in names], names, len(shown) - len(chosen))


def posthoc_effects(results: Results) -> tuple[Rows, list[Effect]]:
    """Return the rows of the finished replicates, or of all if none has finished, and the methods' effects on them."""
    rows = results.rows(posthoc_sql(results))
    finished = [row for row in rows if row["status"] == FINISHED] or rows
    return finished, effects(finished, results.manifest.get("dataset"))


def posthoc_sql(results: Results) -> str:
    """Return the query of all methods: the sweep's own, the uncalibrated metrics, and recalibrations."""
    columns = set(results.columns("evaluations"))
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    own = [method for method in own_methods(results) if f"{method[2]}{METRICS[0]}" in columns]
    splits = results.specification.get("evaluation", {}).get("splits", ("test",))
    parts = [own_sql(columns, *method[:2], bins, method[2], splits) for method in [(UNCALIBRATED, "{}", ""), *own]]
    parts.append(
        "SELECT recalibrations.*, seed, status, 1 AS source\n"
        "FROM recalibrations JOIN final USING (trial, replicate, epoch, split)"
    )
    union = "\nUNION ALL BY NAME\n".join(parts)  # a column that a part lacks is NULL in its rows
    return (
        f"SELECT * EXCLUDE source FROM (\n{union}\n)\n"
        "QUALIFY row_number() OVER (PARTITION BY trial, replicate, split, method, options, bins "
        "ORDER BY source DESC) = 1\nORDER BY trial, replicate, split, method, options, bins"
    )


def own_methods(results: Results) -> list[tuple[str, str, str]]:
    """Return name, options that differ from the defaults (JSON) and column prefix of each of the sweep's methods."""
    from trainables.posthoc import POSTHOC

    methods = []
    for options in results.posthoc:
        prefix = f"posthoc_{entry_label(options)}_"
        name, split = options.pop("name"), {key: options.pop(key) for key in (FITTED_ON,) if key in options}
        options.pop(LABEL, None)
        # Reading a sweep must not import a user's own method.
        given = options if POSTHOC.is_own(name) else options_that_differ(POSTHOC[name], options)
        methods.append((name, json.dumps({**given, **split}, sort_keys=True), prefix))
    return methods


def own_sql(columns: set[str], method: str, options: str, bins: int, prefix: str, splits: Sequence[str]) -> str:
    """Return the query of one of the sweep's own methods, with columns named as in `recalibrations`."""
    # Without test data, methods were cross-fitted: scores on the samples of the fit would be too good.
    held_out = f"{CROSS_FITTED}{prefix.removeprefix('posthoc_')}"
    scores = held_out if prefix and held_out + METRICS[0] in columns and "test" not in splits else prefix

    def measured(prefix: str, *names: str) -> list[str]:
        return [f"{prefix}{name} AS {name}" for name in names if prefix + name in columns]

    fitted = [name.removeprefix(prefix) for name in sorted(columns) if prefix and name.startswith(prefix)]
    fitted = [
        name for name in fitted if name.startswith(("line_", "temperature_at_", "at_bound", "steps", "filled_bins"))
    ]
    pairs = ", ".join(f"'{name}', {prefix}{name}" for name in fitted)
    parameters = f"json_object({pairs})::VARCHAR" if fitted else "'{}'"
    values = [f"{bins} AS bins", f"{parameters} AS parameters", *measured(prefix, "temperature", "gamma")]
    values += measured(scores, *METRICS, "unavailable")
    return (
        f"SELECT trial, replicate, seed, split, status, {literal(method)} AS method, {literal(options)} AS options, "
        f"{', '.join(values)}, 0 AS source\nFROM final"
    )
