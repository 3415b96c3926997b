"""One command for a paper: what will be run, missing data before anything starts, and a page of what there is."""

import html
from pathlib import Path

import pytest

from search_spaces import packaged_files
from search_spaces.papers import commands as papers
from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.space.loading import load_spec
from tests.running import typed
from tests.search_spaces.papers.ideal_sweeps import ideal_sweep

SPACE = "posterior_figures_5_6_cifar10_tenth"


def states(paper: str, output: Path, *, rehearse: bool = False) -> dict[str, str]:
    return {step.recipe.space: step.state for step in papers.steps(paper, output, rehearse=rehearse)}


def test_a_sweep_of_the_recipe_counts_under_any_name_and_one_of_another_does_not(tmp_path: Path) -> None:
    assert set(states("posterior", tmp_path).values()) == {papers.MISSING}
    ideal_sweep(tmp_path, SPACE, load_spec(packaged_files()[SPACE], ["scheduler.max_epochs=20"]), "short")
    assert states("posterior", tmp_path)[SPACE] == papers.MISSING
    ideal_sweep(tmp_path, SPACE, name="mine")
    (step,) = [step for step in papers.steps("posterior", tmp_path) if step.recipe.space == SPACE]
    assert (step.sweep, step.state) == ("mine", papers.FINISHED) and "is there as mine" in step.line


def test_the_page_shows_tables_claims_and_what_is_missing(tmp_path: Path) -> None:
    ideal_sweep(tmp_path, SPACE)
    page = papers.paper("posterior", output=tmp_path, run=False)
    text = page.path.read_text("utf-8")
    assert page.filled[0] == 3  # Fig. 2's formula, Fig. 5 g and Fig. 6's CIFAR10-s
    assert "focal_map_lowers_ece" in "".join(page.lines())
    assert "posterior-fig5" in text and "Ψ" in text and "<script" not in text and "REHEARSAL" not in text


def test_trajectories_are_drawn(tmp_path: Path) -> None:
    ideal_sweep(tmp_path, "mukhoti_figures_7_8")
    page = papers.paper("mukhoti", output=tmp_path, run=False, to=tmp_path / "here.html")
    text = page.path.read_text("utf-8")
    assert page.path == tmp_path / "here.html"
    assert text.count("<img") >= 2 and "last_layer_weight_norm" in text and "focal γ 1" in text


def test_missing_data_is_named_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEPER_DATA", str(tmp_path / "nothing"))
    monkeypatch.setattr("sweeper.api.commands.run", lambda *_, **__: pytest.fail("something was started"))
    with pytest.raises(SweeperError, match="experiments lack data or packages, nothing was started") as raised:
        papers.paper("selective", output=tmp_path / "results")
    assert all(f"selective_tables_{name}" in str(raised.value) for name in ("cifar10", "cifar100", "tiny_imagenet"))


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_rehearsal_runs_what_is_missing_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"posterior_figure_3": packaged_files()["posterior_figure_3"]}
    monkeypatch.setattr(papers, "packaged_files", lambda: files)
    said: list[str] = []
    for _ in range(2):
        page = papers.paper(
            "posterior", output=tmp_path, rehearse=True, say=said.append, executor="local", mlflow=False, cpus=1
        )
    assert said == [
        "posterior_figure_3 will be run",
        "running posterior_figure_3",
        "posterior_figure_3 is there as posterior_figure_3-rehearsal",
    ]
    text = page.path.read_text("utf-8")
    assert "REHEARSAL" in text and page.path.name == "paper-posterior-rehearsal.html"
    filled = {table.name: table.filled for table in page.tables}
    assert filled["posterior-fig3"] == 4


def test_the_command_prints_cells_and_verdicts(tmp_path: Path) -> None:
    ideal_sweep(tmp_path, SPACE)
    done = typed("paper", "posterior", "--no-run", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "posterior-fig2: 1 of 1 cells" in lines and f"3 of 26 cells filled; {tmp_path}" in lines[-1]
    assert any(line.startswith(f"focal_map_lowers_ece on {SPACE}: ") for line in lines)
    assert f"{SPACE} is there" in done.stderr


def rehearsal(space: str, output: Path) -> Results:
    """Return an ideal rehearsal of a search space."""
    spec = load_spec(packaged_files()[space], rehearse=True)
    return ideal_sweep(output, space, spec, f"{space}-rehearsal")


def test_a_rehearsed_page_says_what_was_scaled_down_and_judges_nothing(tmp_path: Path) -> None:
    rehearsed = rehearsal("curvature_figures_2_3", tmp_path)
    page = papers.write_page("curvature", tmp_path, rehearse=True)
    text, lines = page.path.read_text("utf-8"), page.lines()
    assert all(each in html.unescape(text) for each in rehearsed.rehearsed)
    assert "No verdict: a rehearsal" in text and "Holds" not in text and "Does not hold" not in text
    assert any(line.endswith(": no verdict, a rehearsal") for line in lines)
    assert all(t.filled for t in page.tables if t.name == "curvature-fig2")


def test_what_a_rehearsal_prints_or_writes_is_marked(tmp_path: Path) -> None:
    name = rehearsal("mukhoti_figures_7_8", tmp_path).name
    where = [name, "--output", str(tmp_path)]
    for command in (["results", *where], ["results", *where, "--sql", "SELECT 1"]):
        assert "REHEARSAL, not a result" in typed(*command).stderr
    csv = typed("results", *where, "--format", "csv").stdout
    assert csv.splitlines()[0].endswith(",rehearsal") and csv.splitlines()[1].lower().endswith(",true")
    table = typed("figure", name, "table", *where[1:], "--format", "csv").stdout
    assert "rehearsal" in table.splitlines()[0]
    ideal_sweep(tmp_path, "mukhoti_figures_7_8")
    for command in (["results", "mukhoti_figures_7_8"], ["figure", "mukhoti_figures_7_8", "table"]):
        done = typed(*command, "--format", "csv", "--output", str(tmp_path))
        assert done.returncode == 0 and "rehears" not in (done.stdout + done.stderr).lower()


def test_a_rehearsal_counts_for_its_own_search_space_alone(tmp_path: Path) -> None:
    """One search space's name begins with another's."""
    longer, shorter = "curvature_figures_2_3_transformers", "curvature_figures_2_3"
    rehearsal = load_spec(packaged_files()[longer], rehearse=True)
    ideal_sweep(tmp_path, longer, rehearsal, f"{longer}-rehearsal-2")
    found = states("curvature", tmp_path, rehearse=True)
    assert (found[longer], found[shorter]) == (papers.FINISHED, papers.MISSING)
    filled = {t.name: t.filled for t in papers.write_page("curvature", tmp_path, rehearse=True).tables}
    assert 0 < filled["curvature-fig2"] < 12
