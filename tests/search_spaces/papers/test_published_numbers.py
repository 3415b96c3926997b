"""The published numbers: cells name what exists, tables are whole, and papers' contradictions are marked."""

import csv
from collections import Counter

import pytest

from search_spaces import packaged_files
from search_spaces.papers.figures import QUANTITIES
from search_spaces.papers.published_numbers import COLUMNS, published_tables, read_published
from search_spaces.papers.recipes import OF_FIGURES, method_settings, recipe_of, shipped_recipe
from search_spaces.papers.translation.loop import measured_columns
from trainables.datasets.base import DATASETS
from trainables.losses import LOSSES
from trainables.metrics import METRIC_NAMES
from trainables.metrics.known_posterior import POSTERIOR_COLUMNS
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.posthoc.base import parameter_names
from trainables.registry import FITTED_ON

SHARES = {"accuracy", "top5", "ece", "ada_ece", "mce", "cw_ece", "s99", "s99_accuracy"}

OF_FORMULAS = {
    "slope", "intercept", "max_error", "temperature", "temperature_lower", "temperature_upper",
    "largest_overconfident_gamma",
}  # fmt: skip

PRINTED_CELLS = {
    # rows of the paper x columns, and one more a temperature in brackets
    "mukhoti-1": 11 * 5 * 3,
    "mukhoti-2": 11 * 5 * 3,
    "mukhoti-3": 3 * 5,
    "mukhoti-4": 11 * 7,
    "mukhoti-5": 11 * 7 * 3,
    "mukhoti-6": 11 * 7 * 3,
    "mukhoti-7": 11 * 7,
    "mukhoti-8": 5 * 5 * 2,
    "mukhoti-9": 11 * 11,
    "mukhoti-10": 11 * 11,
    "mukhoti-11": 11 * 11,
    "mukhoti-12": 11 * 11,
    "mukhoti-13": 2 * 3 * 2 * 2,
    "properness-1": 3 * 12 * 5 + 3 * 6,  # mean and bracket of two metrics, accuracy; gamma_ev on every second row
    "selective-1": 10 * 7 * 2,
    "selective-2": 10 * 7 * 3,
    "selective-a2": 2 * 10,
    "selective-a3": 2 * 10,  # and nu from the text beside it
    "selective-a4": 10 * 7 * (2 + 3 + 2 + 2),
}


def _options_known(number) -> bool:
    owners = {
        "dataset": (DATASETS, number.dataset),
        "architecture": (ARCHITECTURES, number.architecture),
        "posthoc": (POSTHOC, number.posthoc),
    }
    for name, value in number.options.items():
        owner, _, option = name.rpartition(".")
        registry, component = owners[owner] if owner else (LOSSES, number.loss)
        if not component or (not owner and option in OF_FIGURES) or (owner, option) == ("posthoc", FITTED_ON):
            continue  # a figure of the focal map alone, an epoch of training, or the split that a method is fitted on
        descriptions = {h.name: h for h in registry[component].hyperparameters}
        if option not in descriptions:
            return False
        kinds = {"text": str, "boolean": {"true": True, "false": False}.get}
        if descriptions[option].fault(kinds.get(descriptions[option].kind, float)(value)) is not None:
            return False
    return True


@pytest.mark.parametrize("table", sorted(published_tables()))
def test_every_number_names_what_exists(table: str) -> None:
    with published_tables()[table].open(newline="") as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    numbers = read_published(table)
    assert numbers
    for number in numbers:
        assert number.table == table
        if shipped_loop := (recipe_of(number) or shipped_recipe("quickstart")).spec.loop:
            assert shipped_loop.startswith("search_spaces.papers."), "it trains networks and data of its own"
        else:
            assert not number.dataset or number.dataset in DATASETS
            assert not number.architecture or number.architecture in ARCHITECTURES
        assert not number.loss or number.loss in LOSSES
        assert not number.posthoc or number.posthoc in POSTHOC
        assert number.split in ("val", "test", "train", "")
        assert number.printed and number.source.startswith(table.split("-")[0])
        known = {*METRIC_NAMES, *QUANTITIES, *OF_FORMULAS, *POSTERIOR_COLUMNS, *measured_columns([])}
        known |= set(parameter_names(number.posthoc)) if number.posthoc else set()
        known |= {h.name for h in LOSSES[number.loss].hyperparameters} if number.loss else set()
        assert number.metric in known, number
        assert _options_known(number), number
        if number.metric in SHARES:
            assert 0 <= number.value <= 1, number


@pytest.mark.parametrize("table", sorted(PRINTED_CELLS))
def test_a_table_is_whole_and_no_cell_stands_twice(table: str) -> None:
    numbers = read_published(table)
    assert len(numbers) == PRINTED_CELLS[table]
    cells = Counter(
        (n.dataset, n.architecture, n.loss, *sorted(n.options.items()), n.posthoc, n.metric) for n in numbers
    )
    assert max(cells.values()) == 1


@pytest.mark.parametrize("table", sorted(PRINTED_CELLS))
def test_values_are_what_is_printed_in_our_unit(table: str) -> None:
    for number in read_published(table):
        printed = float(number.printed)
        if table in ("mukhoti-4", "mukhoti-7"):
            printed = 100 - printed  # errors
        percents = number.metric in SHARES or (table.startswith("mukhoti") and number.metric == "nll")
        assert number.value == pytest.approx(printed / 100 if percents else printed, abs=1e-12), number


TEMPERATURE_PAIRS = {
    "mukhoti-1": "mukhoti-1",
    "mukhoti-5": "mukhoti-5",
    "mukhoti-2": "mukhoti-2",
    "mukhoti-6": "mukhoti-6",
    "mukhoti-9": "mukhoti-10",
    "mukhoti-11": "mukhoti-12",
}


def _key(number) -> tuple:
    options = {k: v for k, v in number.options.items() if not k.startswith("posthoc.")}
    return number.dataset, number.architecture, number.loss, *sorted(options.items())


def test_contradictions_of_the_mukhoti_tables_are_marked() -> None:
    """T = 1 changes nothing, another T changes NLL and MCE, cells printed twice agree: or they say doubtful."""
    temperatures = {
        _key(n): n.value
        for table in ("mukhoti-1", "mukhoti-5")
        for n in read_published(table)
        if n.metric == "temperature"
    }
    assert len(temperatures) == 11 * 11
    for raw, scaled in TEMPERATURE_PAIRS.items():
        before = {_key(n): n for n in read_published(raw) if not n.posthoc}
        after = {_key(n): n for n in read_published(scaled) if n.posthoc and n.metric != "temperature"}
        for key in before:
            same = abs(before[key].value - after[key].value) < 1e-9
            assert same == (temperatures[key] == 1) or after[key].is_doubtful or raw not in ("mukhoti-9", "mukhoti-11")
            assert same or temperatures[key] != 1
    for one, other in (("mukhoti-1", "mukhoti-5"), ("mukhoti-2", "mukhoti-6"), ("mukhoti-4", "mukhoti-7")):
        twice = {(*_key(n), n.posthoc, n.metric): n for n in read_published(other)}
        for n in read_published(one):
            again = twice.get((*_key(n), n.posthoc, n.metric))
            assert again is None or n.value == again.value or n.is_doubtful, (n, again)
    errors = {_key(n): n.value for n in read_published("mukhoti-4")}
    top1 = {_key(n): n.value for n in read_published("mukhoti-8") if n.metric == "accuracy"}
    assert len(top1) == 25 and all(errors[key] == pytest.approx(value, abs=1e-9) for key, value in top1.items())


def test_contradictions_of_the_selective_tables_are_marked() -> None:
    appendix = {_key(n): n for n in read_published("selective-a4") if n.metric == "accuracy" and not n.posthoc}
    main = [n for n in read_published("selective-1") if n.metric == "accuracy"]
    far = [n for n in main if abs(n.value - appendix[_key(n)].value) > 0.00055]
    assert len(far) == 2 and all(n.is_doubtful and appendix[_key(n)].is_doubtful for n in far)
    chosen = {
        (*_key(n)[:3], n.metric): n.value for table in ("selective-a2", "selective-a3") for n in read_published(table)
    }
    for n in main:
        for name in {"gamma", "coverage", "nu"} & set(n.options):
            assert chosen[(*_key(n)[:3], name)] == float(n.options[name])


WITHOUT_TRAINING = {"properness-fig2", "properness-fig3", "properness-fig6", "posterior-fig2"}
"""Figures of the focal map alone: `sweeper paper`."""

PAPER_FILES = sorted(
    name
    for name in packaged_files()
    if name.startswith(("curvature_fig", "properness_", "mukhoti_", "posterior_", "selective_"))
)


OF_ONE_NETWORK = {"mukhoti_figure_1", "selective_figure_a3", "mukhoti_tables_tiny_imagenet_brier"}
"""Search spaces of one network and one loss, which no claim is about; the second prints no values."""


def test_every_published_table_has_a_search_space() -> None:
    named = {table for name in PAPER_FILES for table in shipped_recipe(name).spec.header.tables}
    assert set(published_tables()) - WITHOUT_TRAINING == named


@pytest.mark.parametrize("name", PAPER_FILES)
def test_a_papers_search_space_says_whose_and_fills_cells(name: str) -> None:
    recipe = shipped_recipe(name)
    spec = recipe.spec
    assert spec.header.paper == name.split("_")[0]
    assert spec.header.expected and name in spec.header.command
    for table in spec.header.tables:
        assert any(recipe.holds(n) for n in read_published(table)), table
    if name not in OF_ONE_NETWORK:
        assert spec.header.tables and spec.header.claims, "it names the claims that it can be judged by"


@pytest.mark.parametrize("table", sorted(set(published_tables()) - WITHOUT_TRAINING))
def test_every_post_hoc_method_of_a_table_is_fitted_by_its_search_space(table: str) -> None:
    """With the options in print, so that no paper needs a second command."""
    for n in read_published(table):
        recipe = recipe_of(n) if n.posthoc else None
        if recipe is not None:
            assert recipe.method(n) in [method_settings(m["name"], m) for m in recipe.spec.evaluation.posthoc], n
