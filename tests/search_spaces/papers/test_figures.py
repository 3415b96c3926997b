"""Each figure's quantity on rows whose answer is known."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from search_spaces.papers.figures import LAMBDA_MAX, QUANTITIES, TRACE, Comparison
from search_spaces.papers.published_numbers import PublishedNumber
from trainables.posthoc.focal_temperature import GAMMAS

Rows = Sequence[Mapping[str, Any]]


def number(metric: str, loss: str = "focal", posthoc: str = "", **options: str) -> PublishedNumber:
    """Return a published number of one network."""
    split = options.pop("split", "test")
    dotted = {key.replace("__", "."): value for key, value in options.items()}
    return PublishedNumber("t", "cifar10", "mlp", loss, dotted, posthoc, split, metric, 0.0, "", None, None, "")


def comparison(
    asked: PublishedNumber, rows: Rows, values: Callable[[Mapping[str, Any], PublishedNumber], float | None],
    epochs: Mapping[str, Rows] | None = None,
) -> Comparison:  # fmt: skip
    """Return configurations, a row each, measured by a function; the first of the asked loss is the best."""
    trials = {f"c{index}": [{"config_architecture_name": "mlp", **row}] for index, row in enumerate(rows)}

    def measured(trial: str, each: PublishedNumber) -> list[float]:
        value = values(trials[trial][0], each)
        return [] if value is None else [value - 0.01, value + 0.01]

    agreeing = [trial for trial, held in trials.items() if held[0]["config_loss_name"] == asked.loss]
    return Comparison(
        asked,
        trials,
        agreeing,
        [*trials].index,
        measured,
        lambda trial: (epochs or {}).get(trial, ()),
        lambda trial: (),
    )


def focal(gammas: Sequence[float], **more: object) -> list[dict[str, object]]:
    return [{"config_loss_name": "focal", "config_loss_gamma": gamma, **more} for gamma in gammas]


PLAIN = [{"config_loss_name": "cross_entropy"}, *focal([1.0, 2.0, 3.0])]
SMOOTHED = [
    {"config_loss_name": "label_smoothing", "config_loss_alpha": 0.1, "config_loss_form": "uniform"},
    *focal([1.0, 2.0, 3.0], config_loss_smoothing=0.1),
]


def gamma_of(row: Mapping[str, Any]) -> float:
    return float(row.get("config_loss_gamma") or 0.0)


@pytest.mark.parametrize("best", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("smoothing", ["", "0.1"])
def test_the_gamma_of_the_smallest_ece_is_of_the_numbers_paradigm(best: float, smoothing: str) -> None:
    options = {"smoothing": smoothing} if smoothing else {}
    asked = number("gamma_of_smallest_ece", **options)

    def ece(row: Mapping[str, Any], _: PublishedNumber) -> float:
        own = (row in SMOOTHED_ROWS) == bool(smoothing)
        return 0.1 + abs(gamma_of(row) - best) if own else 0.01

    SMOOTHED_ROWS = [{"config_architecture_name": "mlp", **row} for row in SMOOTHED]
    assert QUANTITIES[asked.metric].value(comparison(asked, [*PLAIN, *SMOOTHED], ece)) == best


@pytest.mark.parametrize("slope", [-1.0, 1.0])
@pytest.mark.parametrize(
    ("metric", "column"), [("spearman_gamma_ece", "ece"), ("spearman_gamma_lambda_max", LAMBDA_MAX)]
)
def test_correlations_with_gamma_have_the_slopes_sign(slope: float, metric: str, column: str) -> None:
    def value(row: Mapping[str, Any], each: PublishedNumber) -> float:
        assert each.metric == column
        return 5 + slope * gamma_of(row)

    assert QUANTITIES[metric].value(comparison(number(metric), PLAIN, value)) == pytest.approx(slope)


def test_a_correlation_with_the_weight_is_taken_within_learning_rates() -> None:
    """Within each rate ECE falls with the weight; over both it would not, because the larger rate is worse."""
    rows = [
        {"config_optimizer_lr": rate, "config_loss_name": "hessian_trace", "config_loss_weight": weight}
        for rate in (0.1, 0.2)
        for weight in (1e-5, 1e-4, 1e-3, 1e-2)
    ] + [{"config_optimizer_lr": rate, "config_loss_name": "cross_entropy"} for rate in (0.1, 0.2)]

    def value(row: Mapping[str, Any], each: PublishedNumber) -> float:
        assert each.metric == TRACE
        return 100 * row["config_optimizer_lr"] - 10 * (row.get("config_loss_weight") or 0.0)

    asked = number("spearman_weight_trace", "hessian_trace")
    assert QUANTITIES[asked.metric].value(comparison(asked, rows, value)) == pytest.approx(-1.0)


@pytest.mark.parametrize(("at", "inside"), [(0.0, 0.0), (1.0, 1.0), (3.0, 0.0)])
def test_a_minimum_at_an_end_of_the_traces_is_not_inside(at: float, inside: float) -> None:
    def value(row: Mapping[str, Any], each: PublishedNumber) -> float:
        return 10 - gamma_of(row) if each.metric == TRACE else abs(gamma_of(row) - at)

    asked = number("ece_minimum_inside")
    assert QUANTITIES[asked.metric].value(comparison(asked, PLAIN, value)) == inside


def test_the_rank_of_a_score_compares_each_scores_best_configuration() -> None:
    rows = [
        {"config_loss_name": "selective_risk", "config_loss_score": score, "config_loss_nu": nu}
        for nu in (0.1, 0.01)  # the first is the better by the objective
        for score in ("margin", "msp", "negative_entropy")
    ]
    errors = {"margin": 0.2, "msp": 0.1, "negative_entropy": 0.3}

    def ece(row: Mapping[str, Any], _: PublishedNumber) -> float:
        return errors[row["config_loss_score"]] if row["config_loss_nu"] == 0.1 else 0.0

    asked = number("ece_rank", "selective_risk", score="margin")
    assert QUANTITIES["ece_rank"].value(comparison(asked, rows, ece)) == 2.0


def epochs(column: str, values: Sequence[float]) -> Rows:
    return [{"epoch": epoch, "replicate": r, column: v + r} for r in (0, 1) for epoch, v in enumerate(values, start=1)]


def test_ranks_are_read_at_the_named_epoch_and_else_at_the_last() -> None:
    curves = {"c0": [1, 9, 3], "c1": [2, 1, 1], "c2": [3, 2, 2]}
    held = {trial: epochs("train_logit_norm", values) for trial, values in curves.items()}
    last = number("logit_norm_rank", "cross_entropy", split="train")
    first = number("logit_norm_rank", "cross_entropy", split="train", epoch="1")
    for asked, place in ((last, 3.0), (first, 1.0)):
        found = comparison(asked, PLAIN[:3], lambda *_: None, held)
        assert QUANTITIES["logit_norm_rank"].value(found) == place


def test_a_rank_that_no_epoch_has_is_taken_at_the_end() -> None:
    asked = number("confidence_wrong_rank", "cross_entropy")
    found = comparison(asked, PLAIN, lambda row, _: 1 - gamma_of(row))
    assert QUANTITIES[asked.metric].value(found) == 4.0


def test_correlations_with_the_epoch_begin_after_the_named_one() -> None:
    falls_then_rises = [9.0, 5.0, 1.0, 2.0, 3.0, 4.0]
    held = {"c0": epochs("test_ece", falls_then_rises)}
    whole = comparison(number("spearman_epoch_ece", "cross_entropy"), PLAIN[:1], lambda *_: None, held)
    late = comparison(number("spearman_epoch_ece", "cross_entropy", after_epoch="2"), PLAIN[:1], lambda *_: None, held)
    assert QUANTITIES["spearman_epoch_ece"].value(whole) < 0 < QUANTITIES["spearman_epoch_ece"].value(late)


def test_the_best_temperatures_of_a_line_have_correlation_one() -> None:
    names = [f"temperature_at_{gamma:g}".replace("-", "minus_").replace(".", "_") for gamma in GAMMAS]
    line = {name: 1 + 0.5 * gamma for name, gamma in zip(names, GAMMAS, strict=True)}
    asked = number("pearson_gamma_temperature", posthoc="focal_temperature")
    found = comparison(asked, PLAIN[1:2], lambda _, each: line[each.metric])
    assert QUANTITIES[asked.metric].value(found) == pytest.approx(1.0)


@pytest.mark.parametrize("harm", [-1.0, 1.0])
def test_the_focal_maps_sign_is_of_ece_with_it_minus_without(harm: float) -> None:
    plain = number("ece_change_by_focal_map", posthoc="focal_map")
    scaled = number(
        "ece_change_by_focal_map", posthoc="temperature", posthoc__objective="focal", posthoc__apply_focal_map="true"
    )

    def ece(row: Mapping[str, Any], each: PublishedNumber) -> float:
        mapped = each.posthoc == "focal_map" or each.options.get("posthoc.apply_focal_map") == "true"
        return 0.5 + 0.1 * harm * mapped * gamma_of(row)

    for asked in (plain, scaled):
        assert QUANTITIES[asked.metric].value(comparison(asked, PLAIN, ece)) == harm


def test_the_gain_by_ece_is_the_mean_share_over_losses() -> None:
    asked = number("ece_gain_by_ece", "cross_entropy", "focal_temperature", posthoc__objective="ada_ece")

    def ece(row: Mapping[str, Any], each: PublishedNumber) -> float:
        assert each.metric == "ada_ece"
        by_log_loss = each.options["posthoc.objective"] == "nll"
        return 0.5 if by_log_loss else 0.5 - 0.1 * gamma_of(row)

    assert QUANTITIES["ece_gain_by_ece"].value(comparison(asked, PLAIN, ece)) == pytest.approx(0.2 * 1.5)


def test_what_was_not_measured_is_no_quantity() -> None:
    for metric, quantity in QUANTITIES.items():
        asked = number(metric, "focal", score="margin") if metric == "ece_rank" else number(metric)
        assert quantity.value(comparison(asked, PLAIN, lambda *_: None)) is None, metric
