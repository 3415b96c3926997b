"""Evaluating translations: calibration of every next token, BLEU of whole sentences, before and after temperature.

A token's prediction is that of its class among all word pieces, given the source and the reference's tokens before it
(Müller et al. 2019, section 3.2). Of its logits only what the metrics need is kept, see `trainables.metrics.tokens`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from trainables.datasets.base import DataSet, Split
from trainables.losses import LOSSES
from trainables.metrics import RECALIBRATED
from trainables.metrics.base import METRICS, UNAVAILABLE
from trainables.metrics.bleu import BLEU, TEMPERATURES, BleuUnavailableError, Decoding, bleu, column_at, decoding_of
from trainables.metrics.tokens import (
    TokenStatistics,
    joined,
    token_ece,
    token_metrics,
    token_reliability,
    token_statistics,
)
from trainables.models import ARCHITECTURES
from trainables.models.transformer import beam_search
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, best_on_grid
from trainables.registry import FITTED_ON as SPLIT_KEY, Options, entry_label
from trainables.training.evaluation import END, FITTED_ON, Evaluation, EvaluationSettings, Row

#: Sentences whose tokens are predicted, or that are translated, at once.
SENTENCES = 64

#: Logits that are held at once in float64: 128 MiB, a few times over.
LOGITS_AT_ONCE = 2**24

#: The tag of data sets, networks and metrics of translation.
TRANSLATES = "translation"

#: Tags of losses that are defined over samples of which each has one prediction.
UNSUITED = ("batch_coupled", "stateful", "needs_model")


def translation_faults(
    dataset: DataSet, evaluation: Options, names: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield (place, sentence) of everything in a search space that does not suit the data set, for use before a run.

    Args:
        dataset: pairs of sentences, or anything else, to which networks and metrics of translation do not apply.
        evaluation: the settings.
        names: loss and architecture of the configurations.
    """
    if dataset.translation is None:
        rule = f"which {dataset.name} has none of; choose wmt14_en_de or number_words, or leave it out"
        for metric in evaluation["metrics"]:
            if METRICS.has_tag(metric["name"], TRANSLATES):
                yield "evaluation.metrics", f"{metric['name']} measures translations, {rule}"
        return
    for network in dict.fromkeys(network for _, network in names):
        if not ARCHITECTURES.has_tag(network, TRANSLATES):
            yield "space.architecture", f"{network} does not translate, as {dataset.name} asks; choose transformer"
    for loss in dict.fromkeys(loss for loss, _ in names):
        if LOSSES.is_own(loss) or any(LOSSES.has_tag(loss, tag) for tag in UNSUITED):
            rule = "is a function of whole batches of samples, not of tokens; choose cross_entropy or focal"
            yield "space.loss", f"{loss} {rule}"
    for part in ("curvature", "trajectory"):
        if evaluation.get(part):
            yield f"evaluation.{part}", f"{part} is not measured of translations; set {part}: false"
    for metric in evaluation["metrics"]:
        if not METRICS.has_tag(metric["name"], TRANSLATES):
            yield "evaluation.metrics", f"{metric['name']} needs all probabilities of every token; leave it out"
    for entry in evaluation["posthoc"]:
        if (entry["name"], entry.get("objective")) not in ON_GRIDS or entry.get("scheme") == "equal_mass":
            ask = "a temperature is chosen on a grid: {name: temperature, objective: ece}, or nll_on_grid"
            yield "evaluation.posthoc", f"{entry_label(entry)} needs all logits of every token; of translations {ask}"


#: Methods and objectives that the sums kept of each token, at the grids' temperatures, are enough for.
ON_GRIDS = (("temperature", "ece"), ("temperature", "nll_on_grid"))


@torch.no_grad()
def predicted_tokens(model: Any, split: Split, temperatures: Sequence[float]) -> TokenStatistics:
    """Return what is kept of the predictions of all target tokens of a split, in the order of its sentences."""
    model.eval()
    rows = max(1, LOGITS_AT_ONCE // model.classifier.out_features)
    parts = []
    for start in range(0, len(split), SENTENCES):
        inputs = split.prepare(split.inputs[start : start + SENTENCES])
        targets, features = model.supervised(inputs), model.token_features(inputs)
        for first in range(0, len(targets), rows):
            logits = model.classifier(features[first : first + rows]).float()
            parts.append(token_statistics(logits, targets[first : first + rows], temperatures))
    return joined(parts)


def token_epoch_metrics(model: nn.Module, split: Split, bins: int) -> dict[str, float]:
    """Return an epoch's validation metrics of a translation's tokens; not-a-number where logits are not finite."""
    tokens = predicted_tokens(model, split, [1.0])
    if not math.isfinite(float(tokens.top_logits.sum())):
        return {"val_nll": math.nan, "val_accuracy": math.nan, "val_ece": math.nan}
    measured = token_metrics(tokens, 1.0, min(bins, len(tokens)))
    return {f"val_{name}": measured[name] for name in ("nll", "accuracy", "ece")}


def evaluate_translation(model: nn.Module, dataset: DataSet, settings: EvaluationSettings, *, stage: str) -> Evaluation:
    """Measure a network on the requested splits.

    Args:
        model: a Transformer; its parameters and mode are left as they were found.
        dataset: pairs of sentences.
        settings: what to measure; `translation_faults` says what does not apply.
        stage: `rung` or `end`; curves over temperatures are measured at the end.
    """
    was_training = model.training
    grids = {each for entry in settings.posthoc for each in TEMPERATURE_GRIDS[entry.get("grid", "mukhoti")].tolist()}
    temperatures = sorted({1.0, *TEMPERATURES, *grids})
    splits = dict.fromkeys([*settings.splits, *(entry.get(SPLIT_KEY, FITTED_ON) for entry in settings.posthoc)])
    tokens = {name: predicted_tokens(model, dataset.splits[name], temperatures) for name in splits}
    chosen = {entry_label(entry): _chosen(entry, tokens) for entry in settings.posthoc}
    decoding = decoding_of(settings.metrics)
    rows: list[Row] = []
    for name in settings.splits:
        row: Row = {"split": name, "stage": stage, **token_metrics(tokens[name], 1.0, settings.bins)}
        row["last_layer_weight_norm"] = float(model.classifier.weight.detach().norm())  # type: ignore[union-attr, operator]
        for label, fitted in chosen.items():
            measured = token_metrics(tokens[name], fitted["temperature"], settings.bins)
            row |= {f"posthoc_{label}_{key}": value for key, value in fitted.items()}
            row |= {f"posthoc_{label}_{key}": measured[key] for key in RECALIBRATED if key in measured}
        if decoding is not None:
            row |= _scores(model, dataset, name, decoding, chosen, tokens[name], stage, settings.bins)
        rows.append(row)
    reliability: list[Row] = [
        {"split": name, **row} for name in settings.splits for row in token_reliability(tokens[name], settings.bins)
    ]
    model.train(was_training)
    kept = {name: tokens[name] for name in settings.splits}
    return Evaluation(rows, reliability, tokens=kept)


def _chosen(entry: Options, tokens: Mapping[str, TokenStatistics]) -> dict[str, float]:
    """Return what fitting a temperature on a grid gives, by calibration error or by log-loss."""
    grid = TEMPERATURE_GRIDS[entry.get("grid", "mukhoti")]
    known = tokens[entry.get(SPLIT_KEY, FITTED_ON)]
    if entry["objective"] == "ece":
        errors = [token_ece(known, temperature, entry.get("bins", 15)) for temperature in grid.tolist()]
    else:
        errors = [float(known.nll(temperature).mean()) for temperature in grid.tolist()]
    return best_on_grid(grid, np.array(errors))


def _scores(
    model: nn.Module,
    dataset: DataSet,
    split: str,
    decoding: Decoding,
    chosen: Mapping[str, Mapping[str, float]],
    tokens: TokenStatistics,
    stage: str,
    bins: int,
) -> Row:
    """Return the columns of BLEU of a split, at each temperature once; and the curves over temperatures."""
    task = dataset.translation
    references = task.references(split) if task is not None else None
    if task is None or references is None:
        return {UNAVAILABLE: f"{BLEU}: {split} has no references"}
    wanted = {1.0: [BLEU]}
    for label, fitted in chosen.items():
        wanted.setdefault(fitted["temperature"], []).append(f"posthoc_{label}_{BLEU}")
    row: Row = {}
    by_temperature = decoding.by_temperature and stage == END
    if by_temperature:
        row |= {column_at("ece", each): token_ece(tokens, each, bins) for each in TEMPERATURES}
        for each in TEMPERATURES if split == "test" else ():
            wanted.setdefault(each, []).append(column_at(BLEU, each))
    try:
        for temperature, columns in wanted.items():
            score = bleu(translated(model, dataset, split, decoding, temperature), references)
            row |= dict.fromkeys(columns, score)
    except BleuUnavailableError as error:
        return {**row, UNAVAILABLE: str(error)}
    if by_temperature and split == "test":
        row["best_bleu"] = max(float(row[column_at(BLEU, each)]) for each in TEMPERATURES)  # type: ignore[arg-type]
    return row


def translated(model: Any, dataset: DataSet, split: str, decoding: Decoding, temperature: float = 1.0) -> list[str]:
    """Return the translations of a split's sentences, in their order; those of about one length are made together."""
    task, part = dataset.translation, dataset.splits[split]
    if task is None:
        raise ValueError(f"{dataset.name} holds no sentences to translate")
    model.eval()
    found: list[list[int]] = [[] for _ in range(len(part))]
    lengths = (part.inputs[:, 0] != 0).sum(1).cpu()
    for rows in torch.argsort(lengths, stable=True).split(SENTENCES):
        inputs = part.prepare(part.inputs[rows.to(part.inputs.device)])
        made = beam_search(model, inputs, beams=decoding.beams, alpha=decoding.length_penalty, temperature=temperature)
        for place, tokens in zip(rows.tolist(), made, strict=True):
            found[place] = tokens
    return task.text(found)
