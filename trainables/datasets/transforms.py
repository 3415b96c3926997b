"""What a data set declares of its transform: how the inputs that it stores were made from raw inputs.

An export puts the transform before the network, so that a model takes the inputs that the data set's source has:
pixels, rows of a table, texts. `raw_inputs` reads them into one array on the host; inside the program, a module turns
this array into stored inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trainables.datasets.raw_inputs import NUMERIC, Column, Reader


@dataclass(frozen=True, eq=False)
class Transform:
    """How the stored inputs of a data set were made from raw inputs.

    Attributes:
        module: function from raw inputs [N, …] to stored inputs [N, …], of torch operations alone; `None` if the
            reader's array is stored as it is.
        raw: raw inputs of the test split [N, …], with which an export checks the program from end to end; `None`
            without a module.
        reader: reader of what users have; `None` for tensors like `raw`.

    Raises:
        ValueError: there is a module without raw inputs, or neither a module nor a reader.

    Example:
        >>> celsius = torch.tensor([[20.0], [30.0]])
        >>> transform = Transform(lambda raw: (raw - 25) / 5, raw=celsius)
        >>> transform.module(transform.raw).tolist()
        [[-1.0], [1.0]]
    """

    module: Callable[[Tensor], Tensor] | None = None
    raw: Tensor | None = None
    reader: Reader | None = None

    def __post_init__(self) -> None:
        """Check that the transform can be applied and checked."""
        if (self.module is None) != (self.raw is None) or (self.module is None and self.reader is None):
            raise ValueError("a Transform has a module with the test split's raw inputs, a reader, or both")


@dataclass(frozen=True)
class Undeclared:
    """Says that stored inputs were transformed in a way that cannot travel: networks trained on them are not exported.

    Attributes:
        reason: the reason, for the error of an export.
    """

    reason: str


class Standardised(nn.Module):
    """Subtracts means and divides by standard deviations, in float64, and returns float32.

    Example:
        >>> Standardised(np.array(8.0), np.array(4.0))(torch.tensor([0, 16], dtype=torch.uint8)).tolist()
        [-2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: NDArray[np.float64], std: NDArray[np.float64]) -> None:
        """Keep means and standard deviations, numbers or of the shape of one input; a constant input becomes 0."""
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(np.asarray(mean, np.float64)))
        self.register_buffer("std", torch.from_numpy(np.asarray(np.where(std > 0, std, 1.0), np.float64)))

    def forward(self, raw: Tensor) -> Tensor:
        """Return standardised inputs."""
        standardised: Tensor = (raw.double() - self.mean) / self.std
        return standardised.float()


#: Number of rows of a table that are encoded at once. It limits the memory of intermediate float64 features.
ROWS = 10_000


class TableFeatures(nn.Module):
    """Turns rows of numbers and codes, float64 [N, columns], into features, float32 [N, D].

    A number is standardised; if rows may lack it, a missing one becomes 0 and is marked in a second feature. A missing
    number elsewhere stays NaN, and so do the probabilities. A code becomes one feature per level.

    Example:
        >>> columns = [Column("age", "number", missing=True), Column("ward", "text", ("A", "B"))]
        >>> features = TableFeatures(columns, [50.0, 0.0], [10.0, 1.0])
        >>> features(torch.tensor([[60.0, 1.0], [torch.nan, -1.0]], dtype=torch.float64)).tolist()
        [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]
    """

    column: Tensor
    mean: Tensor
    spread: Tensor
    code: Tensor
    number: Tensor
    missing: Tensor

    def __init__(self, columns: Sequence[Column], means: Sequence[float], spreads: Sequence[float]) -> None:
        """Keep the columns with the mean and standard deviation of each; those of codes are unused."""
        super().__init__()
        # One entry per feature: its column, mean and spread; the code it stands for, NaN for numbers; kind of feature.
        made: list[tuple[int, float, float, float, bool, bool]] = []
        for at, (column, mean, spread) in enumerate(zip(columns, means, spreads, strict=True)):
            if column.form in NUMERIC:
                made.append((at, mean, spread if spread > 0 else 1.0, np.nan, True, column.missing))
                made += [(at, 0.0, 1.0, np.nan, False, True)] * column.missing
            else:
                made += [(at, 0.0, 1.0, float(code), False, False) for code in range(len(column.levels))]
        names = ("column", "mean", "spread", "code", "number", "missing")
        for name, values, dtype in zip(names, zip(*made, strict=True), (int, *[float] * 3, bool, bool), strict=True):
            self.register_buffer(name, torch.from_numpy(np.array(values, dtype)))

    def forward(self, rows: Tensor) -> Tensor:
        """Return features."""
        values = rows.index_select(1, self.column)
        missing = ~torch.isfinite(values) & self.missing
        numbers = torch.where(missing, 0.0, (values - self.mean) / self.spread)
        marks = missing | (values == self.code)
        return torch.where(self.number, numbers, marks.double()).float()

    @torch.no_grad()
    def of_table(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the features of a whole table."""
        parts = [self(torch.from_numpy(rows[at : at + ROWS])).numpy() for at in range(0, len(rows), ROWS)]
        return np.concatenate(parts)
