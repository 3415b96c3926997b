"""The paper's table: the leaderboard's numbers, one best a column, daggers beyond chance alone."""

import csv
import io
import shutil
import subprocess

import pytest

import sweeper
from sweeper.reporting.tables import paper_table
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from tests.sweeper.changed_tables import change
from tests.sweeper.held import held
from tests.sweeper.synthetic_sweep import write_sweep


@pytest.fixture(scope="module")
def results(quickstart_folder) -> Results:
    return held(quickstart_folder)


def cells(results: Results) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(paper_table(results, "csv"))))


def test_rows_are_the_best_of_each_loss_and_network_with_the_leaderboards_numbers(results):
    board, rows = leaderboard(results), cells(results)
    best = {
        (row["loss"], row["architecture"]): row for row in reversed([r for r in board.rows if r["status"] != "failed"])
    }
    assert {(row["loss"], row["network"]) for row in rows} == set(best)
    for row in rows:
        expected = best[row["loss"], row["network"]]
        assert row["trial"].partition(" ")[0] == expected["trial"]
        assert ("epoch" in row["trial"]) == (expected["status"] != "completed")
        assert row["accuracy (%)"] == board.value(expected, "test_accuracy", 100)
        assert row["NLL"] == board.value(expected, "test_nll")


def test_every_column_has_one_best_which_no_other_beats(results):
    rows = cells(results)
    for column, sign in (("accuracy (%)", -1), ("NLL", 1), ("ECE (%)", 1)):
        values = [sign * float(row[column].partition(" ")[0]) for row in rows]
        verdicts = [row[f"{column}: verdict"] for row in rows]
        assert verdicts.count("best") == 1 and values[verdicts.index("best")] == min(values)
        assert set(verdicts) <= {"best", "worse", "alike", "unknown"}


def test_forms_mark_the_same_cells(results):
    verdicts = [row[key] for row in cells(results) for key in row if key.endswith("verdict")]
    latex, markdown = paper_table(results), paper_table(results, "markdown")
    assert latex.count(r"\mathbf{") == markdown.count("**") // 2 == verdicts.count("best")
    assert latex.count(r"^{\dagger}") == verdicts.count("worse")
    assert markdown.partition("\n\n")[0].count("†") == verdicts.count("worse")
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in body}) == 1
    assert r"cross\_entropy" in latex and "cross_entropy" not in latex


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX here")
def test_the_table_compiles(results, tmp_path):
    preamble = r"\documentclass{article}\usepackage{amsmath,booktabs}\begin{document}"
    (tmp_path / "paper.tex").write_text(f"{preamble}\n{paper_table(results)}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and (tmp_path / "paper.pdf").read_bytes().startswith(b"%PDF"), done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "paper.log").read_text("utf-8", errors="replace")


def test_single_replicates_have_no_daggers(tmp_path):
    alone = Results(write_sweep(tmp_path / "alone", replicates=1))
    assert "^{" not in paper_table(alone) and "±" not in paper_table(alone, "csv")


def with_fresh_seeds(source, folder, count, first):
    """Copy a sweep whose best `count` configurations of a loss and network have fresh seeds from replicate `first`."""
    copied = shutil.copytree(source, folder, symlinks=True)
    best = {(row["loss"], row["architecture"]): row["trial"] for row in reversed(leaderboard(Results(copied)).finished)}
    raced = [*best.values()][:count]

    def stage(rows):
        return rows.assign(stage=rows["stage"].mask(rows["trial"].isin(raced) & (rows["replicate"] >= first), "final"))

    change(copied, "evaluations", stage)
    return Results(copied), {*raced}


def test_only_fresh_seeds_are_compared_and_counted(losses_folder, gamma_folder, tmp_path):
    """Trials of the search have seeds that selected them: they enter no test of those with fresh seeds."""
    results, raced = with_fresh_seeds(losses_folder, tmp_path / "losses", 3, 0)
    rows = {row["trial"].partition(" ")[0]: row["NLL: verdict"] for row in cells(results)}
    assert raced <= {*rows} and len(rows) > 3
    assert {trial for trial, verdict in rows.items() if verdict in ("worse", "alike")} <= raced
    results, _ = with_fresh_seeds(gamma_folder, tmp_path / "gamma", 1, 1)
    assert "of 2 to 3 replicates" in paper_table(results)


def test_another_format_is_refused(results):
    with pytest.raises(sweeper.SweeperError, match="format 'html'"):
        paper_table(results, "html")
