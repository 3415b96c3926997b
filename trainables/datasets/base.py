"""The base of all data sets: named splits of tensors that move to a device as a whole, and the registry by name.

To add a data set, write a file in this folder with a function of options that returns a `DataSet`, under the decorator
that describes it. No other file lists data sets.

    @DATASETS.add("parity", "is a sum of bits odd?")
    def parity(samples: Annotated[int, "[30, inf)"] = 1000) -> DataSet:
        inputs = torch.randint(0, 2, (samples, 8)).float()
        train, val, test = (Split(part, part.sum(1).long() % 2) for part in inputs.chunk(3))
        return DataSet("parity", train, val, test, 2, (8,), hash_of_splits(np.arange(samples)))

The decorator also takes the attributes of `DataSetComponent`. Users' own data sets need no file here: this module
adapts the functions that their import paths name.

Splits are seeded, reproducible, and identified by a hash. Draws come from `numpy.random.RandomState`. Its streams are
frozen permanently, so a split never changes with a numpy release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainables.datasets.image_stream import CropAndFlip, ImagePreprocessing, ImageStream, sent
from trainables.datasets.transforms import Transform, Undeclared
from trainables.extensions.targets import OwnFamily, described
from trainables.registry import (
    SPLITS,
    Component,
    DataSetSize,
    ExtensionError,
    Hyperparameter,
    Options,
    Registry,
    hyperparameters_of,
)

Indices = NDArray[np.int64]


def stratified_split(targets: NDArray[np.generic], fractions: Sequence[float], seed: int) -> list[Indices]:
    """Split sample indices into parts with the same share of every class.

    Args:
        targets: classes, int [N].
        fractions: share of each part after the first, e.g. (0.2, 0.2) for 60/20/20; each class contributes
            `round(fraction * class size)` samples, and the first part gets the rest.
        seed: seed of the draw.

    Returns:
        `1 + len(fractions)` sorted index arrays: the rest, then one for each fraction.

    Example:
        >>> [part.tolist() for part in stratified_split(np.array([0, 0, 1, 1]), (0.5,), seed=0)]
        [[0, 3], [1, 2]]
    """
    random = np.random.RandomState(seed)
    parts: list[list[Indices]] = [[] for _ in range(1 + len(fractions))]
    for label in np.unique(targets):
        members = random.permutation(np.flatnonzero(targets == label)).astype(np.int64)
        start = 0
        for part, fraction in enumerate(fractions, start=1):
            count = round(fraction * len(members))
            parts[part].append(members[start : start + count])
            start += count
        parts[0].append(members[start:])
    # sorted: reading a file in order is faster, and an epoch shuffles anyway
    return [np.sort(np.concatenate(part)) for part in parts]


def shuffled_split(samples: int, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """Split off the first `floor(fraction * samples)` of one shuffle, ignoring classes.

    Returns:
        (the rest, the part split off), each sorted.
    """
    order = np.random.RandomState(seed).permutation(samples).astype(np.int64)
    count = int(np.floor(fraction * samples))
    return np.sort(order[count:]), np.sort(order[:count])


def thinned(indices: Indices, targets: NDArray[np.generic], fraction: float, seed: int) -> Indices:
    """Keep `round(fraction * size)` of the samples of each class among `indices`; sorted."""
    _, kept = stratified_split(targets[indices], (fraction,), seed)
    return indices[kept]


def hash_of_splits(*parts: NDArray[np.generic]) -> str:
    """Return the sha256 of index arrays, as hex: equal if and only if all parts have the same indices in order.

    Each part is hashed as its length and its indices, as little-endian 64-bit integers.

    Example:
        >>> hash_of_splits(np.array([0, 1]), np.array([2])) == hash_of_splits(np.array([0]), np.array([1, 2]))
        False
    """
    digest = hashlib.sha256()
    for part in parts:
        # the length separates the parts: without it, moving an index to the next part would keep the hash
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    return digest.hexdigest()


Fraction = Annotated[float, Hyperparameter(range="(0, 0.9]", source="our choice")]


@dataclass(frozen=True)
class Split:
    """The samples of one split.

    Attributes:
        inputs: stored inputs [N, ...]. Without `preprocessing` they are network inputs, else for example raw uint8.
        targets: classes, int64 [N].
        preprocessing: function from stored to network inputs, applied to each batch on the device; `None` for none.
        augmentation: random changes of training batches; `None` for validation and test.
        streamed: whether inputs stay on the host. Batches are then sent to the targets' device ahead of their use.
        source: reader of inputs that are too many for memory; `inputs` then has only their shape and type, on torch's
            meta device.
        weights: weights of the samples [N], above 0; `None` for equal weights.
        class_weights: weights of the classes [K] in the training loss; `None` for equal weights.
        balanced: whether an epoch draws N samples with replacement, with the same probability for each class.

    Example:
        >>> split = Split(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([0, 1, 0]))
        >>> len(split), split.select(torch.tensor([2, 0]))
        (3, (tensor([[3.],
                [1.]]), tensor([0, 0])))
    """

    inputs: Tensor
    targets: Tensor
    preprocessing: ImagePreprocessing | None = None
    augmentation: CropAndFlip | None = None
    streamed: bool = False
    source: ImageStream | None = None
    weights: Tensor | None = None
    class_weights: Tensor | None = None
    balanced: bool = False

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def loss_weights(self) -> Tensor | None:
        """Weights of the samples in the training loss [N], the products of both weights; `None` for equal weights."""
        if self.class_weights is None:
            return self.weights
        of_classes = self.class_weights.index_select(0, self.targets)
        return of_classes if self.weights is None else of_classes * self.weights

    @property
    def nbytes(self) -> int:
        """Size in memory, bytes."""
        return (0 if self.source is not None else self.inputs.nbytes) + self.targets.nbytes

    def to(self, device: torch.device | str, streamed: bool = False) -> Split:
        """Return the split with its tensors on `device`; if `streamed`, with only its targets there."""
        inputs = self.inputs if streamed or self.source is not None else self.inputs.to(device)
        weights = None if self.weights is None else self.weights.to(device)
        return replace(self, inputs=inputs, targets=self.targets.to(device), streamed=streamed, weights=weights)

    def first(self, count: int) -> Split:
        """Return the first `count` samples."""
        rows = slice(0, count)
        source = None if self.source is None else self.source.part(rows)
        weights = None if self.weights is None else self.weights[rows]
        return replace(self, inputs=self.inputs[rows], targets=self.targets[rows], source=source, weights=weights)

    def select(self, indices: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return network inputs [B, ...] and targets [B] of the samples at `indices` (int64 [B], same device).

        Args:
            indices: indices of the samples.
            draws: rows of `augmentation.draw`, [B, ...]; `None` for no augmentation.
        """
        return self.prepare(self.stored(indices), draws), self.targets.index_select(0, indices)

    def stored(self, indices: Tensor) -> Tensor:
        """Return the stored inputs at `indices`, [B, ...]; those read from files are on the host."""
        if self.source is None:
            return self.inputs.index_select(0, indices.to(self.inputs.device))
        return self.source.read(indices)

    def read_ahead(self, places: Sequence[Tensor], seeds: Sequence[Tensor] | None = None) -> Iterator[Tensor]:
        """Yield the stored inputs at each of `places` on the targets' device; the next ones are read or sent ahead.

        Args:
            places: indices on the CPU, int64 [B] each.
            seeds: seeds of a source's random changes, int64 [B] each; `None` for no changes.
        """
        if self.source is not None:
            return self.source.batches(places, seeds, self.targets.device)
        return sent(lambda rows: self.inputs.index_select(0, rows), places, self.targets.device)

    def head(self, count: int) -> Tensor:
        """Return the network inputs of the first `count` samples."""
        if self.source is None:
            # a copy: without preprocessing, a network that works in place would change the data
            return self.prepare(self.inputs[:count].clone())
        return self.prepare(self.stored(torch.arange(min(count, len(self)), device="cpu")))

    def prepare(self, stored: Tensor, draws: Tensor | None = None) -> Tensor:
        """Turn stored inputs [B, ...] into network inputs on the targets' device: augmentation, then preprocessing."""
        stored = stored.to(self.targets.device)
        if draws is not None and self.augmentation is not None:
            stored = self.augmentation(stored, draws)
        return stored if self.preprocessing is None else self.preprocessing(stored)


@dataclass(frozen=True)
class DataSet:
    """A data set with its splits.

    Attributes:
        name: name in the registry.
        train, val, test: splits that every data set has.
        classes: number of classes K.
        input_shape: shape of one network input.
        split_hash: sha256 hex of the splits' indices (`hash_of_splits`), recorded with the results.
        class_names: names of the classes, if the source has them.
        vocabulary: number of token ids of a text data set, including 0 for padding; `None` for other data.
        posterior: true class probabilities of the test split, float64 [N, K], if they are known.
        word_vectors: pretrained word vectors [vocabulary, dimension], if requested.
        notes: warnings for users before they train on the data.
        further: additional splits by name, e.g. shifted data that an evaluation can request. The data set's component
            names them in `splits`, so that a search space is checked before anything is loaded.
        transform: how the stored inputs were made from raw inputs, for exported models; `Undeclared` if that cannot be
            said; `None` if the stored inputs are raw. Copies for workers have none.

    Raises:
        ValueError: the name of a further split is taken, or would need quoting in SQL.

    Example:
        >>> part = Split(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
        >>> dataset = DataSet("mine", part, part, part, 2, (2,), hash_of_splits(np.arange(4)))
        >>> list(dataset.splits), dataset.nbytes
        (['train', 'val', 'test'], 192)
    """

    name: str
    train: Split
    val: Split
    test: Split
    classes: int
    input_shape: tuple[int, ...]
    split_hash: str
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None
    posterior: Tensor | None = None
    word_vectors: Tensor | None = None
    notes: tuple[str, ...] = ()
    further: Mapping[str, Split] = field(default_factory=dict)
    transform: Transform | Undeclared | None = None

    def __post_init__(self) -> None:
        """Check the names of further splits."""
        for name in self.further:
            if name in SPLITS or not (name.isidentifier() and name == name.lower()):
                raise ValueError(
                    f"an additional split of {self.name} is called {name!r}; choose lower-case letters, digits and _, "
                    f"and none of {', '.join(SPLITS)}"
                )

    @property
    def splits(self) -> Mapping[str, Split]:
        """All splits by name: train, val, test, and the further splits."""
        return {"train": self.train, "val": self.val, "test": self.test, **self.further}

    def with_splits(self, change: Callable[[Split], Split]) -> DataSet:
        """Return the data set with every split changed by `change`."""
        further = {name: change(split) for name, split in self.further.items()}
        return replace(self, train=change(self.train), val=change(self.val), test=change(self.test), further=further)

    @staticmethod
    def from_torch(train: Iterable[Any], val: Iterable[Any], test: Iterable[Any], name: str = "from_torch") -> DataSet:
        """Return a data set in memory from three torch data sets, or other iterables of (input, class).

        Raises:
            ValueError: a split is empty, or its samples have several shapes.

        Example:
            >>> samples = [(torch.zeros(3), 0), (torch.ones(3), 1)]
            >>> dataset = DataSet.from_torch(samples, samples, samples)
            >>> dataset.classes, dataset.input_shape
            (2, (3,))
        """
        splits = []
        for part, samples in zip(SPLITS, (train, val, test), strict=True):
            pairs = [(torch.as_tensor(sample), int(label)) for sample, label in samples]
            shapes = {tuple(sample.shape) for sample, _ in pairs}
            if len(shapes) != 1:
                raise ValueError(f"{part} holds {'samples of several shapes' if shapes else 'no samples'}")
            inputs, labels = zip(*pairs, strict=True)
            splits.append(Split(torch.stack(inputs), torch.tensor(labels)))
        parts = [split.targets.numpy() for split in splits]
        classes, shape = 1 + max(int(part.max()) for part in parts), tuple(splits[0].inputs.shape[1:])
        return DataSet(name, splits[0], splits[1], splits[2], classes, shape, hash_of_splits(*parts))

    @property
    def nbytes(self) -> int:
        """Size of all splits in memory, bytes."""
        return sum(split.nbytes for split in self.splits.values())

    def to(self, device: torch.device | str, streamed: bool = False) -> DataSet:
        """Return the data set with all splits on `device`, or streamed there batch by batch; see `Split.to`."""
        return self.with_splits(lambda split: split.to(device, streamed))


def divided(
    name: str,
    inputs: NDArray[np.generic],
    targets: NDArray[np.int64],
    parts: Sequence[Indices],
    classes: int,
    split_hash: str | None = None,
    weights: NDArray[np.float32] | None = None,
    **facts: Any,
) -> DataSet:
    """Return the data set of arrays [N, ...] and classes [N] with training, validation and test indices `parts`.

    Args:
        name: name in the registry.
        inputs: stored inputs [N, ...].
        targets: classes [N].
        parts: indices of the three splits.
        classes: number of classes K.
        split_hash: hash of the splits; `None` for the hash of the indices.
        weights: weights of the samples [N]; `None` for equal weights.
        facts: other attributes of the `DataSet`.

    Example:
        >>> parts = stratified_split(np.array([0, 1] * 10), (0.2, 0.2), seed=0)
        >>> dataset = divided("mine", np.zeros((20, 3), np.float32), np.array([0, 1] * 10), parts, classes=2)
        >>> len(dataset.train), len(dataset.val), len(dataset.test)
        (12, 4, 4)
    """
    train, val, test = (Split(torch.from_numpy(inputs[part]), torch.from_numpy(targets[part])) for part in parts)
    if weights is not None:
        own = (torch.from_numpy(weights[part]) for part in parts)
        train, val, test = (replace(part, weights=w) for part, w in zip((train, val, test), own, strict=True))
    chosen = hash_of_splits(*parts) if split_hash is None else split_hash
    return DataSet(name, train, val, test, classes, inputs.shape[1:], chosen, **facts)


@dataclass(frozen=True)
class DataSetComponent(Component):
    """The registry's entry of a data set.

    Attributes:
        splits: names of its splits, which `evaluation.splits` can request.
        size: function from options to the size, for a plan before anything is downloaded; `None` if only the files
            determine it.
        describe: function that opens the user's file and describes its contents in a sentence, for `sweeper validate`;
            `None` for data sets that are not a user's file.
    """

    splits: tuple[str, ...] = SPLITS
    size: Callable[[Options], DataSetSize | None] | None = None
    describe: Callable[[Options], str] | None = None


def _own_dataset(target: object, path: str, name: str) -> DataSetComponent:
    if not callable(target) or target is DataSet:
        raise ExtensionError(f"{path} is {described(target)}; a data set is a function that returns a DataSet")
    return DataSetComponent(name, target, hyperparameters_of(target, path, []))


DATASETS = Registry("data set", OwnFamily("datasets", _own_dataset), DataSetComponent)


def load_dataset(name: str, **options: object) -> DataSet:
    """Load data set `name` with the options of its component.

    Raises:
        ValueError: unknown name or invalid options.
        DataSetUnavailableError: the files are missing, truncated or corrupted; the message has the path and the remedy.

    Example:
        >>> from trainables.datasets import load_dataset
        >>> digits = load_dataset("digits")
        >>> len(digits.train), digits.input_shape, digits.classes
        (1079, (1, 8, 8), 10)
    """
    dataset: DataSet = DATASETS.build(name, **options)
    return dataset


# Up to this size a whole shuffled copy of the split costs less than indexing batch by batch.
WHOLE_COPY_BYTES = 32 * 2**20


def batches(split: Split, batch_size: int, generator: torch.Generator, skip: int = 0) -> Iterator[tuple[Tensor, ...]]:
    """Yield one epoch of training batches (inputs [B, ...], targets [B]) in random order, augmented.

    If the split has `loss_weights`, each batch has its weights [B] as a third element.

    The order, then the draws of the augmentation, come from `generator` (on the CPU) once per epoch. An epoch is
    therefore a function of the generator's state alone. A device receives two transfers per epoch.

    Args:
        split: usually `train`, on its device.
        batch_size: samples per batch; the last batch can be smaller.
        generator: CPU generator.
        skip: number of batches to skip at the beginning; nothing is read for them.

    Raises:
        ValueError: the batch size is below 1.

    Example:
        >>> split = Split(torch.arange(5.0)[:, None], torch.arange(5))
        >>> [len(targets) for _, targets in batches(split, 2, torch.Generator().manual_seed(0))]
        [2, 2, 1]
    """
    samples = len(split)
    if batch_size < 1:
        raise ValueError(f"batch_size = {batch_size} must be at least 1")
    chosen = _drawn_order(split, generator)
    order = chosen.to(split.targets.device)
    weights = split.loss_weights
    labels = [split.targets[order], *([] if weights is None else [weights[order]])]
    seeds = draws = None
    if split.source is not None and split.source.changed is not None:
        seeds = torch.randint(2**62, (samples,), generator=generator)
    if split.augmentation is not None:
        draws = split.augmentation.draw(samples, generator).to(split.targets.device)
    # skipped after all draws: a resumed epoch continues with the batches of the interrupted one
    parts = [slice(start, min(start + batch_size, samples)) for start in range(0, samples, batch_size)][skip:]
    if split.source is not None or split.streamed:
        drawn = None if seeds is None else [seeds[rows] for rows in parts]
        stored = split.read_ahead([chosen[rows] for rows in parts], drawn)
        for rows, inputs in zip(parts, stored, strict=True):
            yield split.prepare(inputs, None if draws is None else draws[rows]), *(label[rows] for label in labels)
        return
    whole = None
    if draws is None and split.inputs.nbytes <= WHOLE_COPY_BYTES:
        whole = split.inputs.index_select(0, order)
    for rows in parts:
        inputs = split.stored(order[rows]) if whole is None else whole[rows]
        yield split.prepare(inputs, None if draws is None else draws[rows]), *(label[rows] for label in labels)


def _drawn_order(split: Split, generator: torch.Generator) -> Tensor:
    """Return the samples of an epoch in order, int64 [N] on the CPU."""
    if not split.balanced:
        return torch.randperm(len(split), generator=generator)
    targets = split.targets.cpu()
    chances = 1 / targets.bincount().double()[targets]
    return torch.multinomial(chances, len(split), replacement=True, generator=generator)


def epoch_order(split: Split, generator: torch.Generator) -> Tensor:
    """Return the order in which `batches` reads a split without augmentation, int64 [N] on its device."""
    return _drawn_order(split, generator).to(split.targets.device)


def evaluation_batches(split: Split, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (network inputs [B, ...], targets [B]) in order and unaugmented; a network can change the inputs in place.

    Example:
        >>> split = Split(torch.arange(5.0)[:, None], torch.arange(5))
        >>> [targets.tolist() for _, targets in evaluation_batches(split, 2)]
        [[0, 1], [2, 3], [4]]
    """
    parts = [slice(start, start + batch_size) for start in range(0, len(split), batch_size)]
    if split.source is not None or (split.streamed and len(parts) > 1):
        places = torch.arange(len(split))
        for rows, inputs in zip(parts, split.read_ahead([places[rows] for rows in parts]), strict=True):
            yield split.prepare(inputs), split.targets[rows]
        return
    for rows in parts:
        yield split.prepare(split.inputs[rows].clone()), split.targets[rows]


def batch_fault(dataset: DataSet, batch_size: int) -> str | None:
    """Return the reason why training on a data set in batches of `batch_size` is impossible, or `None`."""
    most = len(dataset.train)
    if batch_size > most:
        whose = f"the {most} training samples of {dataset.name}"
        return f"batch_size = {batch_size} is larger than {whose}; choose at most {most}"
    return None
