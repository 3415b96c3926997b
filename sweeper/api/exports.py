"""Taking results home, as functions: `sweeper.export`, `load_model`, `figure` and `table`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sweeper.api.arguments import output_folder
from sweeper.remote.reach import local_sweep, local_tracking
from sweeper.storage.places import READING, place_of, split_name

if TYPE_CHECKING:
    from sweeper.exporting.folder import Exported
    from sweeper.exporting.model import ExportedModel


def export(
    name: str,
    to: str | Path,
    *,
    trial: str = "best",
    replicate: str | int = "0",
    posthoc: str = "temperature",
    trust: bool = False,
    retrain: bool = False,
    onnx: bool = False,
    say: Callable[[str], None] = lambda line: None,
    mlflow: bool = False,
    register: str | None = None,
    tracking_uri: str | None = None,
    output: str | Path | None = None,
) -> Exported:
    """Write a trained network as a calibrated program; like `sweeper export`.

    Args:
        name: of the sweep.
        to: the folder to make.
        trial: its name, or `best`.
        replicate: its number, or `all` for an ensemble of them.
        posthoc: a method that the sweep measured, or `none`.
        trust: as of `resume`.
        retrain: train the trial again if its weights are gone.
        onnx: write an ONNX file, too; needs the extra `onnx`.
        say: takes lines on how far training again is.
        mlflow: log the model in MLflow with its trial's run.
        register: register it there, too, under this name with the alias `best`.
        tracking_uri: MLflow's store; by default the sweep's.
        output: directory or store of the sweep.

    Raises:
        SweeperError: why it cannot be exported; nothing was written.
    """
    from sweeper.exporting.folder import export_model
    from sweeper.tracking.mlflow.logged_model import log_model

    place = output_folder(output)
    sweep, parent = split_name(name, place)
    store = place_of(parent, READING).store
    found = local_sweep(name, place)
    done = export_model(
        *found,
        Path(to),
        trial=trial,
        replicate=str(replicate),
        posthoc=posthoc,
        store=store.child(sweep).uri if store is not None else None,
        trust=trust,
        retrain=retrain,
        onnx=onnx,
        say=say,
    )
    if mlflow or register is not None:
        uri = local_tracking(tracking_uri, Path(found[1]))
        done = replace(done, logged=log_model(done.folder, found[0], Path(found[1]), uri, register).sentence())
    return done


def load_model(path: str | Path) -> ExportedModel:
    """Return an exported model, whose `predict` gives calibrated probabilities.

    Raises:
        SweeperError: there is none, or it is damaged.
    """
    from sweeper.exporting.model import load_model as load

    return load(path)


def figure(name: str, figure: str, to: str | Path, *, output: str | Path | None = None) -> Path:
    """Draw a figure of the report into a file, and return its path; like `sweeper figure`.

    Args:
        name: of the sweep.
        figure: e.g. `learning_curves`.
        to: the file; `.pdf`, `.svg` or `.png`.
        output: directory or store of the sweep.

    Raises:
        SweeperError: an unknown figure or format, or one that does not apply to the sweep.
    """
    from sweeper.figures.on_paper import write_report_figure
    from sweeper.results import load

    write_report_figure(load(*local_sweep(name, output_folder(output))), figure, Path(to))
    return Path(to)


def table(name: str, *, form: str = "markdown", output: str | Path | None = None) -> str:
    """Return the best of each loss on each network as a paper's table; like `sweeper table`.

    Args:
        name: of the sweep.
        form: `latex`, `markdown` or `csv`.
        output: directory or store of the sweep.

    Raises:
        SweeperError: another format, or nothing was evaluated.
    """
    from sweeper.exporting.table import paper_table
    from sweeper.results import load

    return paper_table(load(*local_sweep(name, output_folder(output))), form)
