"""An exported model's folder: the program, the weights, what they take and give, and the model card.

program.pt2                 torch.export: network inputs → calibrated probabilities
weights_r0.safetensors      a replicate's weights, by the names that its architecture gives them
model.json                  input and output, preprocessing, class names, where it comes from
model_card.md               for people
MLmodel, code/, …            what makes it one of MLflow's folders: `mlflow models serve --model-uri model/`
model.onnx                  the program for runtimes without torch, where it was asked for
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import jinja2
import numpy as np
import torch
import yaml
from numpy.typing import NDArray

from sweeper.core.errors import SweeperError, writing_to
from sweeper.core.labels import label
from sweeper.exporting import served
from sweeper.exporting.chosen import Chosen, Description, chosen_networks
from sweeper.exporting.program import (
    CalibratedNetworks,
    exported_program,
    joint_logits,
    largest_difference,
    require_onnx,
    write_onnx,
)
from sweeper.results import Results
from sweeper.results.predictions import FITTED_ON, MEASURED_ON
from sweeper.results.queries import literal
from sweeper.storage.metadata import read_manifest
from trainables.curvature.statistics.base import headline_columns
from trainables.datasets.base import Split, evaluation_batches
from trainables.files.atomic import temporary_folder
from trainables.metrics import HEADLINES, METRIC_NAMES, METRICS, evaluate_probabilities, reliability_bins
from trainables.metrics.base import Floats, Integers, softmax64
from trainables.metrics.bootstrap import bootstrap_standard_error
from trainables.posthoc import Calibrator, PosthocUnavailable, fit
from trainables.registry import entry_label
from trainables.training.evaluation import resolved_method

NONE = "none"
PROGRAM, DESCRIPTION, CARD, ONNX = "program.pt2", "model.json", "model_card.md", "model.onnx"
FORMAT = 1

#: Samples that a program is traced with: more than one, because torch takes a size of 1 for a constant.
EXAMPLES = 4

#: Between the program's probabilities and the sweep's, above which the weights are not those of the predictions; a GPU
#: that rounds products to TF32 differs by about a third of it. Our choice.
LARGEST_DIFFERENCE = 0.01

#: Those headlines that probabilities and targets alone give.
CARD_METRICS = tuple(name for name in HEADLINES if name in METRIC_NAMES)

#: The standard normal distribution's quantile at .975.
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        folder: where.
        trial, replicates: whose weights.
        posthoc: the method's label, or `none`.
        difference: the largest between the program's test probabilities and those of the sweep's stored logits.
        samples: of the test split, all of which were compared.
        again: None where the sweep's own weights were exported; else how far the logits of those that were trained
            again lie from the sweep's, 0 for equal bits.
        logged: where it is in MLflow, in words.
        why: `best by validation NLL`; empty where the trial was named.
        description: the contents of `model.json`.
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

    def __str__(self) -> str:
        """Return what was written, and how closely the program reproduces the sweep."""
        why = f" ({self.why})" if self.why else ""
        near = f"within {self.again:.1g}" if self.again else "bit for bit"
        more = "" if self.again is None else f"; trained again, logits equal the sweep's {near}"
        if "onnx" in self.description:
            more += f"; {ONNX} equals the program within {self.description['onnx']['largest_difference']:.1g}"
        return (
            f"{self.folder}: {self.trial}{why}, replicate {', '.join(map(str, self.replicates))}, "
            f"post-hoc {self.posthoc}; probabilities of the {self.samples:,} test samples equal the sweep's "
            f"within {self.difference:.1g}{more}"
            + (f"; {self.logged}" if self.logged else "")
            + ("\nwarning: " + undetermined(self.description["posthoc"]) if self.at_bound else "")
        )

    @property
    def at_bound(self) -> bool:
        """Whether validation data do not determine the post-hoc method's fit."""
        return bool(self.description["posthoc"]["parameters"].get("at_bound"))


def undetermined(posthoc: Description) -> str:
    """Return that validation data do not determine a post-hoc method, with the remedy; `posthoc` as in `model.json`."""
    return (
        f"validation data do not determine {posthoc['method']}, whose fit ended at its bound (too few samples, all "
        f"predicted right, or none of a class): give more validation data, or export with --posthoc {NONE}"
    )


def export_model(
    name: str,
    output: Path,
    to: Path,
    *,
    trial: str = "best",
    by: str | None = None,
    replicate: str = "0",
    posthoc: str = "temperature",
    store: str | None = None,
    trust: bool = False,
    retrain: bool = False,
    onnx: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Exported:
    """Write a trained network, or all replicates of a trial, with a post-hoc method into a new folder.

    Args:
        name: of the sweep on this machine.
        output: where it is.
        to: the folder to make.
        trial: its name, or `best`.
        by: the metric that decides which is best; the sweep's objective by default.
        replicate: its number, or `all` for an ensemble.
        posthoc: a method that the sweep measured, by its label or name; `none` for the network's own probabilities.
        store: the sweep's address in an object store, if it is there.
        trust: run the code that came with the sweep's folder.
        retrain: train the trial again if its weights are gone.
        onnx: write an ONNX file, too.
        say: takes lines on how far training again is.

    Raises:
        SweeperError: why it cannot be exported; nothing was written.
    """
    if os.path.lexists(to):
        raise SweeperError(f"{to} exists", "give --to a folder that does not exist yet")
    if onnx:
        require_onnx()
    chosen = chosen_networks(name, output, trial, replicate, by=by, store=store, trust=trust, retrain=retrain, say=say)
    calibrator, stated = _fitted(chosen, posthoc)
    module = CalibratedNetworks([each.network for each in chosen.networks], calibrator).eval()
    split = chosen.dataset.splits[MEASURED_ON]
    example = split.head(EXAMPLES)
    program = exported_program(module, example)
    measured = {part: _reference(chosen, calibrator, part) for part in (FITTED_ON, MEASURED_ON)}
    reference = {part: probabilities for part, (probabilities, _) in measured.items()}
    found = _probabilities(program, split)
    difference = largest_difference(found, reference[MEASURED_ON])
    if not difference <= LARGEST_DIFFERENCE:
        raise _differs(chosen, difference)
    description = _description(chosen, example, posthoc, calibrator, stated, difference)
    description["metrics"] = {part: metrics for part, (_, metrics) in measured.items()}
    card = model_card(chosen, description, reference)
    with writing_to(to, "give --to another folder"):
        to.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(to.parent) as made:
            if onnx:
                description["onnx"] = {"largest_difference": write_onnx(program, made / ONNX, split, found)}
            _write(made, chosen, program, example, description, card)
            made.rename(to)
    numbers = description["source"]["replicates"]
    return Exported(
        to, chosen.trial, numbers, posthoc, difference, len(split), description, chosen.again, why=chosen.why
    )


def _fitted(chosen: Chosen, posthoc: str) -> tuple[Calibrator | None, Description]:
    """Return the method fitted as the sweep's evaluations fit it, and its options."""
    if posthoc == NONE:
        return None, {}
    measured = {entry_label(entry): entry for entry in chosen.sweep.spec.evaluation.posthoc}
    named = [entry for entry in measured.values() if entry["name"] == posthoc]
    if posthoc not in measured and len(named) != 1:
        known = ", ".join(measured) or "none"
        raise SweeperError(
            f"the sweep {chosen.sweep.name!r} did not measure the post-hoc method {posthoc!r}",
            f"measured: {known}; choose one of them, or --posthoc {NONE}",
        )
    entry = measured[posthoc] if posthoc in measured else named[0]
    method, options, part = resolved_method(entry, chosen.configuration["loss"])
    stored = [each.stored for each in chosen.networks]
    if part not in stored[0].logits:
        raise SweeperError(
            f"the sweep stored no predictions of {part}, which {posthoc} is fitted on", f"choose --posthoc {NONE}"
        )
    try:
        logits = joint_logits([each.logits[part] for each in stored])
        calibrator = fit(method, logits, stored[0].targets[part], **options)
    except PosthocUnavailable as error:
        raise SweeperError(f"{posthoc} cannot be fitted on {chosen.trial}: {error}") from error
    return calibrator, options


def _reference(chosen: Chosen, calibrator: Calibrator | None, part: str) -> tuple[Floats, dict[str, float]]:
    """Return the probabilities that the sweep's stored logits give, computed without torch, and their CARD_METRICS."""
    logits, targets = joint_logits([each.stored.logits[part] for each in chosen.networks]), _targets(chosen, part)
    probabilities = softmax64(logits) if calibrator is None else calibrator(logits)
    exact = logits if calibrator is None else calibrator.underflowed(logits, probabilities)
    bins = chosen.sweep.spec.evaluation.bins
    return probabilities, evaluate_probabilities(probabilities, targets, bins, CARD_METRICS, exact)


def _targets(chosen: Chosen, part: str) -> Integers:
    return chosen.networks[0].stored.targets[part]


@torch.no_grad()
def _probabilities(program: torch.export.ExportedProgram, split: Split) -> Floats:
    """Return the program's probabilities of a split [N, K]."""
    run = program.module()
    return np.asarray(torch.cat([run(inputs) for inputs, _ in evaluation_batches(split, 1024)]).double().numpy())


def _differs(chosen: Chosen, difference: float) -> SweeperError:
    """Return why a program whose probabilities are not the sweep's is not written."""
    apart = f"the program's test probabilities differ from the sweep's by {difference:.2g}"
    if chosen.again is None:
        reason = f"the checkpoint or the data set differs from the one that {chosen.trial} was measured with"
        return SweeperError(f"{apart}: {reason}", "restore both as they were; nothing was written")
    return SweeperError(
        f"{apart}: retraining {chosen.trial} gave a different network; a different machine, torch release or number "
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
    split, dataset = chosen.dataset.test, chosen.dataset
    images = split.preprocessing
    manifest = read_manifest(chosen.sweep.paths.manifest)
    return {
        "format": FORMAT,
        "input": {"shape": list(example.shape[1:]), "dtype": str(example.dtype).removeprefix("torch.")},
        "output": {"classes": dataset.classes, "dtype": "float32", "meaning": "calibrated probabilities"},
        "class_names": list(dataset.class_names) or [str(each) for each in range(dataset.classes)],
        "preprocessing": images and {"stored_shape": list(split.inputs.shape[1:]), **asdict(images)},
        "posthoc": {
            "method": posthoc,
            "options": dict(options),
            "parameters": {} if calibrator is None else calibrator.parameters,
        },
        "source": {
            "sweep": chosen.sweep.name,
            "trial": chosen.trial,
            "replicates": [each.stored.replicate for each in chosen.networks],
            "epoch": chosen.epoch,
            "configuration": dict(chosen.configuration),
            "dataset": dict(chosen.configuration.get("dataset") or chosen.sweep.spec.dataset),
            "dataset_facts": manifest.get("dataset") or {},
            "split_hash": dataset.split_hash,
            "git": manifest.get("git"),
            "versions": manifest.get("versions", {}),
            "rehearsed": list(chosen.sweep.spec.rehearsed or ()),
            "trained_again": None if chosen.again is None else {"largest_logit_difference": chosen.again},
        },
        "largest_test_difference": difference,
        "torch": torch.__version__,
    }


def _write(
    folder: Path,
    chosen: Chosen,
    program: torch.export.ExportedProgram,
    example: torch.Tensor,
    description: Description,
    card: str,
) -> None:
    """Write all files but ONNX's into a folder."""
    from safetensors.torch import save

    torch.export.save(program, folder / PROGRAM)
    for each in chosen.networks:
        # copies: safetensors refuses tensors that share memory
        weights = {name: value.detach().clone() for name, value in each.network.state_dict().items()}
        (folder / f"weights_r{each.stored.replicate}.safetensors").write_bytes(save(weights))
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2, default=str) + "\n", encoding="utf-8")
    (folder / CARD).write_text(card, encoding="utf-8")
    write_mlflow_files(folder, description, example[:1].numpy())


def model_card(chosen: Chosen, description: Description, probabilities: Mapping[str, Floats]) -> str:
    """Return what the model is, how well it does, and what it must not be trusted with, as Markdown.

    Args:
        chosen: the networks.
        description: the contents of `model.json`.
        probabilities: by split, [N, K].
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
        listed=_listed,
        named=_named,
        undetermined=undetermined,
    )
    return card


def _intervals(values: Mapping[str, float], probabilities: Floats, targets: Integers, bins: int) -> list[str]:
    """Return the CARD_METRICS with their 95 % intervals."""
    errors = bootstrap_standard_error(CARD_METRICS, probabilities, targets, bins)
    texts = []
    for name in CARD_METRICS:
        value, half = values[name], NORMAL_95 * errors[f"{name}_se"]
        high = min(value + half, METRICS[name].range[1])
        texts.append(f"{value:.4f} ({max(value - half, 0.0):.4f} … {high:.4f})")
    return texts


def _curvature(chosen: Chosen) -> list[tuple[str, str, str]]:
    """Return rows of the training weights' curvature on validation data, where it was measured."""
    results = Results(chosen.sweep.paths.root)
    columns = set(results.columns("evaluations"))
    present = [name for name in headline_columns() if name in columns]
    if not present:
        return []
    numbers = ", ".join(str(each.stored.replicate) for each in chosen.networks)
    means = ", ".join(f"avg({name}) AS {name}" for name in present)
    rows = results.rows(
        f"SELECT {means} FROM evaluations WHERE trial = {literal(chosen.trial)} AND epoch = {chosen.epoch} "
        f"AND split = '{FITTED_ON}' AND replicate IN ({numbers})"
    )
    return [(label(name), f"{rows[0][name]:.4g}", "") for name in present if rows and rows[0][name] is not None]


def _listed(values: Mapping[str, object], form: str) -> str:
    return ", ".join(form % pair for pair in values.items())


def _named(values: Mapping[str, object]) -> str:
    others = _listed({key: value for key, value in values.items() if key != "name"}, "%s %s")
    return f"{values['name']} ({others})" if others else str(values["name"])


CODE, LOADER = "code", "calibrated_model"
#: The files of one sample, as MLflow reads it and as a client sends it.
EXAMPLE, SERVED_EXAMPLE = "input_example.json", "serving_input_example.json"


def write_mlflow_files(folder: Path, description: Description, example: NDArray[np.generic]) -> None:
    """Add MLflow's description, environment, loader and input example to an exported model.

    Args:
        folder: with the program.
        description: the contents of `model.json`.
        example: one sample as the network takes it [1, …].
    """
    needed = [f"{name}=={version(name).partition('+')[0]}" for name in ("mlflow", "numpy", "torch")]
    shape, python = [-1, *description["input"]["shape"]], platform.python_version()
    text = resources.files("sweeper.exporting").joinpath("MLmodel.yaml").read_text("utf-8")
    model = jinja2.Template(text, keep_trailing_newline=True).render(
        loader=LOADER, code=CODE, python=python, mlflow=version("mlflow"), uuid=uuid4().hex,
        inputs=_tensor(description["input"]["dtype"], shape),
        outputs=_tensor("float32", [-1, description["output"]["classes"]]),
        example=EXAMPLE, served_example=SERVED_EXAMPLE, created=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}",
    )  # fmt: skip
    environment = {"python": python, "dependencies": ["-r requirements.txt"]}
    (folder / EXAMPLE).write_text(json.dumps(example.tolist()), encoding="utf-8")
    (folder / SERVED_EXAMPLE).write_text(json.dumps({"inputs": example.tolist()}), encoding="utf-8")
    (folder / CODE).mkdir()
    shutil.copyfile(served.__file__, folder / CODE / f"{LOADER}.py")
    (folder / "MLmodel").write_text(model, encoding="utf-8")
    (folder / "python_env.yaml").write_text(yaml.safe_dump(environment, sort_keys=False), encoding="utf-8")
    (folder / "requirements.txt").write_text("\n".join(needed) + "\n", encoding="utf-8")


def _tensor(dtype: str, shape: list[int]) -> str:
    return json.dumps([{"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}}])
