"""Every printed number has a recipe, and an ideal finished sweep of it, and of nothing else, fills its cell."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from search_spaces import packaged_files
from search_spaces.papers.finished import FinishedSweep
from search_spaces.papers.published_numbers import published_tables, read_published
from search_spaces.papers.recipes import recipe_of, recipes_of, shipped_recipe, trains
from search_spaces.papers.tables import FORMULA, PaperTable, format_paper_table, paper_table
from sweeper.results import Results
from sweeper.space.catalogue import list_spaces
from sweeper.space.loading import load_spec
from sweeper.space.spec import SweepSpec
from tests.search_spaces.papers.ideal_sweeps import Ending, ideal_sweep, table_of

SPACES = sorted(name for name, header in list_spaces().items() if header.get("tables"))
TABLES = sorted(published_tables())


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FinishedSweep]:
    """An ideal sweep of every search space that names published tables."""
    output = tmp_path_factory.mktemp("ideal")
    return {name: FinishedSweep(ideal_sweep(output, name)) for name in SPACES}


@pytest.fixture(scope="module")
def tables(sweeps: dict[str, FinishedSweep]) -> dict[str, PaperTable]:
    """Every published table, filled in with all sweeps present."""
    return {name: paper_table(name, [*sweeps.values()]) for name in TABLES}


@pytest.mark.integration
def test_ideal_sweeps_fill_every_cell_of_every_table(tables: dict[str, PaperTable]) -> None:
    missing = Counter(
        (name, cell.published.metric, cell.recipe) for name in TABLES for cell in tables[name].cells if not cell.ours
    )
    assert not missing
    assert sum(table.filled for table in tables.values()) == sum(len(read_published(name)) for name in TABLES)


@pytest.mark.integration
def test_each_cell_is_filled_by_its_own_recipe(tables: dict[str, PaperTable]) -> None:
    for name in TABLES:
        for cell in tables[name].cells:
            assert cell.sweep == (cell.recipe or FORMULA), cell.published
            assert cell.recipe in ("", *(recipe.space for recipe in recipes_of(name)))


@pytest.mark.integration
def test_sweeps_of_other_papers_fill_nothing(sweeps: dict[str, FinishedSweep]) -> None:
    for name in TABLES:
        paper = name.split("-")[0]
        others = [sweep for space, sweep in sweeps.items() if not space.startswith(paper)]
        filled = [cell for cell in paper_table(name, others).cells if cell.ours and cell.sweep != FORMULA]
        assert not filled, name


@pytest.mark.integration
def test_a_cell_has_as_many_seeds_as_its_recipe(tables: dict[str, PaperTable]) -> None:
    for name in TABLES:
        for cell in tables[name].cells:
            if cell.recipe and cell.ours:
                assert cell.ours.n == shipped_recipe(cell.recipe).spec.replicates.count, cell.published


@pytest.mark.slow
def test_ideal_rehearsals_fill_every_cell(tmp_path: Path) -> None:
    held = []
    for name in SPACES:
        spec = load_spec(packaged_files()[name], rehearse=True)
        held.append(FinishedSweep(ideal_sweep(tmp_path, name, spec, f"{name}-rehearsal")))
    tables = [paper_table(name, held, rehearsed=True) for name in TABLES]
    missing = [
        (cell.published.table, cell.published.metric) for table in tables for cell in table.cells if not cell.ours
    ]
    assert not missing


def departed(output: Path, *overrides: str) -> PaperTable:
    """Return selective Table 1 filled in from a sweep of its CIFAR-10 recipe with some changes."""
    space = "selective_tables_cifar10"
    return table_of("selective-1", ideal_sweep(output, space, load_spec(packaged_files()[space], overrides)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("scheduler.max_epochs=150", "epochs 150 for 200"),
        ("evaluation.bins=10", "bins 10 for 15"),
        ("replicates=1", "seeds 1 for 3"),
        ("dataset.split=shuffled", "data set split the default for stratified"),
        ("space.optimizer.lr=0.2", "0 of"),
        ("space.optimizer.weight_decay=0", "0 of"),
        ("header.tables=[selective-2]", "its header does not name selective-1"),
    ],
)
def test_a_sweep_of_another_recipe_says_how_it_departs(tmp_path: Path, change: str, said: str) -> None:
    table = departed(tmp_path, change)
    assert table.filled == 0
    assert all(said in reason for reason in table.reasons)
    assert table.reasons.total() == 4 * 7 * 2, "all networks and losses of CIFAR-10, in both metrics"


def test_more_seeds_and_other_places_of_the_data_are_the_same_recipe(tmp_path: Path) -> None:
    assert departed(tmp_path / "more", "replicates=5").filled == 4 * 7 * 2
    assert departed(tmp_path / "else", "dataset.folder=somewhere", "resources.cpu=1").filled == 4 * 7 * 2


def test_another_class_fraction_is_another_recipe(tmp_path: Path) -> None:
    tenth = FinishedSweep(ideal_sweep(tmp_path, "posterior_figures_5_6_cifar10_tenth"))
    filled = [cell for cell in paper_table("posterior-fig5", [tenth]).cells if cell.ours]
    assert [cell.published.options for cell in filled] == [{"dataset.class_fraction": "0.1"}]


def test_word_vectors_belong_to_the_recipe(tmp_path: Path) -> None:
    space = "mukhoti_tables_newsgroups"
    assert shipped_recipe(space).spec.dataset["word_vectors"]
    without = ideal_sweep(tmp_path, space, load_spec(packaged_files()[space]))
    assert table_of("mukhoti-1", without).filled == 0
    elsewhere = load_spec(packaged_files()[space], ["dataset.word_vectors=/data/glove.6B.100d.txt"])
    assert table_of("mukhoti-1", ideal_sweep(tmp_path, space, elsewhere)).filled == 5 * 3


def test_a_rehearsal_fills_cells_that_are_no_results(tmp_path: Path) -> None:
    space = "mukhoti_figures_7_8"
    rehearsal = load_spec(packaged_files()[space], rehearse=True)
    results: Results = ideal_sweep(tmp_path, space, rehearsal, f"{space}-rehearsal")
    assert table_of("mukhoti-fig7", results).filled == 0
    table = table_of("mukhoti-fig7", results, rehearsed=True)
    assert (table.filled, table.rehearsed) == (2, True)


@pytest.mark.parametrize("table", TABLES)
def test_every_number_has_one_recipe_or_a_formula(table: str) -> None:
    for number in read_published(table):
        holding = [recipe.space for recipe in recipes_of(table) if recipe.holds(number)] if number.loss else []
        assert len(holding) == (1 if number.dataset else 0), (number, holding)
        assert (recipe_of(number) is None) == (not number.dataset)


@pytest.mark.parametrize("table", ["selective-a2", "selective-a3"])
def test_what_a_paper_selected_is_among_what_its_recipe_tries(table: str) -> None:
    for number in read_published(table):
        recipe = recipe_of(number)
        assert recipe is not None
        selected = replace(number, options={**number.options, number.metric: str(number.value)})
        assert any(trains(row, selected) for row in recipe.configurations), number


@pytest.mark.integration
def test_a_selected_hyperparameter_is_that_of_the_best_by_validation_loss(tables: dict[str, PaperTable]) -> None:
    for cell in tables["selective-a2"].cells:
        assert cell.ours is not None and cell.candidates > 1
        tried = {
            row["config_loss_gamma"]
            for row in shipped_recipe(cell.recipe).configurations
            if trains(row, cell.published)
        }
        assert cell.ours.mean in tried


def of_space(space: str, *overrides: str) -> SweepSpec:
    """Return a shipped search space with changes."""
    return load_spec(packaged_files()[space], [*shipped_recipe(space).overrides, *overrides])


FIGURES_3, TINY = "mukhoti_figures_2_3_4", "selective_selection_tiny_imagenet"
GAMMAS = "curvature_figures_2_3"
INTERRUPTED = {"status": "interrupted"}
DIVERGED = {"status": "failed", "stop_kind": "non_finite"}


def empty_cells(name: str, sweep: Results) -> dict[str, int]:
    """Return why the cells of a sweep's own recipe are empty."""
    table = table_of(name, sweep)
    assert not any(cell.ours for cell in table.cells)
    return table.reasons


def test_a_selection_needs_every_candidate(tmp_path: Path) -> None:
    """The settings in print alone would select themselves."""
    dual = "{name: dual_focal, gamma: 5, variant: conditional}"
    printed = f"space.loss.grid=[{dual}, {{name: inverse_focal, gamma: 2}}]"
    space = "selective_selection_cifar10"
    few = ideal_sweep(tmp_path, space, of_space(space, printed, "space.architecture=resnet50"))
    found = empty_cells("selective-a2", few)
    assert {"1 of 10 candidates ran to the end"} <= set(found), found
    assert "1 of 10 candidates" in format_paper_table(table_of("selective-a2", few), "markdown")


@pytest.mark.parametrize(
    ("space", "table", "left_out", "said"),
    [
        (FIGURES_3, "mukhoti-fig3", lambda loss: loss.get("gamma") in (1, 2), "2 of 4 configurations"),
        (GAMMAS, "curvature-fig2", lambda loss: loss.get("gamma") not in (0.1, 12), "2 of 14 configurations"),
        (GAMMAS, "curvature-fig3", lambda loss: loss.get("gamma") == 4, "13 of 14 configurations"),
        ("posterior_figures_5_6_cifar10_tenth", "posterior-fig6", lambda loss: loss.get("gamma") == 3, "3 of 4"),
        ("mukhoti_figures_7_8", "mukhoti-fig7", lambda loss: loss["name"] == "focal", "1 of 2 configurations"),
        ("mukhoti_tables_cifar10", "mukhoti-fig9", lambda loss: loss["name"] == "brier", "3 of 4 configurations"),
        (TINY, "selective-figa4", lambda loss: loss.get("gamma") == 5, "8 of 9 configurations"),
    ],
)
def test_a_rank_or_sign_needs_every_configuration(
    tmp_path: Path, space: str, table: str, left_out: Callable[[Mapping[str, Any]], bool], said: str
) -> None:
    partial = ideal_sweep(tmp_path, space, ended=lambda made, replicate: INTERRUPTED if left_out(made["loss"]) else {})
    assert all(reason.startswith(said) for reason in empty_cells(table, partial)), empty_cells(table, partial)


def test_a_candidate_needs_its_seeds_and_one_that_diverged_was_tried(tmp_path: Path) -> None:
    def ended(end: dict[str, object]) -> Ending:
        return lambda made, replicate: end if (made["loss"].get("gamma"), replicate) == (12, 2) else {}

    lost = ideal_sweep(tmp_path, GAMMAS, name="lost", ended=ended(INTERRUPTED))
    assert set(empty_cells("curvature-fig2", lost)) == {"13 of 14 configurations ran to the end"}
    diverged = ideal_sweep(tmp_path, GAMMAS, name="diverged", ended=ended(DIVERGED))
    assert table_of("curvature-fig2", diverged).filled == 2 * 4


@pytest.mark.parametrize(
    ("space", "table", "change", "said"),
    [
        (GAMMAS, "curvature-fig2", "evaluation.curvature.samples=500", "curvature samples 500 for the default"),
        (GAMMAS, "curvature-fig2", "evaluation.curvature.lanczos_steps=8", "curvature lanczos_steps 8 for the default"),
        (GAMMAS, "curvature-fig3", "evaluation.curvature.trace_probes=4", "curvature trace_probes 4 for 16"),
        (GAMMAS, "curvature-fig3", "evaluation.curvature=false", "no curvature"),
        (GAMMAS, "curvature-fig2", "training.precision=bfloat16", "precision bfloat16 for float32"),
        (GAMMAS, "curvature-fig2", "objective={metric: val_ece}", "objective val_ece min for val_nll min"),
        ("mukhoti_figure_1", "mukhoti-fig1", "evaluation.bins=15", "bins 15 for 25"),
        ("mukhoti_table_3_wmt14", "mukhoti-3", "evaluation.bins=10", "bins 10 for 15"),
        ("mukhoti_table_3_wmt14", "mukhoti-fig5", "objective={metric: val_ece}", "objective val_ece min for val_nll"),
        (TINY, "selective-figa4", "objective={metric: val_ece}", "objective val_ece min for val_nll min"),
        ("mukhoti_figure_1", "mukhoti-fig1", "scheduler.evaluate_epochs=[300]", "evaluate_epochs [300.0] for"),
        (FIGURES_3, "mukhoti-fig4", "evaluation.trajectory.gradient_norms=[200]", "trajectory gradient_norms [200.0]"),
    ],
)  # fmt: skip
def test_measuring_and_selecting_are_recipe(tmp_path: Path, space: str, table: str, change: str, said: str) -> None:
    spec = of_space(space, change)
    filled = table_of(table, ideal_sweep(tmp_path, space, spec))
    assert not filled.filled and any(said in reason for reason in filled.reasons)


@pytest.mark.parametrize("table", ["mukhoti-3", "mukhoti-fig5"])
@pytest.mark.parametrize("change", ["space.beams=1", "space.optimizer.ema=0.9"])
def test_what_a_training_loop_takes_belongs_to_the_recipe(tmp_path: Path, table: str, change: str) -> None:
    space = "mukhoti_table_3_wmt14"
    assert not table_of(table, ideal_sweep(tmp_path, space, of_space(space, change))).filled
    printed = ideal_sweep(tmp_path / "as printed", space)
    assert all(cell.ours for cell in table_of(table, printed).cells)
    file = printed.folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"loop": "my_code:Loop"}))
    ((reason, _),) = table_of(table, Results(printed.folder)).reasons.items()
    assert f"loop my_code:Loop for {shipped_recipe(space).spec.loop}" in reason
