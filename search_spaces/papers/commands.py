"""The commands `sweeper paper` and `sweeper claims`, which the entry point group `sweeper.commands` adds.

`paper` runs the missing experiments of a paper, fills its tables and figures and judges its claims. With the name of a
published table or computed figure, it prints only that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from search_spaces import packaged_files
from search_spaces.papers.published_numbers import published_tables, read_published
from sweeper.api import arguments, commands
from sweeper.api.arguments import opened, output_folder
from sweeper.api.finished import FinishedRun, Submitted
from sweeper.core.display import CommandResult, format_table
from sweeper.core.errors import SweeperError
from sweeper.core.labels import REHEARSAL_SUFFIX
from sweeper.space.loading import load_spec
from sweeper.storage.lookup import sweep_names
from sweeper.storage.places import local_copy
from trainables.registry.names import nearest

if TYPE_CHECKING:
    from search_spaces.papers.claims.base import Verdict
    from search_spaces.papers.computed_figures import ComputedFigure
    from search_spaces.papers.finished import FinishedSweep
    from search_spaces.papers.page import Item, PaperPage
    from search_spaces.papers.recipes import Recipe
    from sweeper.execution.slurm.submission import SlurmSubmission
    from sweeper.results import Results

PAPERS = ("curvature", "properness", "mukhoti", "posterior", "selective")

FINISHED, UNFINISHED, MISSING = "finished", "unfinished", "missing"


@dataclass(frozen=True)
class Step:
    """One experiment of a paper.

    Attributes:
        recipe: the shipped search space.
        sweep: name of its existing sweep, else empty.
        state: `finished`, `unfinished` or `missing`.
    """

    recipe: Recipe
    sweep: str
    state: str

    @property
    def line(self) -> str:
        """The next action for this experiment, in one line."""
        named = f" as {self.sweep}" if self.sweep and self.sweep != self.recipe.space else ""
        todo = {FINISHED: "is there", UNFINISHED: "will be resumed", MISSING: "will be run"}[self.state]
        return f"{self.recipe.space} {todo}{named}"


def steps(paper: str, output: str | Path, *, rehearse: bool = False) -> list[Step]:
    """Return a paper's experiments with their sweeps in a results folder.

    A sweep belongs to an experiment if it follows the recipe, whatever its name. A rehearsal, and an experiment that
    fills no table, is recognised by its name.
    """
    from search_spaces.papers.recipes import shipped_recipe

    recipes = [recipe for recipe in map(shipped_recipe, packaged_files()) if recipe.spec.header.paper == paper]
    sweeps = [sweep for sweep in _sweeps(output) if sweep.rehearsed == rehearse]
    return [_step(recipe, sweeps) for recipe in recipes]


def _sweeps(output: str | Path) -> list[FinishedSweep]:
    """Return all sweeps of a results folder."""
    from search_spaces.papers.finished import FinishedSweep
    from sweeper.results import Results

    return [FinishedSweep(Results(Path(output) / name)) for name in sweep_names(output)]


def _step(recipe: Recipe, sweeps: Sequence[FinishedSweep]) -> Step:
    own = [sweep for sweep in sweeps if _is_of(recipe, sweep)]
    # A finished sweep takes precedence over an unfinished one, so that nothing is trained twice.
    for sweep in own:
        if _has_ended(sweep.results):
            return Step(recipe, sweep.name, FINISHED)
    return Step(recipe, own[0].name, UNFINISHED) if own else Step(recipe, "", MISSING)


def _is_of(recipe: Recipe, sweep: FinishedSweep) -> bool:
    tables = recipe.spec.header.tables
    # A rehearsal departs from every recipe by design, so only its name identifies the experiment.
    if sweep.rehearsed or not tables:
        return recipe.named(sweep.name)
    return not sweep.departures(recipe, tables[0])


def _has_ended(results: Results) -> bool:
    """Return whether all trials of a sweep have ended without a failure; failed ones are retried."""
    # An interrupted sweep can have waiting trials without a failed one, so only ended states count.
    (row,) = results.rows(
        "SELECT count(*) AS n, count(*) FILTER (WHERE status NOT IN ('completed', 'early_stopped')) AS open FROM trials"
    )
    return bool(row["n"]) and not row["open"]


def missing_data(plan: Sequence[Step], *, rehearse: bool = False) -> dict[str, str]:
    """Return the data faults of experiments that will be run: search space → path, rule and remedy."""
    from sweeper.planning.preparation import data_of_loop, prepare_dataset

    faults: dict[str, str] = {}
    for recipe in (step.recipe for step in plan if step.state != FINISHED):
        try:
            spec = load_spec(packaged_files()[recipe.space], rehearse=True) if rehearse else recipe.spec
            # A loop's own check trains it, when it is run.
            (prepare_dataset if spec.loop is None else data_of_loop)(spec)
        except SweeperError as error:
            faults[recipe.space] = str(error)
    return faults


def paper(
    name: str,
    *,
    rehearse: arguments.Rehearse = False,
    run: Annotated[bool, Parameter(negative="--no-run")] = True,
    items: bool = False,
    to: str | Path | None = None,
    sweep: arguments.Names = (),
    form: arguments.Form | None = None,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    mlflow: arguments.Mlflow = True,
    address: arguments.Address = None,
    cpus: arguments.Cpus = None,
    executor: arguments.RunsOn = "auto",
    say: arguments.Say = lambda sentence: None,
) -> CommandResult[PaperPage] | CommandResult[list[Item]] | CommandResult[ComputedFigure] | str:
    """Reproduce a paper on one page.

    Runs missing experiments, fills the paper's tables and figures, and judges its claims. Sweeps that follow the
    paper's recipes are used, whatever their names; unfinished ones are resumed. With the name of a table (mukhoti-1),
    prints it filled in from all sweeps; with the name of a figure that needs no training (mukhoti-fig4a, temperatures),
    prints its numbers.

    Args:
        name: Paper (curvature, properness, mukhoti, posterior, selective), or one of its tables or figures.
        run: Run missing experiments, or write the page from existing sweeps.
        items: Only list the paper's tables, figures and statements, their counterparts here, and deviations.
        to: File to write: the page, or a figure as .html, .png, .svg or .pdf. (default: paper-NAME.html in the results)
        sweep: Sweeps to fill in a table from; repeatable. (default: all)
        form: Format of a table (markdown, latex, csv), of numbers (table, json, csv, parquet) or items (table, json).
        say: Receives progress messages.

    Returns:
        The page written, the paper's items, a table's text, or a figure's numbers.

    Raises:
        SweeperError: the name is unknown; data or packages are missing (all are named before anything starts); or a
            sweep cannot be run.
    """
    place = output_folder(output)
    if name in published_tables():
        return _table(name, sweep, place, form or "markdown")
    if name not in PAPERS:
        return _figure(name, form or "table", to)
    if items:
        return _items(name)
    options = {
        "output": place, "tracking_uri": tracking_uri, "mlflow": mlflow, "address": address, "cpus": cpus,
        "executor": executor,
    }  # fmt: skip
    plan = steps(name, place, rehearse=rehearse)
    # All steps are announced, and all data are checked, before anything is trained.
    for step in plan:
        say(step.line)
    if run:
        _require_data(plan, rehearse)
        for step in plan:
            _run(step, rehearse, say, options)
    written = write_page(name, place, rehearse=rehearse, page=to)
    return CommandResult(written, "\n".join(written.lines()))


def _require_data(plan: Sequence[Step], rehearse: bool) -> None:
    faults = missing_data(plan, rehearse=rehearse)
    if faults:
        lines = [f"  {space}: {fault}" for space, fault in faults.items()]
        lacking = "1 experiment lacks" if len(faults) == 1 else f"{len(faults)} experiments lack"
        other = "" if rehearse else ", rehearse with --rehearse"
        raise SweeperError(
            "\n".join([f"{lacking} data or packages, nothing was started", *lines]),
            f"provide them (docs/guides/data.md){other}, or use the existing sweeps with --no-run",
        )


def _table(name: str, sweeps: Sequence[str], output: str, form: str) -> str:
    from search_spaces.papers.finished import FinishedSweep
    from search_spaces.papers.tables import format_paper_table, paper_table
    from sweeper.results import load

    places = [local_copy(sweep, output) for sweep in sweeps] or [(held, Path(output)) for held in sweep_names(output)]
    return format_paper_table(paper_table(name, [FinishedSweep(load(*place)) for place in places]), form)


def _figure(name: str, form: str, to: str | Path | None) -> CommandResult[ComputedFigure]:
    import pyarrow as pa

    from search_spaces.papers.computed_figures import FIGURES
    from sweeper.reporting.html import write_figure

    if name not in FIGURES:
        known = [*PAPERS, *published_tables(), *FIGURES]
        raise SweeperError(
            f"unknown paper, table or figure {name!r}", f"known: {', '.join(known)}{nearest(name, known)}"
        )
    figure = FIGURES[name]()
    text = format_table(pa.Table.from_pylist(figure.rows), form)
    if to is not None:
        write_figure(figure.figure(name), Path(to))
    return CommandResult(figure, text, json=figure.rows, notes=figure.remarks)


def claims(
    name: str | None = None, *, claim: Sequence[str] = (), output: arguments.Output = None
) -> CommandResult[list[Verdict]]:
    """Judge claims of papers on a sweep by rules fixed in advance.

    A claim holds, does not hold, or is undecided.

    Args:
        name: Name or path of a sweep. (default: list every claim and its rule)
        claim: Claim to judge; repeatable. (default: the claims that the search space names)

    Returns:
        A verdict for each claim, with the sentence behind it.
    """
    from search_spaces.papers.judging import claims_table, judge_claims, verdict_lines

    if name is None:
        return CommandResult([], claims_table(), wrap=False)
    results = opened(name, output)
    verdicts, rehearsal = judge_claims(results, list(claim) or None), bool(results.rehearsed)
    return CommandResult(
        verdicts,
        Text("\n".join(verdict_lines(verdicts, rehearsal=rehearsal))),
        json=[{**verdict.to_dict(), "rehearsal": rehearsal} for verdict in verdicts],
    )


def _items(paper: str) -> CommandResult[list[Item]]:
    from search_spaces.papers.page import items, items_table

    held = items(paper)
    return CommandResult(held, items_table(held))


def _run(step: Step, rehearse: bool, say: arguments.Say, options: Mapping[str, Any]) -> None:
    if step.state == FINISHED:
        return
    say(f"{'resuming' if step.state == UNFINISHED else 'running'} {step.recipe.space}")
    done: FinishedRun | Submitted | SlurmSubmission
    if step.state == UNFINISHED:
        done = commands.resume(step.sweep, failed=True, **options)
    else:
        # A recipe's overrides name files of its data, which a rehearsal replaces.
        overrides = () if rehearse else step.recipe.overrides
        done = commands.run(step.recipe.space, set=overrides, rehearse=rehearse, **options)
    if not isinstance(done, FinishedRun):
        raise SweeperError("a paper's sweeps need a Ray cluster", "give the cluster's address, not its dashboard's")
    if done.outcome != FINISHED:
        raise SweeperError(
            f"the sweep {done.name!r} was {done.outcome}", f"continue with the same command: {done.name}"
        )


def write_page(
    paper: str, output: str | Path = "results", *, rehearse: bool = False, page: str | Path | None = None
) -> PaperPage:
    """Write a paper's page from the sweeps in a results folder. Raises SweeperError."""
    # Imported here: `sweeper --help` loads this file, and these modules import torch.
    from search_spaces.papers.judging import judge_claims, named_claims
    from search_spaces.papers.page import write_paper_page
    from search_spaces.papers.tables import paper_table

    plan, sweeps = steps(paper, output, rehearse=rehearse), _sweeps(output)
    # A dict keeps the paper's order of tables and drops repetitions.
    names = dict.fromkeys(table for step in plan for table in step.recipe.spec.header.tables)
    names |= dict.fromkeys(_computed_tables(paper))
    tables = [paper_table(name, sweeps, rehearsed=rehearse) for name in names]
    by_name = {sweep.name: sweep.results for sweep in sweeps}
    own = [by_name[step.sweep] for step in plan if step.sweep]
    verdicts = {results.name: judge_claims(results) for results in own if named_claims(results)}
    place = (
        Path(page) if page is not None else Path(output) / f"paper-{paper}{REHEARSAL_SUFFIX if rehearse else ''}.html"
    )
    return write_paper_page(place, paper, tables, verdicts, own)


def _computed_tables(paper: str) -> Iterator[str]:
    """Yield the paper's tables whose numbers need no training."""
    for name in published_tables():
        if name.startswith(f"{paper}-") and not any(number.dataset for number in read_published(name)):
            yield name
