"""Train a Transformer to translate; measure the calibration of every next token, and BLEU of whole sentences.

A token is predicted among all word pieces, given the source and the reference's tokens before it (Müller et al. 2019,
section 3.2). Logits are too many to keep, so only the sums that the metrics need are kept (`tokens`). The loop
therefore has no `predict`, and chooses the temperatures of `evaluation.posthoc` itself, on validation data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from search_spaces.papers.translation.pairs import INSTALL, PADDING, Pairs
from search_spaces.papers.translation.tokens import (
    TEMPERATURES,
    TOKEN_METRICS,
    TokenStatistics,
    column_at,
    joined,
    token_ece,
    token_metrics,
    token_statistics,
)
from search_spaces.papers.translation.transformer import Transformer, beam_search
from trainables.losses import LOSSES, build_loss
from trainables.metrics import RECALIBRATED
from trainables.models import build_for
from trainables.posthoc.temperature import TEMPERATURE_GRIDS, best_on_grid
from trainables.registry import FITTED_ON as SPLIT_KEY, Options, entry_label
from trainables.training.evaluation import END, FITTED_ON, EvaluationSettings
from trainables.training.fine_tuning import averaged_weights
from trainables.training.own_loop import EPOCH, TrainingLoop
from trainables.training.recipe import (
    build_optimizer,
    changes_by_step,
    learning_rate,
    prepare_gradients,
    set_learning_rate,
    setting,
)

#: Sentences that are predicted or translated at once.
SENTENCES = 64

#: Logits held at once: 128 MiB in float64, with a few copies at a time.
LOGITS_AT_ONCE = 2**24

#: Tags of losses that need whole batches of samples with one prediction each; a sentence has many predictions.
UNSUITED = ("batch_coupled", "stateful", "needs_model")

#: Optimiser settings that this loop does not support.
NOT_FOLLOWED = ("freeze", "layer_decay", "sharpness", "mixup", "cutmix")

#: Objectives of a temperature that need only the kept sums at the grids' temperatures.
ON_GRIDS = ("ece", "nll_on_grid")

BLEU, BEST_BLEU = "bleu", "best_bleu"


class TranslationLoop(TrainingLoop):
    """A loop that trains on the mean loss over a batch's tokens; batches hold pairs of similar length.

    Attributes:
        model: network that trains.
        measured: network that is measured: the running average of the weights if the optimiser has `ema`.
        measures: columns for tokens, BLEU and each temperature.
    """

    def __init__(
        self, *, loss: Options, architecture: Options, optimizer: Options, beams: Annotated[int, "[1, inf)"] = 4,
        length_penalty: Annotated[float, "[0, inf)"] = 0.6, seed: int, device: torch.device, max_epochs: int,
        dataset: Pairs, evaluation: EvaluationSettings,
    ) -> None:  # fmt: skip
        """Build network, loss and optimiser.

        Args:
            loss: a built-in loss that is a function of single samples.
            architecture: a `Transformer`.
            optimizer: a built-in optimiser; its batch size counts the longer side's tokens, with padding.
            beams: translations per sentence that beam search follows [Vaswani et al. 2017, section 6.1].
            length_penalty: α of beam search [Vaswani et al. 2017, section 6.1].
            seed: seed of the order of batches.
            device: device of the network and its inputs.
            max_epochs: last epoch of the schedule.
            dataset: pairs of sentences.
            evaluation: settings with bins and temperatures.

        Raises:
            ValueError: a setting is not supported for translation, or sacrebleu is not installed.
        """
        fault = next(_faults(loss, optimizer, dataset, evaluation), None)
        # Before anything is built: a sweep of GPU-days should not fail at its first evaluation.
        if fault is not None:
            raise ValueError(fault)
        bleu(["a"], ["a"])  # fails now, not after the first epoch, if sacrebleu is not installed
        self._recipe, self._max_epochs, self._dataset, self._device = optimizer, max_epochs, dataset, device
        self._beams, self._penalty, self._bins, self._posthoc = (
            beams,
            length_penalty,
            evaluation.bins,
            evaluation.posthoc,
        )
        self.model: Any = build_for(dataset, architecture).to(device)
        self.loss_function = build_loss(**loss)
        self.optimizer = build_optimizer(self.model, optimizer)
        decay = setting(optimizer, "ema")
        self._averaged = None if decay is None else averaged_weights(self.model, decay)
        # Its own generator, saved with the state: a resumed epoch keeps its order.
        self._order = torch.Generator().manual_seed(seed)
        # Counted once: batches are formed anew in every epoch.
        self._lengths = (dataset.train.inputs != PADDING).sum(2).amax(1).cpu()
        self.epoch = 0
        self._fitted: dict[str, dict[str, float]] | None = None
        self.measures = measured_columns([entry_label(entry) for entry in self._posthoc])

    @property
    def measured(self) -> Any:
        """The network that is measured."""
        return self.model if self._averaged is None else self._averaged.module

    def train_epoch(self) -> dict[str, float]:
        """Train an epoch; return the mean over pairs of their batch's loss, and the epoch's first learning rate."""
        self._fitted = None
        self.model.train()
        self.loss_function.begin_epoch(self.epoch, self._max_epochs)
        rate, samples = learning_rate(self._recipe, self.epoch, self._max_epochs), len(self._dataset.train)
        set_learning_rate(self.optimizer, rate)
        total, done = torch.zeros((), device=self._device), 0
        order = torch.randperm(samples, generator=self._order)
        for places in of_like_length(self._lengths, order, self._recipe["batch_size"], self._order):
            if changes_by_step(self._recipe):
                now = learning_rate(self._recipe, self.epoch + done / samples, self._max_epochs)
                set_learning_rate(self.optimizer, now)
            inputs = self._dataset.train.inputs[places.to(self._dataset.train.inputs.device)].to(self._device)
            total += self._step(inputs) * len(places)  # stays on the device: a float() would wait for it each step
            done += len(places)
        self.epoch += 1
        return {"train_loss": float(total) / samples, "lr": rate}

    def _step(self, inputs: Tensor) -> Tensor:
        value = self.loss_function(self.model(inputs), self.model.supervised(inputs))
        self.optimizer.zero_grad(set_to_none=True)
        value.backward()
        prepare_gradients(self.model.parameters(), self._recipe, len(inputs))
        self.optimizer.step()
        if self._averaged is not None:
            self._averaged.update_parameters(self.model)
        return value.detach()

    def measure(self, split: str, stage: str) -> dict[str, float]:
        """Return metrics of a split's tokens; at a rung and at the end also after each temperature, and BLEU."""
        inputs = self._dataset.splits[split].inputs
        # After an epoch only the plain metrics are needed, so one temperature is enough.
        if stage == EPOCH:
            tokens = predicted_tokens(self.measured, inputs, [1.0])
            # A diverged network has NaN logits; metrics of them would raise instead of reporting the divergence.
            finite = math.isfinite(float(tokens.top_logits.sum()))
            return token_metrics(tokens, 1.0, min(self._bins, len(tokens))) if finite else {"nll": math.nan}
        tokens = predicted_tokens(self.measured, inputs, self._temperatures())
        if self._fitted is None:  # once for all splits of an evaluation; training resets it
            val = self._dataset.val.inputs
            known = tokens if split == FITTED_ON else predicted_tokens(self.measured, val, self._temperatures())
            self._fitted = {entry_label(entry): _chosen(entry, known) for entry in self._posthoc}
        row = token_metrics(tokens, 1.0, self._bins)
        for label, fitted in self._fitted.items():
            scaled = token_metrics(tokens, fitted["temperature"], self._bins)
            columns = fitted | {key: scaled[key] for key in RECALIBRATED if key in scaled}
            row |= {f"posthoc_{label}_{key}": value for key, value in columns.items()}
        return row | self._scores(split, stage, tokens, self._fitted)

    def _temperatures(self) -> list[float]:
        grids = (TEMPERATURE_GRIDS[entry.get("grid", "mukhoti")].tolist() for entry in self._posthoc)
        return sorted({1.0, *TEMPERATURES, *(temperature for grid in grids for temperature in grid)})

    def _scores(
        self, split: str, stage: str, tokens: TokenStatistics, fitted: Mapping[str, Mapping[str, float]]
    ) -> dict[str, float]:
        """Return a split's BLEU at each fitted temperature; at the end also the curves over temperatures (Fig. 5)."""
        # Beam search takes longer than all else, so each temperature is searched once, even for several columns.
        if (references := self._dataset.references.get(split)) is None:
            return {}
        wanted = {1.0: [BLEU]}
        for label, parameters in fitted.items():
            wanted.setdefault(parameters["temperature"], []).append(f"posthoc_{label}_{BLEU}")
        row: dict[str, float] = {}
        if stage == END:
            row |= {column_at("ece", at): token_ece(tokens, at, self._bins) for at in TEMPERATURES}
            for temperature in TEMPERATURES if split == "test" else ():
                wanted.setdefault(temperature, []).append(column_at(BLEU, temperature))
        for temperature, columns in wanted.items():
            row |= dict.fromkeys(columns, bleu(self.translated(split, temperature), references))
        if stage == END and split == "test":
            row[BEST_BLEU] = max(row[column_at(BLEU, temperature)] for temperature in TEMPERATURES)
        return row

    def translated(self, split: str, temperature: float = 1.0) -> list[str]:
        """Return the translations of a split's sentences, in order."""
        # Sentences of similar length are translated together: a batch takes as long as its longest one.
        inputs, model = self._dataset.splits[split].inputs, self.measured.eval()
        translations: list[list[int]] = [[] for _ in range(len(inputs))]
        lengths = (inputs[:, 0] != PADDING).sum(1).cpu()
        for rows in torch.argsort(lengths, stable=True).split(SENTENCES):
            part = inputs[rows.to(inputs.device)].to(self._device)
            made = beam_search(model, part, beams=self._beams, alpha=self._penalty, temperature=temperature)
            for place, tokens in zip(rows.tolist(), made, strict=True):
                translations[place] = tokens
        return self._dataset.text(translations)

    def state_dict(self) -> dict[str, Any]:
        """Return epoch, weights and their average, optimiser, and the generator of the order."""
        state = {"epoch": self.epoch, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["order"] = self._order.get_state()
        return state if self._averaged is None else {**state, "averaged": self._averaged.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`'s result."""
        self._fitted, self.epoch = None, state["epoch"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._order.set_state(state["order"])
        if self._averaged is not None:
            self._averaged.load_state_dict(state["averaged"])


def measured_columns(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all measured columns, for fitted temperatures with their labels."""
    scaled = ("temperature", "converged", "at_bound", *(key for key in RECALIBRATED if key in TOKEN_METRICS), BLEU)
    curves = [column_at(metric, at) for metric in (BLEU, "ece") for at in TEMPERATURES]
    return (*TOKEN_METRICS, BLEU, BEST_BLEU, *curves, *(f"posthoc_{label}_{key}" for label in labels for key in scaled))


def _faults(loss: Options, optimizer: Options, dataset: object, evaluation: EvaluationSettings) -> Iterator[str]:
    """Yield a sentence for each unsupported setting of a search space."""
    if not isinstance(dataset, Pairs):
        yield "the data set has no pairs of sentences; name one of search_spaces.papers.translation.pairs"
    if LOSSES.is_own(loss["name"]) or any(LOSSES.has_tag(loss["name"], tag) for tag in UNSUITED):
        yield f"{loss['name']} is a function of whole batches of samples, not of tokens; choose cross_entropy or focal"
    unused = [name for name in NOT_FOLLOWED if optimizer.get(name)]
    if unused or optimizer.get("checkpoint", "last") != "last":
        yield f"optimizer.{[*unused, 'checkpoint'][0]} is not supported for translation; leave it out"
    if evaluation.metrics or evaluation.curvature:
        yield "only tokens, temperatures and BLEU are measured; set evaluation.curvature: false and no metrics"
    for entry in evaluation.posthoc:
        grid = (
            entry["name"] == "temperature"
            and entry.get("objective") in ON_GRIDS
            and entry.get("scheme") != "equal_mass"
        )
        if not grid or entry.get(SPLIT_KEY, FITTED_ON) != FITTED_ON:
            ask = "a temperature is chosen on a grid by val: {name: temperature, objective: ece}, or nll_on_grid"
            yield f"{entry_label(entry)} needs all logits of every token; of translations {ask}"


def of_like_length(lengths: Tensor, order: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    """Return batches of samples of similar length (Vaswani et al. 2017, section 5.1), in random order.

    Args:
        lengths: tokens of each sample, int64 [N].
        order: random order of the samples, which breaks ties of length.
        size: most tokens of a batch, each sample padded to the longest; a longer sample is a batch by itself.
        generator: generator of the order of batches.
    """
    # A stable sort keeps the random order among samples of one length, so batches differ between epochs.
    rising = order[torch.argsort(lengths[order], stable=True)]
    batches, start = [], 0
    widths = lengths[rising].tolist()
    for end in range(1, len(widths) + 1):
        if end == len(widths) or widths[end] * (end + 1 - start) > size:
            batches.append(rising[start:end])
            start = end
    return [batches[number] for number in torch.randperm(len(batches), generator=generator).tolist()]


@torch.no_grad()
def predicted_tokens(model: Transformer, pairs: Tensor, temperatures: Sequence[float]) -> TokenStatistics:
    """Return the statistics of the predictions of all target tokens of pairs [N, 2, L], in order."""
    model.eval()
    # The classifier is applied to a few tokens at a time: all logits of a batch at 37,000 pieces would not fit.
    rows, device = max(1, LOGITS_AT_ONCE // model.classifier.out_features), model.classifier.weight.device
    parts = []
    for inputs in pairs.split(SENTENCES):
        inputs = inputs.to(device)
        targets, features = model.supervised(inputs), model.token_features(inputs)
        for first in range(0, len(targets), rows):
            logits = model.classifier(features[first : first + rows]).float()
            parts.append(token_statistics(logits, targets[first : first + rows], temperatures))
    return joined(parts)


def _chosen(entry: Options, tokens: TokenStatistics) -> dict[str, float]:
    """Fit a temperature on a grid by calibration error or log-loss; return its parameters."""
    grid = TEMPERATURE_GRIDS[entry.get("grid", "mukhoti")]
    if entry["objective"] == "ece":
        errors = [token_ece(tokens, temperature, entry.get("bins", 15)) for temperature in grid.tolist()]
    else:
        errors = [float(tokens.nll(temperature).mean()) for temperature in grid.tolist()]
    return best_on_grid(grid, np.array(errors))


def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return corpus BLEU (Papineni et al. 2002), 0 to 100: sacrebleu's, four-grams, cased, tokenisation `13a`.

    Args:
        translations: whole sentences, not tokenised.
        references: one reference for each translation.

    Raises:
        ValueError: sacrebleu is not installed.
    """
    try:
        import sacrebleu
    except ImportError as error:
        raise ValueError(f"BLEU needs the package sacrebleu, which is not installed: {INSTALL}") from error
    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)
