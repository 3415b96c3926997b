"""Which sharpness goes with calibration: rank correlations with ECE, refinement and post-hoc NLL, loss by loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweeper.analysis.statistics.basics import Correlation, correlation, partial_correlation
from sweeper.figures.base import FIGURES, Axis, Curve, Figure, Panel, error_bars
from sweeper.figures.configurations import categories
from sweeper.results import Results
from sweeper.text.cells import Rows, float_or_none
from sweeper.text.labels import label, plural
from trainables.curvature.statistics.base import statistic_of

#: What is correlated with sharpness, where it was measured: on validation data, as curvature is.
TARGETS = ("ece", "refinement_nll", "posthoc_temperature_nll")

#: Statistics that say how something was measured, not how sharp a network is.
NOT_SHARPNESS = ("matvecs", "residual", "samples", "lambda_min", "gradient_norm")

ALL = "all losses"


@FIGURES.add(
    "sharpness_and_calibration",
    place=35,
    absent="Sharpness and calibration: evaluation.curvature.statistics named none, or configurations are too few.",
)
def draw(results: Results) -> Figure | None:
    """Return correlations of each sharpness with each target; None where no further statistic was measured."""
    present = results.columns("evaluations")
    shown = [name for name in present if _is_sharpness(name)]
    targets = [name for name in TARGETS if name in present]
    if not any((each := statistic_of(name)) is not None and each[1].group for name in shown):
        return None
    averages = ", ".join(f"avg({name}) AS {name}" for name in ("accuracy", *targets, *shown))
    sql = (
        "SELECT config_loss_name AS loss, config_architecture_name AS architecture, trial, "
        f"{averages}\nFROM final WHERE split = 'val' AND stage = 'end' GROUP BY ALL ORDER BY trial"
    )
    rows = results.rows(sql)
    families = {ALL: rows, **{name: [r for r in rows if r["loss"] == name] for name in categories(rows, "loss")}}
    found = {
        target: {family: correlations(held, shown, target) for family, held in families.items()} for target in targets
    }
    drawn = [family for family in families if any(found[target][family] for target in targets)]
    if not drawn:
        return None
    return Figure(
        key="sharpness-and-calibration",
        title="Sharpness and calibration",
        caption=(
            "Spearman’s rank correlation of each sharpness on validation data with calibration there, over "
            f"{plural(len(rows), 'finished configuration')} (means over replicates), within networks, with 95 % "
            "intervals. Given accuracy: of what accuracy’s ranks leave of both. Training losses’ own curvature, which "
            "has their scale, is left out. Correlations are not causes."
        ),
        sql=[sql],
        panels=[panel(target, found[target], drawn, place) for target in targets for place in (0, 1)],
        legend=drawn,
    )


def _is_sharpness(column: str) -> bool:
    found = statistic_of(column)
    of_it = found is not None and found[0] != "training" and found[1].name not in NOT_SHARPNESS
    return of_it and not column.endswith("_se")


#: Column → its correlation, and that given accuracy.
Found = Mapping[str, tuple[Correlation | None, Correlation | None]]


def correlations(rows: Rows, columns: Sequence[str], target: str) -> Found:
    """Return the correlations of one family's columns with a target, where there are any; networks as strata."""
    found: dict[str, tuple[Correlation | None, Correlation | None]] = {}
    for column in columns:
        known = [[float_or_none(row, name) for name in (column, target, "accuracy")] for row in rows]
        whole = [(values, row["architecture"]) for values, row in zip(known, rows, strict=True) if None not in values]
        strata = [architecture for _, architecture in whole]
        x, y, given = ([values[at] or 0.0 for values, _ in whole] for at in range(3))
        pair = correlation(x, y, strata), partial_correlation(x, y, given, strata)
        if pair[0] is not None:
            found[column] = pair
    return found


def panel(target: str, found: Mapping[str, Found], families: Sequence[str], place: int) -> Panel:
    """Return one target's correlations, plain (`place` 0) or given accuracy (1), a colour a family."""
    curves = (points(found[family], place, family, colour) for colour, family in enumerate(families))
    heading = f"validation {label(target)}" + (", given accuracy" if place else "")
    axis = Axis("Spearman’s ρ", limits=(-1.05, 1.05))
    marks = [curve for curve in curves if curve is not None]
    return Panel(heading, [], marks, axis, Axis("", names=True), verticals={0.0: ""})


def points(found: Found, place: int, family: str, colour: int) -> Curve | None:
    """Return one family's correlations with their intervals; None where it has none."""
    held = [(label(name), each) for name, pair in found.items() if (each := pair[place]) is not None]
    if not held:
        return None
    rhos, names = [each.rho for _, each in held], [name for name, _ in held]
    text = [f"{family}, {name}: {each.text()}" for name, each in held]
    bars = error_bars(rhos, [each.interval for _, each in held])
    return Curve(rhos, names, colour, size=8, error_x=bars, text=text)
