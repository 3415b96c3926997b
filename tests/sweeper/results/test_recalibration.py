"""The change that a post-hoc method makes, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sweeper.core.errors import SweeperError
from sweeper.judging.question import NOT_COMPARED
from sweeper.reporting.recalibrations import effect_warning, limits, rounded_change
from sweeper.results.recalibration import effects, options_that_differ
from trainables.metrics import softmax64
from trainables.posthoc import POSTHOC, fit


def row(trial: str, method: str, ece: float | None, nll: float, *, replicate: int = 0, bins: int = 15) -> dict:
    """One evaluation on test data."""
    key = {"trial": trial, "replicate": replicate, "split": "test", "options": "{}", "bins": bins}
    return {**key, "method": method, "ece": ece, "nll": nll}


def test_each_trial_counts_once_and_is_paired_with_itself() -> None:
    rows = [
        row("c00000", "none", 0.10, 1.0), row("c00000", "none", 0.20, 1.0, replicate=1),
        row("c00001", "none", 0.05, 0.5), row("c00002", "none", 0.30, 2.0),
        row("c00000", "temperature", 0.05, 0.9), row("c00000", "temperature", 0.05, 0.9, replicate=1),
        row("c00001", "temperature", 0.06, 0.5), row("c00002", "temperature", None, float("nan")),
    ]  # fmt: skip
    (found,) = effects(rows)
    ece, nll = found.changes
    assert (ece.before, ece.after) == pytest.approx((0.10, 0.055))  # c00002 has no value after, so it is left out
    assert ece.difference == pytest.approx((-0.10 + 0.01) / 2)
    assert (ece.better, ece.units) == (1, 2)
    assert nll.difference == pytest.approx(-0.05)
    assert (ece.unit, ece.metric, nll.metric) == ("trial", "ece", "nll")


def test_a_method_is_compared_at_its_own_number_of_bins_or_not_at_all() -> None:
    rows = [row("c0", "none", 0.1, 1.0, bins=10), row("c0", "temperature", 0.05, 0.9), row("c0", "none", 0.2, 1.0)]
    (found,) = effects(rows)
    assert found.request.bins == 15 and found.changes[0].before == 0.2
    assert effects(rows[:2]) == []


def shared(values: list[tuple[str, int, float, float]]) -> list[dict]:
    """Rows of (trial, seed, ECE before, ECE after)."""
    rows = []
    for trial, seed, before, after in values:
        for method, ece in (("none", before), ("temperature", after)):
            rows.append({**row(trial, method, ece, 1.0, replicate=seed), "seed": seed})
    return rows


def test_trials_that_share_their_seeds_are_clustered_by_seed() -> None:
    """Two seeds of four configurations are two units, however many trials: differences −.08 and −.10."""
    (found,) = effects(shared([(f"c{k}", seed, 0.1 + 0.01 * k, 0.1 + 0.01 * k - d) for k in range(4)
                               for seed, d in ((7, 0.08), (9, 0.10))]))  # fmt: skip
    ece = found.changes[0]
    assert (ece.units, ece.trials, ece.unit) == (2, 4, "seed")
    assert ece.difference == pytest.approx(-0.09)
    assert ece.verdict.high > 0, "two seeds say little"
    assert ece.verdict.low < 0 and ece.better == 2


@pytest.mark.parametrize("seeds", [[7] * 6, list(range(6))])
def test_duplicates_of_one_training_cannot_be_judged(seeds: list[int]) -> None:
    """A grid over something without effect: six trials, one training; it was `by −0.082 (−0.082 … −0.082), lower`."""
    (found,) = effects(shared([(f"c{k}", seed, 0.112, 0.03) for k, seed in enumerate(seeds)]))
    ece = found.changes[0]
    assert ece.verdict.code == NOT_COMPARED and limits(ece) == ""


def test_a_duplicate_among_others_counts_once() -> None:
    distinct = [("c0", 0, 0.1, 0.05), ("c1", 1, 0.2, 0.12), ("c2", 2, 0.15, 0.09)]
    (once,) = effects(shared(distinct))
    (again,) = effects(shared([*distinct, *((f"d{k}", 10 + k, 0.15, 0.09) for k in range(5))]))
    assert again.changes[0].verdict == once.changes[0].verdict


def test_fits_that_validation_data_do_not_determine_are_counted_and_warned_of() -> None:
    rows = [row(f"c{k}", method, 0.1, 0.5) for k in range(3) for method in ("none", "temperature")]
    for k, each in enumerate(rows):
        each["parameters"] = '{"at_bound": 1.0, "temperature": 0.001}' if k in (1, 3) else "{}"
    (effect,) = effects(rows)
    assert (effect.at_bound, effect.fits) == (2, 3)
    assert "2 of 3 fits of temperature" in effect_warning(effect)
    assert effect_warning(effects([{**each, "parameters": None} for each in rows])[0]) == ""


def test_a_narrow_interval_is_written_in_the_digits_that_its_width_needs() -> None:
    rows = [row(f"c{n}", "none", 0.2 + n / 1e6, 1.0) for n in range(400)]
    rows += [row(f"c{n}", "temperature", 0.06 + n / 1e6 + 0.002 * (n % 2), 0.9) for n in range(400)]
    ece, nll = effects(rows)[0].changes
    low, high = ece.verdict.low, ece.verdict.high
    assert rounded_change(low) == rounded_change(high) == "−0.14", "two digits would show an interval without width"
    first, last = limits(ece).removeprefix(" (95 % ").removesuffix(")").split(" … ")
    assert first != last
    assert float(first.replace("−", "-")) == pytest.approx(low, abs=1e-4)
    assert float(last.replace("−", "-")) == pytest.approx(high, abs=1e-4)
    assert limits(nll) == "", "all differences are equal"


def test_an_option_that_a_damaged_file_names_is_refused() -> None:
    method = POSTHOC["histogram_binning"]
    assert options_that_differ(method, {each.name: each.default for each in method.hyperparameters}) == {}
    with pytest.raises(SweeperError, match="histogram_binning has no option 'binz'"):
        options_that_differ(method, {"binz": 10})


def fits(
    after: float, method: str = "vector", parameters: str = "{}", splits: tuple[str, ...] = ("val", "test")
) -> list:
    """Rows of one trial, whose NLL was 1."""
    both = [row("c0", name, 0.1, nll) for name, nll in (("none", 1.0), (method, after))]
    return [
        {**each, "split": split, "parameters": parameters, "unavailable": None} for each in both for split in splits
    ]


DATASET = {"classes": 3, "samples": {"val": 50, "test": 500}}


def test_validation_samples_are_too_few_if_the_parameters_cost_more_than_the_method_gains() -> None:
    """Vector scaling of three classes has 5 parameters, which cost 5/100 of NLL with 50 samples."""
    (few,), (enough,) = effects(fits(0.93), DATASET), effects(fits(0.89), DATASET)
    assert (few.free, few.samples, few.cost) == (5, 50, pytest.approx(0.05))
    assert few.gain == pytest.approx(0.02) and few.needed == pytest.approx(125) and few.too_few
    assert enough.gain == pytest.approx(0.06) and not enough.too_few and effect_warning(enough) == ""
    assert all(part in effect_warning(few) for part in ("50 validation samples", "vector", "125"))
    (harmful,) = effects(fits(1.2), DATASET)
    assert harmful.needed == math.inf and harmful.too_few and effect_warning(harmful)
    (crosswise,) = effects(fits(0.98, splits=("val",)), DATASET)  # measured on other samples than those of the fits
    assert crosswise.gain == pytest.approx(0.02 + 5 / 80) and not crosswise.too_few


def test_free_parameters_are_counted_in_the_fits_or_unknown() -> None:
    assert effects(fits(0.9, "isotonic", '{"steps": 4.0}'), DATASET)[0].free == 12
    two = {**DATASET, "classes": 2}
    assert [effects(fits(0.9, name), two)[0].free for name in ("temperature", "platt", "vector", "matrix")] == [
        1,
        2,
        3,
        3,
    ]
    for unknown in (
        effects(fits(0.9)),
        effects(fits(0.9, "venn_abers"), DATASET),
        effects(fits(0.9, "own:fit"), DATASET),
    ):
        assert unknown[0].free is None and not unknown[0].too_few


def test_a_calibrated_network_is_warned_of_as_often_as_wilks_says() -> None:
    """A temperature that is not needed gains χ²/(2n) on its samples, which is below 1/n with a probability of .843."""
    warned, data = 0, []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(200, 3)) * 2
        data.append((logits, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)))
    for logits, targets in data:
        calibrator = fit("temperature", logits, targets)
        losses = [-np.log(p[np.arange(200), targets]).mean() for p in (softmax64(logits), calibrator(logits))]
        rows = [{**each, "nll": nll} for each, nll in zip(fits(0.0, "temperature"), np.repeat(losses, 2), strict=True)]
        warned += effects(rows, {"classes": 3, "samples": {"val": 200}})[0].too_few
    assert abs(warned / 300 - 0.843) < 4 * (0.843 * 0.157 / 300) ** 0.5


def test_rows_that_are_all_unavailable_have_no_gain() -> None:
    rows = [{**row, "unavailable": "it diverged"} for row in fits(0.9)]
    assert [(effect.free, effect.gain) for effect in effects(rows, DATASET)] == [(None, 0.0)]
