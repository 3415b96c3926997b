"""Post-hoc improvement: what each post-hoc method gains over doing nothing, in proper scores on test data.

The gain is the uncalibrated network's score minus the score after the method; above 0, the method helps. A proper score
also counts what a method costs in accuracy or sharpness, which a calibration error alone does not see. Source: Berta,
Holzmüller, Bach & Jordan 2026, CalArena, arXiv:2605.30188, and its released code, which averages the gain over
experiments and counts data sets as independent. Here, a sweep is represented by its best finished configuration on each
network.

Intervals have the level 95 %. For one sweep they are over its seeds and test samples (`estimators`); with a single
seed, over test samples for this network alone. For several, they are over data sets (`sweeper.judging.means`): sweeps
with the same test data, and a sweep's networks, count as one value, their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from sweeper.core.cells import grouped, text_of
from sweeper.core.display import plain_table
from sweeper.core.statistics.basics import spread
from sweeper.judging.means import means
from sweeper.judging.question import Data, Question
from sweeper.results import Results
from sweeper.results.estimators import SHOWN, Networks, judged
from sweeper.results.recalibration import method_label, rounded_change
from sweeper.results.verdicts import BEFORE, TrainedNetworks, best_on_networks, methods_of

#: The scores of the table. The Brier score comes first and orders the methods: it is proper and bounded, so no single
#: sample decides its mean. ECE is not proper.
SCORES = ("Brier", "NLL", SHOWN)


@dataclass(frozen=True)
class Gain:
    """The gain of a method in one score.

    Attributes:
        value: mean of before − after.
        interval: 95 % interval; None for a single data set of several, or if no spread is known.
        n: number of data sets, or of seeds.
    """

    value: float
    interval: tuple[float, float] | None
    n: int

    def text(self) -> str:
        """Return e.g. `✓ +0.012 (+0.008 … +0.016)`; ✓ better, ✗ worse, ? open."""
        if self.interval is None:
            return f"? {rounded_change(self.value)}"
        low, high = self.interval
        sign, ends = "✓" if low > 0 else "✗" if high < 0 else "?", " … ".join(map(rounded_change, self.interval))
        return f"{sign} {rounded_change(self.value)} ({ends})"


@dataclass(frozen=True)
class Improvement:
    """The gains of one method.

    Attributes:
        where: sweep and network, or `mean over data sets`.
        method: the post-hoc method in words.
        gains: score → gain.
    """

    where: str
    method: str
    gains: Mapping[str, Gain]


def gain(score: str, before: Networks, after: Networks) -> Gain | None:
    """Return the gain on one network's seeds, over seeds and test samples; None if it has no value."""
    one = judged(score, {"": (after, before)}, 0.0, alone=True).get("")
    if one is None:
        return None
    interval = None if one.verdict is None else (-one.verdict.high, -one.verdict.low)
    return Gain(one.means[1] - one.means[0], interval, len(before) if one.verdict is None else len(one.verdict.seeds))


def mean_gain(of_data: Sequence[Sequence[float]]) -> Gain:
    """Return the mean gain over data sets, from the gains on each."""
    values = {"gain": {at: spread(gains).mean for at, gains in enumerate(of_data)}}
    mean = means(Question(["gain"], "gain", "max", level=0.95), Data(values))["gain"]
    return Gain(mean.value, None if mean.seeds < 2 else (mean.low, mean.high), mean.seeds)


def improvements(sweeps: Sequence[Results]) -> list[Improvement]:
    """Return the gain of each method on each network, and its mean over data sets if sweeps have different ones.

    The methods are temperature scaling and the sweep's own that are fitted on validation data; one that cannot be
    fitted is left out.

    Raises:
        SweeperError: a sweep has no finished configuration or no stored predictions.
    """
    on_data = list[tuple[str, Improvement]]()
    for results in sweeps:
        data = str(results.manifest.get("dataset", {}).get("split_hash") or results.name)
        for network, row in best_on_networks(results).items():
            trained = TrainedNetworks(results, [text_of(row, "trial")])
            before, others = trained.after(row, BEFORE), methods_of(results)[1:]
            for method, after in [(method_label(*method), trained.after(row, method)) for method in others]:
                gains = {score: value for score in SCORES if after and (value := gain(score, before, after))}
                on_data += [(data, Improvement(f"{results.name}, {network}", method, gains))] if gains else []
    each = [one for _, one in on_data]
    if len({data for data, _ in on_data}) < 2:
        return each
    values: dict[str, dict[str, dict[str, list[float]]]] = {}
    for data, one in on_data:
        for score, of_one in one.gains.items():
            values.setdefault(one.method, {}).setdefault(score, {}).setdefault(data, []).append(of_one.value)
    averaged = {m: {score: mean_gain([*on.values()]) for score, on in of.items()} for m, of in values.items()}
    return [*each, *(Improvement("mean over data sets", method, gains) for method, gains in averaged.items())]


def view(rows: Sequence[Improvement]) -> RenderableType:
    """Return a table for each network and one of the means; methods are in the order of their Brier gain."""
    parts: list[RenderableType] = []
    for where, own in grouped(rows, lambda row: row.where).items():
        best_first = sorted(own, key=lambda row: -row.gains[SCORES[0]].value if SCORES[0] in row.gains else 0.0)
        cells = [[row.gains[score].text() if score in row.gains else "" for score in SCORES] for row in best_first]
        counts = [max(of_one.n for of_one in row.gains.values()) for row in best_first]
        lines = [(row.method, *of_row, str(n)) for row, of_row, n in zip(best_first, cells, counts, strict=True)]
        parts += [plain_table((where, *SCORES, "n"), lines, left=(where, *SCORES)), Text()]
    return Group(*parts, Text(LEGEND, style="dim"))


LEGEND = (
    "Gain over the uncalibrated probabilities on test data, before − after: ✓ better, ✗ worse, ? open. Brackets: 95 % "
    "over n seeds and the test samples, or over n data sets."
)
