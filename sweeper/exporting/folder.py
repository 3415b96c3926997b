"""Write an exported model's folder: the program, the weights, a description and the model card.

program.pt2                 torch.export: raw inputs → calibrated probabilities
weights_r0.safetensors      a replicate's weights, by the parameter names of its architecture
model.json                  input (columns, categories, words) and output, class names, source
model_card.md               model card for people
tokenizer/                  tokenizer of a text data set that has one
MLmodel, code/, …           files of an MLflow model: `mlflow models serve --model-uri model/`
model.onnx                  the program for runtimes without torch, on request
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np
import torch

from sweeper.core.display import printable
from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.labels import BOUND_CAUSES, label
from sweeper.exporting.chosen import Chosen, Description, chosen_networks
from sweeper.exporting.program import (
    CalibratedNetworks,
    RawNetworks,
    exported_program,
    joint_logits,
    largest_difference,
    raw_batches,
    reader_for,
    require_onnx,
    write_onnx,
)
from sweeper.reporting.standings import standings_of
from sweeper.results import Results
from sweeper.results.predictions import FITTED_ON, MEASURED_ON
from sweeper.results.queries import literal
from sweeper.storage.metadata import read_manifest
from sweeper.tracking.mlflow.model_files import write_mlflow_files
from trainables.curvature.statistics.base import headline_columns
from trainables.datasets.base import DataSet
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.datasets.raw_inputs import TokenizerIds, described
from trainables.files.atomic import temporary_folder
from trainables.metrics import HEADLINES, METRIC_NAMES, METRICS, evaluate_probabilities, reliability_bins
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.metrics.evaluate import bootstrap_standard_error
from trainables.posthoc import Calibrator, PosthocUnavailable, fit
from trainables.registry import entry_label
from trainables.training.evaluation import resolved_method

NONE = "none"
PROGRAM, DESCRIPTION, CARD, ONNX = "program.pt2", "model.json", "model_card.md", "model.onnx"
#: Folder of a text data set's tokenizer.
TOKENIZER = "tokenizer"
#: Format of `model.json`; `load_model` refuses any other.
FORMAT = 2

#: Number of samples with which a program is traced. More than one is needed, because torch treats a size of 1 as a
#: constant.
EXAMPLES = 4

#: Number of test samples per call of the program.
BATCH = 1024

#: Largest difference between the program's probabilities and the sweep's (our choice). If it is larger, the weights are
#: probably not those of the sweep. A GPU that rounds products to TF32 differs by about a third of this limit.
LARGEST_DIFFERENCE = 0.01

#: Headline metrics that can be computed from probabilities and targets.
CARD_METRICS = tuple(name for name in HEADLINES if name in METRIC_NAMES)

#: Quantile of the standard normal distribution at .975, for 95 % intervals from bootstrap standard errors.
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Exported:
    """The result of an export.

    Attributes:
        folder: folder of the model.
        trial, replicates: source of the weights.
        posthoc: label of the post-hoc method, or `none`.
        difference: largest difference between the program's test probabilities and the probabilities of the stored
            logits.
        samples: number of test samples; all were compared.
        description: contents of `model.json`.
        again: largest difference between the logits of retrained weights and the sweep's logits; 0 if all bits are
            equal, `None` if the sweep's own weights were exported.
        logged: description of where it is in MLflow.
        why: reason for the choice, e.g. `best by validation NLL`; empty if the user named the trial.
        left_out: numbers of the replicates that are not part of the ensemble, because they have no weights.
    """

    folder: Path
    trial: str
    replicates: list[int]
    posthoc: str
    difference: float
    samples: int
    description: Description = field(repr=False)
    again: float | None = None
    logged: str | None = None
    why: str = ""
    left_out: Sequence[int] = ()

    def __str__(self) -> str:
        """Describe the model, and how closely its program reproduces the sweep."""
        why = f" ({self.why})" if self.why else ""
        near = f"within {self.again:.1g}" if self.again else "bit for bit"
        more = "" if self.again is None else f"; trained again, logits equal the sweep's {near}"
        if "onnx" in self.description:
            more += f"; {ONNX} equals the program within {self.description['onnx']['largest_difference']:.1g}"
        if self.left_out:
            more += (
                f"; without replicate {_numbers(self.left_out)}, whose weights are gone: --retrain trains them again"
            )
        return (
            f"{self.folder}: {self.trial}{why}, replicate {_numbers(self.replicates)}, "
            f"post-hoc {self.posthoc}; probabilities of the {self.samples:,} test samples equal the sweep's "
            f"within {self.difference:.1g}{more}"
            + (f"; {self.logged}" if self.logged else "")
            + ("\nwarning: " + undetermined(self.description["posthoc"]) if self.at_bound else "")
        )

    @property
    def at_bound(self) -> bool:
        """Whether the fit of the post-hoc method ended at a bound. Validation data then do not determine it."""
        return bool(self.description["posthoc"]["parameters"].get("at_bound"))


def _numbers(replicates: Sequence[int]) -> str:
    return ", ".join(map(str, replicates))


def undetermined(posthoc: Description) -> str:
    """Return the warning that validation data do not determine a post-hoc method, given as in `model.json`."""
    return (
        f"validation data do not determine {posthoc['method']}, whose fit ended at its bound ({BOUND_CAUSES}): give "
        f"more validation data, or export with --posthoc {NONE}"
    )


def export_model(
    name: str,
    output: Path,
    to: Path,
    *,
    trial: str = "best",
    by: str | None = None,
    replicate: str | None = None,
    posthoc: str = "temperature",
    store: str | None = None,
    trust: bool = False,
    retrain: bool = False,
    onnx: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write a trained network, or all replicates of a trial, with a post-hoc method into a new folder.

    Args:
        name: name of the sweep on this machine.
        output: directory of results.
        to: folder to create.
        trial: name of the trial, or `best`.
        by: metric that decides which trial is best; by default the sweep's objective.
        replicate: number of the replicate, or `all` for an ensemble; by default the first that has weights.
        posthoc: label or name of a post-hoc method that the sweep measured; `none` for the network's own probabilities.
        store: address of the sweep, if it is in an object store.
        trust: whether to run code from the sweep's folder.
        retrain: whether to train the trial again if its weights are missing.
        onnx: whether to also write an ONNX file.
        say: called with lines on the progress of retraining.

    Raises:
        SweeperError: the model cannot be exported; nothing was written.
    """
    # These cheap checks come first, because loading, and perhaps retraining, takes minutes.
    if os.path.lexists(to):
        raise SweeperError(f"{to} exists already", "pass --to a folder that does not exist yet")
    if onnx:
        require_onnx()
    chosen = chosen_networks(name, output, trial, replicate, by=by, store=store, trust=trust, retrain=retrain, say=say)
    calibrator, stated = _fitted(chosen, posthoc)
    calibrated = CalibratedNetworks([trained.network for trained in chosen.networks], calibrator)
    module = RawNetworks(chosen.dataset, calibrated).eval()
    example = next(raw_batches(chosen.dataset, EXAMPLES))  # real samples: some networks cannot run on zeros
    program = exported_program(module, example)
    measured = {part: _reference(chosen, calibrator, part) for part in (FITTED_ON, MEASURED_ON)}
    reference = {part: probabilities for part, (probabilities, _) in measured.items()}
    probabilities = _probabilities(program, chosen.dataset)
    difference = largest_difference(probabilities, reference[MEASURED_ON])
    if not difference <= LARGEST_DIFFERENCE:  # also true for NaN
        raise _differs(chosen, difference)
    description = _description(chosen, example, posthoc, calibrator, stated, difference)
    description["metrics"] = {part: metrics for part, (_, metrics) in measured.items()}
    card = model_card(chosen, description, reference)
    with writing_to(to, "pass --to another folder"):
        to.parent.mkdir(parents=True, exist_ok=True)
        # The folder is written next to `to` and renamed, so it appears only when it is complete.
        with temporary_folder(to.parent) as made:
            if onnx:
                raw = raw_batches(chosen.dataset, BATCH)
                description["onnx"] = {"largest_difference": write_onnx(program, made / ONNX, raw, probabilities)}
            _write(made, chosen, program, example, description, card)
            made.rename(to)
    numbers = description["source"]["replicates"]
    return Exported(
        *(to, chosen.trial, numbers, posthoc, difference, len(probabilities), description, chosen.again),
        why=chosen.why,
        left_out=chosen.left_out,
    )


def _fitted(chosen: Chosen, posthoc: str) -> tuple[Calibrator | None, Description]:
    """Fit the method as the sweep's evaluations did; return it with its options."""
    if posthoc == NONE:
        return None, {}
    measured = {entry_label(entry): entry for entry in chosen.sweep.spec.evaluation.posthoc}
    # A name suffices if only one measured method has it. Otherwise the label is needed.
    named = [entry for entry in measured.values() if entry["name"] == posthoc]
    if posthoc not in measured and len(named) != 1:
        known = ", ".join(measured) or "none"
        raise SweeperError(
            f"the sweep {chosen.sweep.name!r} did not measure the post-hoc method {posthoc!r}",
            f"measured: {known}; choose one of them, or --posthoc {NONE}",
        )
    entry = measured[posthoc] if posthoc in measured else named[0]
    method, options, part = resolved_method(entry, chosen.configuration["loss"])
    stored = [trained.stored for trained in chosen.networks]
    if part not in stored[0].logits:
        raise SweeperError(
            f"the sweep stored no predictions of {part}, on which {posthoc} is fitted", f"choose --posthoc {NONE}"
        )
    try:
        logits = joint_logits([predictions.logits[part] for predictions in stored])
        calibrator = fit(method, logits, stored[0].targets[part], **options)
    except PosthocUnavailable as error:
        raise SweeperError(f"{posthoc} cannot be fitted on {chosen.trial}: {error}") from error
    return calibrator, options


def _reference(chosen: Chosen, calibrator: Calibrator | None, part: str) -> tuple[Floats, dict[str, float]]:
    """Compute probabilities and their CARD_METRICS from the sweep's stored logits, without torch."""
    logits = joint_logits([trained.stored.logits[part] for trained in chosen.networks])
    targets = _targets(chosen, part)
    try:
        probabilities = softmax64(logits) if calibrator is None else calibrator(logits)
    except PosthocUnavailable as error:
        raise SweeperError(f"the post-hoc method cannot be applied to {chosen.trial}: {error}") from error
    # The NLL of a probability that underflows to 0 would be infinite. With these logits it is finite.
    exact = logits if calibrator is None else calibrator.underflowed(logits, probabilities)
    bins = chosen.sweep.spec.evaluation.bins
    return probabilities, evaluate_probabilities(probabilities, targets, bins, CARD_METRICS, exact)


def _targets(chosen: Chosen, part: str) -> Integers:
    return chosen.networks[0].stored.targets[part]


@torch.no_grad()
def _probabilities(program: torch.export.ExportedProgram, dataset: DataSet) -> Floats:
    """Compute the program's probabilities of the raw test samples [N, K]."""
    run = program.module()
    return np.asarray(torch.cat([run(inputs) for inputs in raw_batches(dataset, BATCH)]).double().numpy())


def _differs(chosen: Chosen, difference: float) -> SweeperError:
    """Return the error for a program whose probabilities are not the sweep's."""
    rule = f"the program's test probabilities differ from the sweep's by {difference:.2g}"
    if chosen.again is None:
        reason = f"the checkpoint or the data set differs from the one that {chosen.trial} was measured with"
        return SweeperError(f"{rule}: {reason}", "restore both from a backup; nothing was written")
    return SweeperError(
        f"{rule}: retraining {chosen.trial} gave a different network; a different machine, torch release or number "
        "of lanes can cause this",
        "train it where the sweep ran, or export a trial that has its checkpoint; nothing was written",
    )


def _description(
    chosen: Chosen,
    example: torch.Tensor,
    posthoc: str,
    calibrator: Calibrator | None,
    options: Description,
    difference: float,
) -> Description:
    dataset = chosen.dataset
    manifest = read_manifest(chosen.sweep.paths.manifest)
    standing = standings_of(Results(chosen.sweep.paths.root)).get(chosen.trial)
    return {
        "format": FORMAT,
        "input": _input(dataset, example),
        "output": {"classes": dataset.classes, "dtype": "float32", "meaning": "calibrated probabilities"},
        "class_names": list(dataset.class_names) or [*map(str, range(dataset.classes))],
        "pictures": _pictures(dataset),
        "posthoc": {
            "method": posthoc,
            "options": dict(options),
            "parameters": {} if calibrator is None else calibrator.parameters,
        },
        "source": {
            "sweep": chosen.sweep.name,
            "trial": chosen.trial,
            "replicates": [trained.stored.replicate for trained in chosen.networks],
            "epoch": chosen.epoch,
            "configuration": dict(chosen.configuration),
            "dataset": dict(chosen.configuration.get("dataset") or chosen.sweep.spec.dataset),
            "dataset_facts": manifest.get("dataset") or {},
            "split_hash": dataset.split_hash,
            "git": manifest.get("git"),
            "versions": manifest.get("versions", {}),
            "rehearsed": list(chosen.sweep.spec.rehearsed or ()),
            "standing": None if standing is None else standing.facts,
            "trained_again": None if chosen.again is None else {"largest_logit_difference": chosen.again},
        },
        "largest_test_difference": difference,
        "torch": torch.__version__,
    }


def _input(dataset: DataSet, example: torch.Tensor) -> Description:
    """Describe the program's input, and the reader that makes it."""
    reader = reader_for(dataset)
    if isinstance(reader, TokenizerIds):
        reader = replace(reader, folder=TOKENIZER)
    tensor = {"shape": list(example.shape[1:]), "dtype": str(example.dtype).removeprefix("torch.")}
    return {**described(reader), **tensor, "transformed": dataset.transform is not None}


def _pictures(dataset: DataSet) -> Description | None:
    """Return how the data set decodes image files, `None` if it has no colour images."""
    shape, source = dataset.test.inputs.shape, dataset.test.source
    if not isinstance(dataset.test.preprocessing, ImagePreprocessing) or shape[1] != 3 or dataset.transform:
        return None
    return {"side": shape[-1], "resized": None if source is None else source.view.resized}


def _write(
    folder: Path,
    chosen: Chosen,
    program: torch.export.ExportedProgram,
    example: torch.Tensor,
    description: Description,
    card: str,
) -> None:
    """Write all files except the ONNX file into a folder."""
    from safetensors.torch import save

    description["program_sha256"] = write_program(program, folder / PROGRAM)
    for trained in chosen.networks:
        # Tensors are cloned, because safetensors refuses tensors that share memory, such as tied weights.
        weights = {name: value.detach().clone() for name, value in trained.network.state_dict().items()}
        (folder / f"weights_r{trained.stored.replicate}.safetensors").write_bytes(save(weights))
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2, default=str) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    reader = reader_for(chosen.dataset)
    if isinstance(reader, TokenizerIds):
        reader.tokenizer.save_pretrained(folder / TOKENIZER)
    write_mlflow_files(folder, chosen.dataset.classes, reader, example[:1].numpy())


def write_program(program: torch.export.ExportedProgram, file: Path) -> str:
    """Write a program and return its SHA-256, by which `load_model` knows it. Raises OSError if the disk is full."""
    # torch's own writer of files ends the process if the disk is full.
    data = io.BytesIO()
    torch.export.save(program, data)
    file.write_bytes(data.getbuffer())
    return hashlib.sha256(data.getbuffer()).hexdigest()


def model_card(chosen: Chosen, description: Description, probabilities: Mapping[str, Floats]) -> str:
    """Render the model card as Markdown: the model, its metrics and its limits.

    Args:
        chosen: the exported networks.
        description: contents of `model.json`.
        probabilities: split → probabilities [N, K].
    """
    bins = chosen.sweep.spec.evaluation.bins
    columns = [
        _intervals(description["metrics"][part], values, _targets(chosen, part), bins)
        for part, values in probabilities.items()
    ]
    text = resources.files("sweeper.exporting").joinpath("card.md").read_text("utf-8")
    template = jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    card: str = template.render(
        **description,
        bins=bins,
        configuration=chosen.configuration,
        data=chosen.dataset,
        measured=[*zip(map(label, CARD_METRICS), *columns, strict=True), *_curvature(chosen)],
        reliability=reliability_bins(probabilities[MEASURED_ON], _targets(chosen, MEASURED_ON), bins),
        cell=_cell,
        listed=_listed,
        named=_named,
        undetermined=undetermined,
    )
    return card


def _intervals(values: Mapping[str, float], probabilities: Floats, targets: Integers, bins: int) -> list[str]:
    """Format the CARD_METRICS with their 95 % intervals."""
    errors = bootstrap_standard_error(CARD_METRICS, probabilities, targets, bins)
    texts = []
    for name in CARD_METRICS:
        value, half = values[name], NORMAL_95 * errors[f"{name}_se"]
        high = min(value + half, METRICS[name].range[1])  # a normal interval can exceed a metric's range
        texts.append(f"{value:.4f} ({max(value - half, 0.0):.4f} … {high:.4f})")
    return texts


def _curvature(chosen: Chosen) -> list[tuple[str, str, str]]:
    """Return the card's rows on the weights' curvature on validation data; empty if it was not measured."""
    results = Results(chosen.sweep.paths.root)
    columns = set(results.columns("evaluations"))
    present = [name for name in headline_columns() if name in columns]
    if not present:
        return []
    numbers = ", ".join(str(trained.stored.replicate) for trained in chosen.networks)
    means = ", ".join(f"avg({name}) AS {name}" for name in present)
    rows = results.rows(
        f"SELECT {means} FROM evaluations WHERE trial = {literal(chosen.trial)} AND epoch = {chosen.epoch} "
        f"AND split = '{FITTED_ON}' AND replicate IN ({numbers})"
    )
    return [(label(name), f"{rows[0][name]:.4g}", "") for name in present if rows and rows[0][name] is not None]


def _listed(values: Mapping[str, object], form: str) -> str:
    return ", ".join(form % pair for pair in values.items())


def _cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return printable(text).replace("|", "\\|")


def _named(values: Mapping[str, object]) -> str:
    others = _listed({key: value for key, value in values.items() if key != "name"}, "%s %s")
    return f"{values['name']} ({others})" if others else str(values["name"])
