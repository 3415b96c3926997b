"""Curvature and calibration: figures 2, 3 and 4 of the curvature paper, and correlations of sharpness with calibration.

The figures show λ_max and calibration error against γ, the Hessian's trace and τ. For each loss, they also show rank
correlations of each sharpness with ECE, refinement and post-hoc NLL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from sweeper.core.cells import Row, Rows, float_or_none, floats
from sweeper.core.labels import label, plural
from sweeper.core.statistics.basics import MINIMUM_PAIRS, Correlation, correlation, log_log_fit, partial_correlation
from sweeper.reporting.figures.base import (
    FIGURES,
    Figure,
    Panel,
    bars_to,
    colour,
    ends,
    mark,
    names,
    points,
    quantity,
    verticals,
)
from sweeper.reporting.figures.configurations import (
    HESSIANS,
    above_zero,
    categories,
    configuration_points,
    configuration_rows,
    correlated,
    counted,
    measured_hessians,
    one_sample_size,
    rank_correlations,
    statuses,
    thin_points,
)
from sweeper.results import Results
from sweeper.results.leaderboard import FINISHED, varying_columns
from trainables.curvature.statistics.base import statistic_of

#: Condition for configurations with a γ, and for cross-entropy, which is focal loss at γ = 0.
GAMMA_CONDITION = "({gamma} IS NOT NULL OR config_loss_name = 'cross_entropy')"

NAMES = {"training": "the training loss’s Hessian", "cross_entropy": "cross-entropy’s Hessian"}


@FIGURES.add(
    "curvature_against_gamma",
    place=10,
    absent="λ_max against γ: no trial has both a γ and a measured Hessian.",
    aliases=("lambda_max_against_gamma",),
)
def curvature_against_gamma(results: Results) -> Figure | None:
    """Return λ_max against γ, one panel per focal-type loss family and Hessian; None without γ or curvature."""
    gamma, hessians = results.quantity("gamma"), measured_hessians(results)
    if gamma is None or not hessians:
        return None
    sql, rows = configuration_rows(results, GAMMA_CONDITION.format(gamma=gamma))
    # The most frequent sample size is determined only among rows with curvature.
    measured = [f"hessian_{loss}_lambda_max" for loss in hessians]
    rows, sizes = one_sample_size([row for row in rows if any(row[name] is not None for name in measured)])
    against = AgainstGamma(results, rows)
    if not against.rows:
        return None
    return Figure(
        title="λ_max against γ",
        caption=(
            "Largest eigenvalue of the validation Hessian against γ: mean ± standard deviation over the replicates of "
            f"{counted(against.rows)}, with Spearman’s rank correlation ρ. The training loss’s Hessian shrinks with γ "
            "in part because the loss itself does; cross-entropy’s is comparable across γ. "
            f"{sizes}{against.remark}"
        ),
        sql=[sql],
        panels=[
            against.panel(family, f"{family}: {HESSIANS[loss]}", f"hessian_{loss}_lambda_max", "λ_max")
            for family in against.families
            for loss in hessians
        ],
        findings=gamma_findings(against, list(hessians)),
        legend=against.architectures,
        statuses=statuses([*against.rows, *against.zero]),
    )


@FIGURES.add("ece_against_gamma", place=20, absent="ECE against γ: no loss of this sweep has a γ.")
def ece_against_gamma(results: Results) -> Figure | None:
    """Return validation ECE against γ, one panel per loss family; None if no loss has a γ."""
    gamma = results.quantity("gamma")
    if gamma is None:
        return None
    sql, rows = configuration_rows(results, f"{GAMMA_CONDITION.format(gamma=gamma)} AND ece IS NOT NULL")
    against = AgainstGamma(results, rows)
    if not against.rows:
        return None
    return Figure(
        title="Calibration error against γ",
        caption=(
            "Expected calibration error on validation data, before any post-hoc method, against γ: mean ± standard "
            f"deviation over the replicates of {counted(against.rows)}, with Spearman’s rank correlation ρ."
            f"{against.remark}"
        ),
        sql=[sql],
        panels=[against.panel(family, family, "ece") for family in against.families],
        legend=against.architectures,
        statuses=statuses([*against.rows, *against.zero]),
    )


class AgainstGamma:
    """Configurations of focal-type losses, by loss family, and those of cross-entropy at γ = 0.

    Attributes:
        rows: configurations with a γ.
        zero: configurations of cross-entropy, drawn as squares.
        families: the losses in `rows`.
        architectures: architectures in `rows` and `zero`, in the order of their colours.
        remark: explanation of the squares, with a leading space; empty if there are none.
    """

    def __init__(self, results: Results, rows: Rows) -> None:
        """Split the rows of GAMMA_CONDITION."""
        self.rows = [row for row in rows if row["gamma"] is not None]
        self.zero: list[Row] = [{**row, "gamma": 0.0} for row in rows if row["loss"] == "cross_entropy"]
        self.families = categories(self.rows, "loss")
        self.architectures = categories([*self.rows, *self.zero], "architecture")
        self.remark = " Squares: cross-entropy (focal loss at γ = 0); not part of ρ." if self.zero else ""
        # A line through trials is meaningful only if they differ only in γ.
        varying = {*varying_columns(results)} - {"config_loss_name", "config_architecture_name"}
        self._line = all(column in (results.quantity("gamma") or "") for column in varying)

    def panel(self, family: str, heading: str, column: str, log: str = "") -> Panel:
        """Return the panel of one family's column against γ, with rank correlations below.

        Args:
            family: the loss.
            heading: heading of the panel.
            column: column of the ordinate.
            log: title of a logarithmic axis; if empty, the axis shows ECE from 0.
        """
        mine = [row for row in self.rows if row["loss"] == family]
        shown, plain = (above_zero(mine, column), above_zero(self.zero, column)) if log else (mine, self.zero)
        (squares, fewer), (circles, few) = thin_points(plain), thin_points(shown)
        layers = [
            *configuration_points(squares, "gamma", column, self.architectures, apart=True),
            *configuration_points(circles, "gamma", column, self.architectures, connect=self._line),
        ]
        remarks = [*rank_correlations(shown, "gamma", column), *few, *(f"At γ = 0: {remark}" for remark in fewer)]
        if len(shown) < len(mine):
            remarks.append(f"{len(mine) - len(shown)} with λ_max ≤ 0 cannot be drawn on a log scale.")
        y = quantity(column, log, log=True) if log else quantity(column, "validation ECE", zero=True)
        return Panel(heading, layers, quantity("gamma", "γ"), y, remarks, points=len(shown))


def gamma_findings(against: AgainstGamma, hessians: Sequence[str]) -> list[str]:
    """Return sentences on the rank correlation of γ and λ_max among finished trials; none with too few trials."""
    sentences: list[str] = []
    for family in against.families:
        for architecture in categories(against.rows, "architecture"):
            wanted = (family, architecture, FINISHED)
            chosen = [r for r in against.rows if (r["loss"], str(r["architecture"]), r["status"]) == wanted]
            if len(chosen) < MINIMUM_PAIRS:
                continue
            texts = [f"{correlated(chosen, 'gamma', f'hessian_{h}_lambda_max')} for {NAMES[h]}" for h in hessians]
            sentences.append(f"γ of {family} and λ_max on {architecture}, Spearman: {', '.join(texts)}.")
    return sentences


@FIGURES.add("calibration_against_trace", place=30, absent="ECE against Tr(H): no Hessian was measured.")
def calibration_against_trace(results: Results) -> Figure | None:
    """Return validation ECE against Tr(H), one panel per Hessian; None without curvature."""
    hessians = measured_hessians(results)
    if not hessians:
        return None
    sql, rows = configuration_rows(results, "ece > 0")  # both axes are logarithmic
    rows, sizes = one_sample_size(rows)
    if not rows:
        return None
    architectures = categories(rows, "architecture")
    return Figure(
        title="Calibration error against Tr(H)",
        caption=(
            f"Validation ECE against the trace of the validation Hessian, log–log: {counted(rows)}, means over "
            f"replicates. Lines: least-squares cubic in log Tr(H) for each architecture, finished trials only. {sizes}"
        ),
        sql=[sql],
        panels=[trace_panel(rows, loss, architectures) for loss in hessians],
        legend=architectures,
        statuses=statuses(rows),
    )


def trace_panel(rows: Rows, loss: str, architectures: Sequence[str]) -> Panel:
    """Return the panel of ECE against the trace of one loss's Hessian, with a fit for each architecture."""
    column = f"hessian_{loss}_trace"
    # Fits and correlations use all of `shown`; only the points are thinned.
    shown = above_zero(rows, column)
    drawn, few = thin_points(shown)
    layers, remarks = configuration_points(drawn, column, "ece", architectures), list[str]()
    for architecture in architectures:
        mine = [row for row in shown if str(row["architecture"]) == architecture and row["status"] == FINISHED]
        # The fit uses only finished trials. Others were stopped because of their objective, which would bend the curve.
        fit = log_log_fit(floats(mine, column), floats(mine, "ece"))
        if fit is None:
            remarks.append(f"{architecture}: too few finished trials for a cubic fit (n = {len(mine)}).")
            continue
        remarks.append(f"{architecture}: cubic R² = {fit.r_squared:.2f}, n = {fit.n}.")
        curve = [{column: x, "ece": y, "architecture": architecture} for x, y in zip(*fit.curve(), strict=True)]
        layers.append(mark("line", curve, color=colour("architecture", architectures)))
    if len(shown) < len(rows):
        remarks.append(f"{len(rows) - len(shown)} with Tr(H) ≤ 0 cannot be drawn on a log scale.")
    x, y = quantity(column, "Tr(H)", log=True), quantity("ece", "validation ECE", log=True)
    return Panel(HESSIANS[loss], layers, x, y, [*remarks, *few], points=len(shown))


TRACE = "hessian_cross_entropy_trace"

#: A logarithmic axis cannot show τ = 0, so its points are drawn this factor below the smallest τ and labelled 0.
ZERO_BELOW = 4.0


@FIGURES.add(
    "trace_regularisation",
    place=40,
    absent="ECE and Tr(H) against τ: no evaluated configuration has a penalty on the Hessian’s trace.",
)
def trace_regularisation(results: Results) -> Figure | None:
    """Return ECE and the trace of cross-entropy's Hessian against τ; None if no loss has the penalty."""
    tau = results.quantity("tau")
    if tau is None or "ece" not in results.columns("evaluations"):
        return None
    sql, configurations = configuration_rows(results, f"({tau} > 0 OR config_loss_name = 'cross_entropy')")
    penalised = floats([row for row in configurations if row["tau"] is not None], "tau")
    if not penalised:
        return None
    zero = min(penalised) / ZERO_BELOW
    rows: Rows = [{**row, "place": zero if row["tau"] is None else row["tau"]} for row in configurations]
    curved, sizes = one_sample_size([row for row in rows if row.get(TRACE) is not None])
    measured = {"ece": ("validation ECE", rows), TRACE: ("Tr(H) of cross-entropy", curved)}
    return Figure(
        title="Calibration error and Tr(H) against τ",
        caption=(
            "Validation ECE and trace of the validation cross-entropy Hessian against τ, the weight of the trace "
            f"penalty: mean ± standard deviation over the replicates of {counted(rows)}. Squares at τ = 0: plain "
            "cross-entropy, not part of ρ. Other hyperparameters may vary as well. "
            + (sizes or "No Hessian was measured.")
        ),
        sql=[sql],
        panels=[
            tau_panel(mine, column, heading, categories(rows, "architecture"), zero)
            for column, (heading, mine) in measured.items()
            if mine
        ],
        legend=categories(rows, "architecture"),
        statuses=statuses(rows),
    )


def tau_panel(rows: Rows, column: str, heading: str, architectures: Sequence[str], zero: float) -> Panel:
    """Return the panel of one measurement against τ, with squares at τ = 0."""
    shown = above_zero(rows, column)
    drawn, squares = ([row for row in shown if (row["tau"] is not None) is penalty] for penalty in (True, False))
    layers = [
        *configuration_points(squares, "place", column, architectures, apart=True),
        *configuration_points(drawn, "place", column, architectures),
    ]
    remarks = rank_correlations(drawn, "tau", column)
    if len(shown) < len(rows):
        remarks.append(f"{len(rows) - len(shown)} without a positive value cannot be drawn on a log scale.")
    largest = math.log10(max(floats(shown, "place"), default=1.0))
    x = quantity("place", "τ", log=True)
    # Labels at powers of ten, except the leftmost, which stands for 0.
    x["axis"] = {"format": ",.6~g", "labelExpr": f"datum.value < {1.5 * zero!r} ? '0' : datum.label", "values": [
        zero, *(10.0**power for power in range(math.ceil(math.log10(1.5 * zero)), math.floor(largest) + 1))
    ]}  # fmt: skip
    return Panel(heading, layers, x, quantity(column, heading, log=True), remarks)


#: Metrics with which sharpness is correlated. Like curvature, they are measured on validation data.
TARGETS = ("ece", "refinement_nll", "posthoc_temperature_nll")

#: Statistics that describe the measurement or the gradient instead of the sharpness of a network.
NOT_SHARPNESS = ("matvecs", "residual", "samples", "lambda_min", "lambda_min_residual", "gradient_norm")

ALL = "all losses"


@FIGURES.add(
    "sharpness_and_calibration",
    place=35,
    absent="Sharpness and calibration: evaluation.curvature.statistics named none, or configurations are too few.",
)
def sharpness_and_calibration(results: Results) -> Figure | None:
    """Return correlations of each sharpness with each target; None if no optional statistic was measured."""
    present = results.columns("evaluations")
    shown = [name for name in present if is_sharpness(name)]
    targets = [name for name in TARGETS if name in present]
    # λ_max and trace are always measured. A figure of only these two would repeat the figures above.
    if not any((statistic := statistic_of(name)) is not None and statistic[1].group for name in shown):
        return None
    averages = ", ".join(f"avg({name}) AS {name}" for name in ("accuracy", *targets, *shown))
    sql = (
        "SELECT config_loss_name AS loss, config_architecture_name AS architecture, trial, "
        f"{averages}\nFROM final WHERE split = 'val' AND stage = 'end' GROUP BY ALL ORDER BY trial"
    )
    rows = results.rows(sql)
    families = {ALL: rows, **{name: [r for r in rows if r["loss"] == name] for name in categories(rows, "loss")}}
    correlations = {
        target: {family: sharpness_correlations(held, shown, target) for family, held in families.items()}
        for target in targets
    }
    drawn = [family for family in families if any(correlations[target][family] for target in targets)]
    if not drawn:
        return None
    return Figure(
        title="Sharpness and calibration",
        caption=(
            "Spearman’s rank correlation of each sharpness on validation data with calibration there, over "
            f"{plural(len(rows), 'finished configuration')} (means over replicates), within networks, with 95 % "
            "intervals. Given accuracy: of what accuracy’s ranks leave of both. Training losses’ own curvature, which "
            "has their scale, is left out. Correlations are not causes."
        ),
        sql=[sql],
        panels=[sharpness_panel(target, correlations[target], drawn, place) for target in targets for place in (0, 1)],
        legend=drawn,
    )


def is_sharpness(column: str) -> bool:
    """Return whether a column measures a network's sharpness, independently of its training loss's scale."""
    statistic = statistic_of(column)
    of_it = statistic is not None and statistic[0] != "training" and statistic[1].name not in NOT_SHARPNESS
    return of_it and not column.endswith("_se")


#: Column → (correlation, partial correlation given accuracy).
Found = Mapping[str, tuple[Correlation | None, Correlation | None]]


def sharpness_correlations(rows: Rows, columns: Sequence[str], target: str) -> Found:
    """Return the correlations of one family's columns with a target, stratified by network."""
    by_column: dict[str, tuple[Correlation | None, Correlation | None]] = {}
    for column in columns:
        known = [[float_or_none(row, name) for name in (column, target, "accuracy")] for row in rows]
        # The plain and the partial correlation use the same rows, so they can be compared.
        every = ((tuple(v), row["architecture"]) for v, row in zip(known, rows, strict=True) if None not in v)
        whole = [*dict.fromkeys(every)]  # rows with the same values are one training
        strata = [architecture for _, architecture in whole]
        x, y, given = ([values[at] or 0.0 for values, _ in whole] for at in range(3))
        pair = correlation(x, y, strata), partial_correlation(x, y, given, strata)
        if pair[0] is not None:
            by_column[column] = pair
    return by_column


def sharpness_panel(target: str, correlations: Mapping[str, Found], families: Sequence[str], place: int) -> Panel:
    """Return the panel of one target's correlations, plain (`place` 0) or given accuracy (1), coloured by family."""
    rows = [
        {"family": family, "sharpness": label(name), "rho": rho.rho, **ends(rho.interval),
         "says": f"{family}, {label(name)}: {rho.text()}"}
        for family in families
        for name, pair in correlations[family].items()
        if (rho := pair[place]) is not None
    ]  # fmt: skip
    by = colour("family", families)
    layers = [*verticals({0.0: ""}), bars_to(rows, along="x", color=by), points(rows, color=by)]
    heading = f"validation {label(target)}" + (", given accuracy" if place else "")
    return Panel(heading, layers, quantity("rho", "Spearman’s ρ", limits=(-1.05, 1.05)), names("sharpness"))
