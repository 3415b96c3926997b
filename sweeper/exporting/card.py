"""The model card: what an exported model is, how well it does, and what it must not be trusted with."""

from __future__ import annotations

from collections.abc import Mapping

from sweeper.exporting.chosen import FITTED_ON, MEASURED_ON, Chosen, Description
from sweeper.results import Results
from sweeper.text.labels import label
from trainables.curvature.statistics.base import headline_columns
from trainables.metrics import HEADLINES, METRIC_NAMES, METRICS, Metric, evaluate_probabilities, reliability_bins
from trainables.metrics.base import Floats, Integers
from trainables.metrics.bootstrap import bootstrap_standard_error

CARD_METRICS = tuple(name for name in HEADLINES if name in METRIC_NAMES)
"""Those headlines that probabilities and targets alone give."""

NORMAL_95 = 1.96
"""The standard normal distribution's quantile at .975."""


def model_card(
    chosen: Chosen, description: Description, probabilities: Mapping[str, Floats], targets: Mapping[str, Integers]
) -> str:
    """Return the card as Markdown.

    Args:
        chosen: the networks.
        description: the contents of `model.json`.
        probabilities: by split, [N, K].
        targets: by split, [N].
    """
    bins = chosen.sweep.spec.evaluation.bins
    measured = {
        part: _measured(description["metrics"][part], values, targets[part], bins)
        for part, values in probabilities.items()
    }
    source, loss = description["source"], chosen.configuration["loss"]
    members = source["replicates"]
    network = chosen.configuration["architecture"]["name"]
    whole = f"the mean of {len(members)} networks" if len(members) > 1 else "one network"
    lines = [
        f"# {network} on {chosen.dataset.name}, calibrated",
        "",
        *(f"**Rehearsal, no result:** {sentence}" for sentence in source["rehearsed"]),
        f"A classifier of {chosen.dataset.classes} classes: {whole}, then {_posthoc(description['posthoc'])}.",
        "",
        "| | |",
        "|---|---|",
        f"| data | {_words(source['dataset'])}; {_sizes(chosen)}; splits `{source['split_hash'][:16]}` |",
        f"| loss | {_words(loss)} |",
        f"| network | {_words(chosen.configuration['architecture'])} |",
        f"| optimiser | {_words(chosen.configuration['optimizer'])} |",
        f"| source | sweep `{source['sweep']}`, trial `{source['trial']}`, {_replicates(members)}, epoch "
        f"{source['epoch']} |",
        f"| code | {_commit(source['git'])}; exported with torch {description['torch']} |",
        f"| input | {description['input']['dtype']} [N, {', '.join(map(str, description['input']['shape']))}] |",
        f"| classes | {', '.join(description['class_names'])} |",
        "",
        "## Measured",
        "",
        f"Of the exported probabilities; in parentheses 95 % intervals from a bootstrap over samples ({bins} bins).",
        "",
        "| metric | validation | test |",
        "|---|---|---|",
        *(f"| {label(name)} | {measured[FITTED_ON][name]} | {measured[MEASURED_ON][name]} |" for name in CARD_METRICS),
        *_curvature(chosen),
        "",
        "## Reliability, test data",
        "",
        "| confidence | accuracy | samples |",
        "|---|---|---|",
        *_reliability(probabilities[MEASURED_ON], targets[MEASURED_ON], bins),
        "",
        "## Limits",
        "",
        *(f"- {limit}" for limit in _limits(chosen, description)),
        "",
    ]
    return "\n".join(lines)


def measured_values(probabilities: Floats, targets: Integers, bins: int) -> dict[str, float]:
    """Return the metrics of the exported probabilities that card and description give."""
    values = evaluate_probabilities(probabilities, targets, bins)
    return {name: values[name] for name in CARD_METRICS}


def _measured(values: Mapping[str, float], probabilities: Floats, targets: Integers, bins: int) -> dict[str, str]:
    errors = bootstrap_standard_error(CARD_METRICS, probabilities, targets, bins)
    texts = {}
    for name in CARD_METRICS:
        value, half = values[name], NORMAL_95 * errors[f"{name}_se"]
        known = METRICS[name]
        high = min(value + half, known.range[1]) if isinstance(known, Metric) else value + half
        texts[name] = f"{value:.4f} ({max(value - half, 0.0):.4f} … {high:.4f})"
    return texts


def _reliability(probabilities: Floats, targets: Integers, bins: int) -> list[str]:
    filled = [row for row in reliability_bins(probabilities, targets, bins) if row["n"]]
    return [f"| {row['confidence']:.3f} | {row['accuracy']:.3f} | {row['n']} |" for row in filled]


def _curvature(chosen: Chosen) -> list[str]:
    """Return rows of the training weights' curvature on validation data, where it was measured."""
    results = Results(chosen.sweep.paths.root)
    columns = set(results.columns("evaluations"))
    present = [name for name in headline_columns() if name in columns]
    if not present:
        return []
    numbers = ", ".join(str(each.replicate) for each in chosen.networks)
    means = ", ".join(f"avg({name}) AS {name}" for name in present)
    rows = results.rows(
        f"SELECT {means} FROM evaluations WHERE trial = '{chosen.trial}' AND epoch = {chosen.epoch} "
        f"AND split = '{FITTED_ON}' AND replicate IN ({numbers})"
    )
    return [f"| {label(name)} | {rows[0][name]:.4g} | |" for name in present if rows and rows[0][name] is not None]


def _limits(chosen: Chosen, description: Description) -> list[str]:
    said = [
        "Calibrated for data like the test split; on shifted or unknown data its probabilities are likely too high.",
        f"The best trial was chosen, and the post-hoc method fitted, on the {len(chosen.dataset.val):,} validation "
        "samples: trust the test column.",
        "The intervals cover the variation of samples, not of seeds.",
    ]
    if description["preprocessing"] is None:
        said.append("Inputs must be preprocessed as the data set's loader does it: images are not accepted.")
    if description["source"]["git"] is None:
        said.append("The commit of the code that trained it is not known.")
    return said


def _posthoc(posthoc: Description) -> str:
    if posthoc["method"] == "none":
        return "no post-hoc method"
    return f"{posthoc['method']} ({', '.join(f'{key} {value:.4g}' for key, value in posthoc['parameters'].items())})"


def _words(values: Mapping[str, object]) -> str:
    others = ", ".join(f"{key} {value}" for key, value in values.items() if key != "name")
    return f"{values['name']} ({others})" if others else str(values["name"])


def _sizes(chosen: Chosen) -> str:
    data = chosen.dataset
    return f"{len(data.train):,} training, {len(data.val):,} validation and {len(data.test):,} test samples"


def _replicates(numbers: list[int]) -> str:
    return f"replicate{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _commit(git: Description | None) -> str:
    if git is None:
        return "unknown commit"
    return f"commit `{git['commit']}`{' with changes' if git.get('changed') else ''}"
