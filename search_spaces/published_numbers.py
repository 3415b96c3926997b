"""The numbers that the papers print, as data: one tidy CSV a table or figure in `search_spaces/published/`.

A row is one printed number. `dataset`, `architecture`, `loss` and `posthoc` are names that a search space file uses;
`options` refines them (`gamma=3` of the loss, `architecture.width=2`, `dataset.class_fraction=0.1`,
`posthoc.objective=ece`; `epoch` and `after_epoch` say where a figure is read); `metric` is a column of the results or
one of FIGURE_QUANTITIES. `value` is in this project's unit, shares instead of percents, `printed` is what stands in the
paper, `spread` one standard deviation over `n` runs. `source` names table, row and column, and says so where a cell is
doubtful. The recipe behind a number is that of the search space that names its table and trains its configuration
(`sweeper.analysis.papers.recipes`).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "published"

FIGURE_QUANTITIES: dict[str, str] = {
    "gamma_of_smallest_ece": "the gamma, of those trained, whose mean ECE is smallest",
    "ece_minimum_inside": "1 where the smallest ECE lies at neither end of the range of traces",
    "ece_rank": "place of the mean ECE among the settings compared, 1 the smallest",
    "nll_rank": "place of the test NLL at the last epoch among the losses compared, 1 the smallest",
    "nll_correct_rank": "the same of the NLL of correctly classified samples",
    "nll_wrong_rank": "the same of the NLL of wrongly classified samples",
    "entropy_wrong_rank": "the same of the entropy of wrongly classified samples' probabilities",
    "confidence_wrong_rank": "the same of the mean confidence of wrongly classified samples",
    "last_layer_weight_norm_rank": "the same of the last layer's weight norm",
    "logit_norm_rank": "the same of the mean norm of the logits",
    "gradient_norm_rank": "place of the mean norm of the samples' last-layer gradients, 1 the smallest",
    "spearman_gamma_lambda_max": "Spearman correlation of gamma and the mean lambda_max of cross-entropy's Hessian, of "
    "which the sign alone is printed",
    "spearman_gamma_ece": "the same of gamma and the mean ECE",
    "spearman_weight_ece": "the same of the regularisation's weight and the ECE",
    "spearman_weight_trace": "the same of the regularisation's weight and the trace",
    "spearman_epoch_ece": "the same of the epoch and the ECE, after the epoch of the option after_epoch",
    "spearman_epoch_highest_bin": "the same of the share of samples in the highest confidence bin, by evaluated epoch",
    "spearman_epoch_nll_correct": "the same of the NLL of correctly classified samples",
    "spearman_epoch_nll_wrong": "the same of the NLL of wrongly classified samples",
    "spearman_epoch_entropy_correct": "the same of the entropy of correctly classified samples' probabilities",
    "spearman_epoch_entropy_wrong": "the same of the entropy of wrongly classified samples' probabilities",
    "ece_change_by_focal_map": "sign of the mean ECE with the focal map minus that without, over the gamma above 0",
    "ece_change_by_temperature": "the same of temperature scaling, minus the networks' own",
    "feature_norm_rank": "the same of the mean norm of the features before the last layer",
    "ece_gain_by_ece": "mean share, over the losses, by which gamma and T chosen by ECE lower it against log-loss",
    "pearson_gamma_temperature": "Pearson correlation of the focal map's gamma and the best temperature beside it",
    "slope": "of the line through 1/T against gamma, T the temperature closest to the focal map",
    "intercept": "of that line",
    "max_error": "largest difference of probabilities between the focal map and the closest temperature scaling",
    "temperature": "that closest temperature",
    "temperature_lower": "the largest T whose scaling is sharper than the focal map at every logit",
    "temperature_upper": "the smallest T whose scaling is less sharp than the focal map at every logit",
    "largest_overconfident_gamma": "the largest gamma at which the focal risk's minimiser can be over-confident",
}
"""What figures show that is no column of the results, in words. Ranks and signs stand for curves without numbers."""


@dataclass(frozen=True)
class PublishedNumber:
    """One number that a paper prints; the module says what the fields hold. Absent numbers are `None`."""

    table: str
    dataset: str
    architecture: str
    loss: str
    options: dict[str, str]
    posthoc: str
    split: str
    metric: str
    value: float
    printed: str
    spread: float | None
    n: int | None
    source: str

    @property
    def is_doubtful(self) -> bool:
        """Whether the paper contradicts itself about this number, as `source` explains."""
        return "doubtful" in self.source


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(PublishedNumber))


def published_tables() -> dict[str, Path]:
    """Return the files by the name that a search space's header uses: `{"mukhoti-1": …/mukhoti_table_1.csv}`.

    A figure's number has `fig` before it (`curvature-fig2`), an appendix's table `a` (`selective-a4`).
    """
    return {table_name(path): path for path in sorted(FOLDER.glob("*.csv"))}


def table_name(path: Path) -> str:
    """Return the name of a file's table: `mukhoti_table_1.csv` is `mukhoti-1`, `…_figure_2.csv` is `…-fig2`."""
    paper, kind, number = path.stem.split("_")
    return f"{paper}-{'fig' if kind == 'figure' else ''}{number}"


def read_published(table: str) -> list[PublishedNumber]:
    """Return the numbers of one table, in the paper's order.

    Args:
        table: its name, e.g. `mukhoti-1`.

    Raises:
        KeyError: no such table; the message lists those there are.
    """
    known = published_tables()
    if table not in known:
        raise KeyError(f"no published table {table!r}; known: {', '.join(known)}")
    with known[table].open(newline="", encoding="utf-8") as file:
        return [_number(row) for row in csv.DictReader(file)]


def _number(row: dict[str, str]) -> PublishedNumber:
    texts = {name: row[name] for name in COLUMNS if name not in ("options", "value", "spread", "n")}
    pairs = (option.partition("=")[::2] for option in row["options"].split(";") if option)
    return PublishedNumber(
        **texts,
        options=dict(pairs),
        value=float(row["value"]),
        spread=float(row["spread"]) if row["spread"] else None,
        n=int(row["n"]) if row["n"] else None,
    )
