"""Arrays of numbers as raw inputs, and what all readers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]

#: Number of values, columns or faults that an error lists.
SHOWN = 8


class RefusedInputsError(ValueError):
    """Inputs that a model cannot take.

    Attributes:
        problem: every fault, with the value and the rule.
        remedy: what to give instead.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n  {remedy}")
        self.problem, self.remedy = problem, remedy


@dataclass(frozen=True)
class Numbers:
    """Reads arrays, tensors or nested lists of numbers.

    Attributes:
        shape: shape of one sample.
        dtype: type that the program takes.
        low, high: smallest and largest value; `None` for any. Values of an integer type are also whole.
        integers: whether integers are taken. Where a data set declares no transform, integers are probably pixels that
            were not preprocessed, and would give confident nonsense.

    Example:
        >>> Numbers((2,), "uint8", 0, 16).array([[0, 16], [3.0, 4.0]]).tolist()
        [[0, 16], [3, 4]]
    """

    kind: ClassVar[str] = "array"

    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    integers: bool = True

    def array(self, inputs: Any) -> Array:
        """Return samples [N, *shape]; the first dimension can be omitted for one sample.

        Raises:
            RefusedInputsError: another shape or type, or a value that is not finite or out of range.
        """
        try:
            given = np.asarray(inputs)
        except ValueError:  # rows of unequal length
            given = np.asarray(None)
        target, single = np.dtype(self.dtype), given.shape == self.shape
        numeric = given.dtype.kind in ("buif" if self.integers or target.kind != "f" else "f")
        if not numeric or not (single or (given.ndim and given.shape[1:] == self.shape)):
            raise self._refused(f"{given.dtype} [{', '.join(map(str, given.shape))}]")
        samples = given[None] if single else given
        whole = (samples == np.floor(samples)) if target.kind in "ui" else True
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        taken = np.isfinite(samples) & whole & (samples >= low) & (samples <= high)
        if not taken.all():
            place = tuple(int(at) for at in np.argwhere(~taken)[0])
            raise self._refused(f"the value {samples[place]} in sample {place[0]}")
        return samples.astype(target)

    def example(self, sample: Array) -> Any:
        """Return the one sample in an array [1, *shape] as a user gives it."""
        return sample.tolist()

    def _refused(self, given: str) -> RefusedInputsError:
        values = "finite values" if self.low is None else f"values from {self.low:g} to {self.high:g}"
        kind = "" if self.integers or np.dtype(self.dtype).kind != "f" else ", as the data set returns its inputs"
        remedy = f"give {self.dtype} [N, {', '.join(map(str, self.shape))}] with {values}{kind}"
        return RefusedInputsError(f"the model cannot take {given}", remedy)


def columns_by_name(inputs: Any) -> dict[str, Any] | None:
    """Return columns by name of a DataFrame, an Arrow table, a dict or a list of dicts; `None` for other inputs."""
    if isinstance(inputs, Mapping):
        scalar = all(isinstance(value, str) or not hasattr(value, "__len__") for value in inputs.values())
        return {str(name).strip(): [value] if scalar else value for name, value in inputs.items()}
    if isinstance(inputs, Sequence) and inputs and all(isinstance(row, Mapping) for row in inputs):
        keys = dict.fromkeys(name for row in inputs for name in row)
        return {str(name).strip(): [row.get(name) for row in inputs] for name in keys}
    if hasattr(inputs, "column_names"):
        return {name.strip(): inputs.column(name) for name in inputs.column_names}
    if hasattr(inputs, "columns") and hasattr(inputs, "iloc"):
        # by position: two columns can have one name, and the last would win
        names = [str(name).strip() for name in inputs.columns]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise RefusedInputsError(f"several columns are called {doubled[0]!r}", "give each column its own name")
        return {name: inputs.iloc[:, at] for at, name in enumerate(names)}
    return None
