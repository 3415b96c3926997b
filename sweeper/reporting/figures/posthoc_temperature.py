"""Post-hoc methods on every replicate's last evaluation; of focal temperature scaling, T against γ_ev as a figure.

Methods come from the sweep's own evaluations (`posthoc_…` columns) and from the table `recalibrations`; where both
have the same method, options and bins, the later one, the recalibration, is taken. The figure has the best T at each
γ_ev, and the line through T at γ_ev 0 and 1 (properness, Fig. 8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sweeper.core.cells import Rows, int_of, text_of
from sweeper.core.labels import describe, plural
from sweeper.core.statistics.basics import spread
from sweeper.reporting.figures.base import FIGURES, Figure, Json, Panel, bars_to, colour, ends, mark, points, quantity
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, leaderboard
from sweeper.results.queries import literal
from sweeper.results.recalibration import UNCALIBRATED, options_that_differ
from trainables.registry import FITTED_ON, LABEL, entry_label

METHOD = "focal_temperature"
#: As many as the palette has colours.
MOST_LINES = 8

REMARKS = ("If several T have the same objective, the smallest is chosen, so T is noisy with few samples.",)

Fits = Sequence[Mapping[str, float]]


@FIGURES.add(
    "posthoc_temperature",
    place=150,
    absent="T against the focal map’s γ: no focal temperature scaling was measured; add it with `sweeper recalibrate`.",
)
def draw(results: Results) -> Figure | None:
    """Return best T against γ_ev, a panel a variant of the method; None where it was never fitted."""
    measured = posthoc_measurements(results)
    if measured is None:
        return None
    variants = [variant for variant in measured.variants if variant.method == METHOD]
    panels, shown = [], list(measured.names)[:MOST_LINES]
    axes = quantity("gamma", "γ of the focal map"), quantity("T", "T", zero=True)
    for variant in variants:
        fits = {trial: fits_of(measured, trial, variant.options) for trial in shown}
        if any(fits.values()):
            panels.append(Panel(variant.label, lines_of(measured, fits), *axes, REMARKS))
    if not panels:
        return None
    return Figure(
        key="posthoc-temperature",
        title="Focal temperature scaling: T against γ",
        caption=(
            "For each γ of the focal map (not of the loss), the temperature with the lowest objective on validation "
            f"data: mean ± standard deviation over replicates, {plural(len(shown), 'configuration')}"
            + (f" of {len(measured.names)}" if len(shown) < len(measured.names) else "")
            + ". Lines: T = T₀ + (T₁ − T₀)·γ through the best T at γ = 0 and 1, which the line search follows."
        ),
        sql=[measured.sql],
        tables=["evaluations", "recalibrations", "trials"],
        panels=panels,
        legend=[measured.names[trial] for trial in shown],
    )


def fits_of(measured: Posthoc, trial: str, options: str) -> Fits:
    """Return the fitted parameters of every replicate of a configuration, each set once."""
    wanted = (trial, METHOD, options, "val")
    rows = [row for row in measured.rows if (row["trial"], row["method"], row["options"], row["split"]) == wanted]
    bins = min((int_of(row, "bins") for row in rows), default=None)
    fitted = [row for row in rows if row["bins"] == bins and not row["unavailable"]]
    parameters = (json.loads(text_of(row, "parameters")) for row in fitted)
    return [found for found in parameters if "line_slope" in found]


def lines_of(measured: Posthoc, fits: Mapping[str, Fits]) -> list[Json]:
    """Return each configuration's mean line over the range of γ_ev where T > 0, and its points."""
    lines: list[Json] = []
    best: list[Json] = []
    for trial, sets in fits.items():
        if not sets:
            continue
        of: Json = {"trial": trial, "configuration": measured.names[trial], "status": FINISHED}
        keys = sorted((gamma_of(key), key) for key in sets[0] if key.startswith("temperature_at_"))
        temperatures = {gamma: spread([fit[key] for fit in sets]) for gamma, key in keys}
        intercept, slope = (spread([fit[key] for fit in sets]).mean for key in ("line_intercept", "line_slope"))
        low, high = min(temperatures, default=0.0), max(temperatures, default=1.0)
        if slope < 0:
            high = min(high, -intercept / slope)
        lines += [{**of, "gamma": gamma, "T": intercept + slope * gamma} for gamma in (low, high)]
        for gamma, each in temperatures.items():
            said, deviation = f"{measured.names[trial]}\nγ {gamma:g}, T {each.text()}", each.deviation or 0
            bar = ends((each.mean - deviation, each.mean + deviation))
            best.append({**of, "gamma": gamma, "T": each.mean, **bar, "says": said})
    by = colour("configuration", [measured.names[trial] for trial in fits])
    return [mark("line", lines, color=by), bars_to(best, color=by), points(best, color=by)]


def gamma_of(name: str) -> float:
    """Return the γ_ev of a parameter's name: −0.5 of `temperature_at_minus_0_5`."""
    written = name.removeprefix("temperature_at_").replace("minus_", "-").replace("_", ".")
    return float(written)


METRICS = ("ece", "ada_ece", "nll")
#: The method that all others are compared with.
BASELINE = "temperature"

#: Configurations in a table; of more, the best by the sweep's objective.
MOST_ROWS = 24


@dataclass(frozen=True, order=True)
class Variant:
    """One post-hoc method with its options, as JSON of what differs from its defaults."""

    method: str
    options: str

    @property
    def label(self) -> str:
        """In words, e.g. `temperature (objective ece)`."""
        words = ", ".join(f"{key} {value}" for key, value in sorted(json.loads(self.options).items()))
        name = method_words(self.method)
        return f"{name} ({words})" if words else name


@dataclass(frozen=True)
class Posthoc:
    """The measurements behind the post-hoc figures.

    Attributes:
        sql: the query.
        rows: one per replicate, split, method, options and bins: `trial replicate split method options bins
            temperature gamma unavailable parameters` and METRICS; of the configurations in `names` only.
        names: trial → configuration in words, in the order of the trials.
        left_out: finished or evaluated configurations that are not shown.
    """

    sql: str
    rows: Rows
    names: dict[str, str]
    left_out: int

    @property
    def variants(self) -> list[Variant]:
        """The uncalibrated probabilities, the baseline, then the other methods by name, options in order."""
        found = {Variant(text_of(row, "method"), text_of(row, "options")) for row in self.rows}
        return sorted(
            found, key=lambda v: (v.method != UNCALIBRATED, v.method != BASELINE, v.method, v.options != "{}", v)
        )


def method_words(method: str) -> str:
    """Return how a post-hoc method calls itself; a user's own, which is not imported to be read about, by its name."""
    from trainables.posthoc import POSTHOC

    if method == UNCALIBRATED:
        return "uncalibrated"
    return method.replace("_", " ") if POSTHOC.is_own(method) else POSTHOC[method].words


def posthoc_measurements(results: Results) -> Posthoc | None:
    """Return what was measured of post-hoc methods on the last evaluations; None where nothing was.

    Finished configurations only, or all evaluated ones where none has finished.
    """
    sql = posthoc_sql(results)
    rows = results.rows(sql)
    if all(row["method"] == UNCALIBRATED for row in rows) and len({row["bins"] for row in rows}) < 2:
        return None
    board = leaderboard(results)
    shown = [row for row in board.rows if row["status"] == FINISHED] or list(board.rows)
    chosen = sorted(shown[:MOST_ROWS], key=lambda row: str(row["trial"]))
    names = {str(row["trial"]): describe(row, board.varying) for row in chosen}
    return Posthoc(sql, [row for row in rows if row["trial"] in names], names, len(shown) - len(chosen))


def posthoc_sql(results: Results) -> str:
    """Return the query: the sweep's own methods and the uncalibrated metrics from `final`, and `recalibrations`."""
    columns = set(results.columns("evaluations"))
    bins = int(results.specification.get("evaluation", {}).get("bins", 15))
    own = [each for each in own_methods(results) if f"{each[2]}{METRICS[0]}" in columns]
    parts = [own_sql(columns, *each[:2], bins, each[2]) for each in [(UNCALIBRATED, "{}", ""), *own]]
    measured = ", ".join(f"recalibrations.{name}" for name in METRICS)
    parts.append(
        "SELECT trial, replicate, seed, split, method, recalibrations.options, recalibrations.bins, "
        f"recalibrations.temperature, recalibrations.gamma, unavailable, parameters, {measured}, 1 AS source\n"
        "FROM recalibrations JOIN final USING (trial, replicate, epoch, split)"
    )
    union = "\nUNION ALL\n".join(parts)
    return (
        f"SELECT * EXCLUDE source FROM (\n{union}\n)\n"
        "QUALIFY row_number() OVER (PARTITION BY trial, replicate, split, method, options, bins "
        "ORDER BY source DESC) = 1\nORDER BY trial, replicate, split, method, options, bins"
    )


def own_methods(results: Results) -> list[tuple[str, str, str]]:
    """Return name, options that are not at their defaults (as JSON), and columns' prefix of the sweep's own methods."""
    from trainables.posthoc import POSTHOC

    found = []
    for options in results.posthoc:
        prefix = f"posthoc_{entry_label(options)}_"
        name, split = options.pop("name"), {key: options.pop(key) for key in (FITTED_ON,) if key in options}
        options.pop(LABEL, None)
        # A method of the user's own is not imported to be read about.
        given = options if POSTHOC.is_own(name) else options_that_differ(POSTHOC[name], options)
        found.append((name, json.dumps({**given, **split}, sort_keys=True), prefix))
    return found


def own_sql(columns: set[str], method: str, options: str, bins: int, prefix: str) -> str:
    """Return the query of one of the sweep's own methods: its `posthoc_…` columns under the names they have here."""

    def column(name: str, missing: str = "NULL::DOUBLE") -> str:
        return f"{prefix + name if prefix + name in columns else missing} AS {name}"

    fitted = [name.removeprefix(prefix) for name in sorted(columns) if prefix and name.startswith(prefix)]
    fitted = [name for name in fitted if name.startswith(("line_", "temperature_at_", "at_bound"))]
    pairs = ", ".join(f"'{name}', {prefix}{name}" for name in fitted)
    parameters = f"json_object({pairs})::VARCHAR" if fitted else "'{}'"
    unavailable = column("unavailable", "NULL::VARCHAR") if prefix else "NULL::VARCHAR AS unavailable"
    fits = f"{column('temperature')}, {column('gamma')}" if prefix else "NULL AS temperature, NULL AS gamma"
    return (
        f"SELECT trial, replicate, seed, split, {literal(method)} AS method, {literal(options)} AS options, "
        f"{bins} AS bins, {fits}, {unavailable}, {parameters} AS parameters, "
        f"{', '.join(map(column, METRICS))}, 0 AS source\nFROM final"
    )
