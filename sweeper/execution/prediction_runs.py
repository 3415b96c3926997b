"""Rows of imported predictions, divided into configurations, seeds, epochs and splits.

Every run must have the same samples. Without a `sample` column, the order of rows says which are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sweeper.execution.prediction_tables import EPOCH, SAMPLE, SEED, SPLIT, Faults
from sweeper.space.catalogue import installed_registries
from trainables.metrics.base import are_probabilities
from trainables.registry import OWN, Registry
from trainables.training.evaluation import FITTED_ON
from trainables.training.own_loop import PARTS

#: Names to change, because a search space uses them for something else.
RESERVED = {"dataset": "own_dataset"}

#: Most hyperparameters that are shown of a run.
MOST_SHOWN = 5

Values = dict[str, Any]
Rows = NDArray[np.int64]
Place = tuple[int, int, int]
Divided = dict[Place, dict[str, Rows]]


@dataclass(frozen=True)
class Samples:
    """The columns that tell runs and their samples apart, each of N rows.

    Attributes:
        hyperparameters: columns of values by name.
        seeds, epochs, targets: int64 [N].
        splits: names; `None` for a single set of samples.
        numbers: equal for the same sample, int64 [N]; `None` if the rows of each run are in the same order.
    """

    hyperparameters: Mapping[str, pa.Array]
    seeds: NDArray[np.int64]
    epochs: NDArray[np.int64]
    targets: NDArray[np.int64]
    splits: pa.Array | None
    numbers: NDArray[np.int64] | None

    def runs(self) -> tuple[list[Values], Divided]:
        """Return the configurations, and the rows of each run and split, in the order of samples."""
        size = len(self.targets)
        splits = pa.repeat("", size) if self.splits is None else self.splits
        # Hyperparameters can have any name, also `seed`.
        own = {f"={name}": column for name, column in self.hyperparameters.items()}
        places = {SEED: pa.array(self.seeds), EPOCH: pa.array(self.epochs), SPLIT: splits}
        table = pa.table({**own, **places, "row": np.arange(size)})
        # Without threads, groups appear in the file's order, so configurations are numbered as the user wrote them.
        groups = table.group_by([*own, *places], use_threads=False).aggregate([("row", "list")])
        configurations, divided, numbers = list[Values](), Divided(), dict[str, int]()
        for key, listed in zip(groups.select([*own, *places]).to_pylist(), groups["row_list"], strict=True):
            # Missing values and NaN (unequal to itself) mean that the configuration lacks the hyperparameter.
            flat = {name[1:]: key[name] for name in own if key[name] is not None and key[name] == key[name]}
            number = numbers.setdefault(repr(flat), len(numbers))
            configurations += [flat] if number == len(configurations) else []
            at = divided.setdefault((number, key[SEED], key[EPOCH]), {})
            rows = np.sort(np.concatenate([at.get(key[SPLIT], np.empty(0, np.int64)), listed.values.to_numpy()]))
            at[key[SPLIT]] = rows if self.numbers is None else rows[np.argsort(self.numbers[rows], kind="stable")]
        return configurations, divided

    def repeat(self, rows: Rows) -> bool:
        """Return whether a sample occurs twice among `rows`, as far as this is known."""
        return _repeats(self.targets[rows]) if self.numbers is None else len(np.unique(self.numbers[rows])) < len(rows)

    def digest(self, rows: Rows) -> bytes:
        """Return a value that is equal for the same samples in the same order."""
        return self.targets[rows].tobytes() + (b"" if self.numbers is None else self.numbers[rows].tobytes())


def check_runs(
    samples: Samples, configurations: Sequence[Values], divided: Divided, logits: NDArray[np.float32], faults: Faults
) -> None:
    """Add a fault for runs that lack an epoch or split that others have, repeat samples, or have other samples."""

    def run(at: Place) -> str:
        values = ", ".join(f"{key} = {value}" for key, value in [*configurations[at[0]].items()][:MOST_SHOWN])
        return f"configuration {at[0]}{f' ({values})' if values else ''} with seed {at[1]}"

    held = [(at, split, own) for at, by_split in divided.items() for split, own in by_split.items()]
    epochs, splits = sorted({at[2] for at, *_ in held}), sorted({split for _, split, _ in held})
    wanted = [(index, seed, epoch) for index, seed in dict.fromkeys(at[:2] for at in divided) for epoch in epochs]
    lacking = ((at, split) for at in wanted for split in splits if split not in divided.get(at, ()))
    faults.add_first(
        (f"{run(at)} lacks split {split} at epoch {at[2]}, which others have" for at, split in lacking),
        "leave out what not all have; without the column epoch, all are compared at their ends",
    )
    twice = ((at, split) for at, split, own in held if samples.repeat(own))
    faults.add_first(
        (f"a sample of split {split} occurs twice with the same seed, epoch and hyperparameters: {run(at)}"
         for at, split in twice),
        "give each run a seed, or a column that tells them apart",
    )  # fmt: skip
    odd = ((at, split) for at, split, own in held if are_probabilities(logits[own]))
    rules = (f"{run(at)} has probabilities instead of logits of {split}" for at, split in odd)
    faults.add_first(rules, "give the logarithms of all of them, or all as probabilities")
    differing = (
        f"{run(at)} at epoch {at[2]} has other samples of {split or 'the file'} than {than}"
        for split in splits
        for at, than in _differing({at: samples.digest(own) for at, of, own in held if of == split}, run)
    )
    named = ", ".join(samples.hyperparameters)
    remedy = f"write all in one order, or a column {SAMPLE}"
    faults.add_first(
        differing, f"{remedy}; leave out columns that differ between samples (runs: {named})" if named else remedy
    )


def _differing(held: Mapping[Place, bytes], run: Callable[[Place], str]) -> Iterator[tuple[Place, str]]:
    """Yield runs whose samples of a split differ from those of most runs, or of the first run in a tie."""
    (usual, count), *others = Counter(held.values()).most_common()
    first = next(iter(held))
    most = not others or count > others[0][1]
    than, expected = ("most", usual) if most else (f"{run(first)} at epoch {first[2]}", held[first])
    yield from ((at, than) for at in held if held[at] != expected)


def _repeats(targets: NDArray[np.int64]) -> bool:
    """Return whether targets [N] repeat one run's targets several times; alternating classes do not count."""
    # Without sample ids, this is the only sign of an omitted seed column. More than 20 repetitions are not searched.
    for times in range(2, 21):
        length, rest = divmod(len(targets), times)
        period = targets[:length]
        if not rest and length > 2 * len(np.unique(period)) and (targets == np.tile(period, times)).all():
            return not any((period == np.roll(period, by)).all() for by in range(1, length) if length % by == 0)
    return False


def with_validation(divided: Divided, cross_fit: bool, faults: Faults) -> tuple[Divided, list[str]]:
    """Return runs with validation data, and what was assumed, one sentence each.

    A single set of samples, other than `val`, is halved at random, the same samples in each run; or all of them become
    validation data, to `cross_fit`.
    """
    names = [*next(iter(divided.values()))]
    single = f"the file has one set of samples{f', split {names[0]}' if names[0] else ''}"
    if cross_fit and len(names) == 1:
        said = "each post-hoc method is fitted on four fifths of the samples and measured on the others, in turn"
        return {at: {FITTED_ON: own[names[0]]} for at, own in divided.items()}, [f"{single}: {said}"]
    if cross_fit:
        rule = f"has the splits {', '.join(names)}, and cross-fitting needs one"
        faults.add(rule, "leave out --cross-fit, or give the file without its splits")
    if FITTED_ON in names:
        return divided, []
    if len(names) > 1:
        shown = ", ".join(repr(name[:40]) for name in names[:MOST_SHOWN])
        rule = f"has no split {FITTED_ON}: it has {shown}"
        faults.add(rule, "post-hoc methods are fitted on it; add its predictions")
        return divided, []
    size = len(next(iter(divided.values()))[names[0]])
    if size < 2:
        faults.add(f"has {size} sample", f"give samples of {FITTED_ON} and test")
    fitted = np.random.default_rng(0).permutation(size) < size // 2
    said = (
        f"{single}: a random half of them, {FITTED_ON}, fits post-hoc methods, the other, test, "
        "measures; with few samples, --cross-fit uses all of them for both"
    )
    halves = {FITTED_ON: fitted, "test": ~fitted}
    return {at: {name: own[names[0]][half] for name, half in halves.items()} for at, own in divided.items()}, [said]


def nested(flat: Sequence[Values]) -> list[Values]:
    """Return configurations with `loss`, `architecture` and `optimizer` nested as in a search space.

    If `loss` (or `loss_name`) names a built-in loss and `loss_gamma` is valid for it, they become its name and setting;
    otherwise they are renamed to `own_loss` and `own_loss_gamma`.
    """
    registries = installed_registries().space
    renamed = [{RESERVED.get(key, key): value for key, value in values.items()} for values in flat]
    for part in PARTS:

        def of_part(key: str, part: str = part) -> bool:
            return key.partition("_")[0] == part

        parts = [{key[len(part) + 1 :] or "name": v.pop(key) for key in [*filter(of_part, v)]} for v in renamed]
        # Nest all rows or none: one column must not mean a built-in loss in some rows and a custom loss in others.
        known = all(_is_known(registries[part], own) for own in parts)
        for values, own in zip(renamed, parts, strict=True):
            values[part] = own if known else {"name": OWN}
            if not known:
                values |= {f"own_{part}_{key}".removesuffix("_name"): value for key, value in own.items()}
    return renamed


def _is_known(registry: Registry, named: Values) -> bool:
    name = named.get("name")
    if not isinstance(name, str) or registry.is_own(name):
        return False
    return not registry[name].faults({key: value for key, value in named.items() if key != "name"})
