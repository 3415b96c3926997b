"""Use an exported model: raw inputs in, calibrated probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from sweeper.core.errors import SweeperError
from sweeper.exporting.chosen import Description
from sweeper.exporting.reading import read_model
from trainables.datasets import DataSetUnavailableError
from trainables.datasets.cache import refused
from trainables.datasets.image_files import decode_image, image_pixels
from trainables.datasets.image_stream import View
from trainables.datasets.raw_inputs import Array, Numbers, RefusedInputsError, TableRows, reader_of
from trainables.datasets.table_files import read_table

if TYPE_CHECKING:
    from PIL.Image import Image


#: Number of samples per call of the program. It limits the memory of activations.
BATCH = 256


class ExportedModel:
    """A model that `sweeper export` wrote, returned by `sweeper.load_model`.

    Attributes:
        folder: folder of the model.
        description: contents of `model.json`.
        class_names: names of the K columns of `predict`.
        reader: reader of raw inputs (`trainables.datasets.raw_inputs`); `reader.array(inputs)` opens no files.
        input_shape: shape of one sample of the program's input.
        module: the program, raw inputs [N, …] → probabilities [N, K].

    Example:
        >>> given = {"kind": "array", "shape": [3], "dtype": "float32", "transformed": False}
        >>> description = {"class_names": ["cat", "dog"], "input": given, "pictures": None,
        ...     "source": {"sweep": "pets", "trial": "c00000"}}
        >>> program = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Softmax(dim=1))
        >>> model = ExportedModel(Path("pets_model"), description, program)
        >>> model
        ExportedModel(pets_model: pets, c00000, 2 classes)
        >>> model.predict(torch.zeros(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, folder: Path, description: Description, module: torch.nn.Module) -> None:
        """Wrap the files that `load_model` has read."""
        self.folder, self.description, self.module = folder, description, module
        self.class_names: tuple[str, ...] = tuple(description["class_names"])
        self.input_shape: tuple[int, ...] = tuple(description["input"]["shape"])
        self.reader = reader_of(description["input"], folder)

    @torch.no_grad()
    def predict(self, inputs: Any) -> Tensor:
        """Return calibrated probabilities, float32 [N, K].

        Args:
            inputs: raw inputs, as the data set's source has them; `model_card.md` describes them:

                * arrays, tensors or nested lists [N, *input_shape]; a single sample may lack the first dimension;
                * images, if the data set has colour images: a path, a Pillow image, or a list of these;
                * rows of a table by column name: a DataFrame, an Arrow table, a dict of columns, a dict or a list of
                  dicts, or the path of a CSV, Parquet or JSON Lines file; or an array in the order of the columns;
                * texts: a text, a list of texts, or rows with the column of texts.

        Raises:
            SweeperError: the model cannot take the inputs; the error has every fault.
        """
        try:
            samples = torch.from_numpy(np.ascontiguousarray(self._array(inputs)))
        except RefusedInputsError as error:
            raise SweeperError(error.problem, error.remedy) from error
        except DataSetUnavailableError as error:
            raise SweeperError(str(error)) from error
        parts = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
        if not parts:
            return torch.empty(0, len(self.class_names))
        return torch.cat([self.module(part) for part in parts])

    def _array(self, inputs: Any) -> Array:
        """Return the array that the program takes."""
        several = isinstance(inputs, Sequence) and not isinstance(inputs, str)
        first = next(iter(inputs), None) if several else inputs
        if isinstance(self.reader, Numbers) and (isinstance(first, (str, Path)) or hasattr(first, "convert")):
            return self._pixels(inputs if several else [inputs])
        if isinstance(self.reader, Numbers):
            return self.reader.array(inputs)
        if isinstance(inputs, Path) or (isinstance(inputs, str) and isinstance(self.reader, TableRows)):
            inputs = read_table(str(inputs), self.reader.texts)
        return self.reader.array(inputs)

    def _pixels(self, pictures: Sequence[str | Path | Image]) -> Array:
        """Return images as the data set's own functions decode and resize them, so that pixels equal its own."""
        how = self.description["pictures"]
        if how is None:
            raise RefusedInputsError(
                "the model cannot take images: its data set has no colour images that it decodes from files",
                f"give {self.description['input']['dtype']} [N, {', '.join(map(str, self.input_shape))}]",
            )
        return np.stack([_pixels(picture, how["side"], how["resized"]) for picture in pictures])

    def __repr__(self) -> str:
        source = self.description["source"]
        return f"ExportedModel({self.folder}: {source['sweep']}, {source['trial']}, {len(self.class_names)} classes)"


def _pixels(picture: str | Path | Image, side: int, resized: int | None) -> Array:
    """Return one image, uint8 [3, side, side].

    Args:
        picture: path or opened image.
        side: side of the stored image.
        resized: shorter side before the centre is cut out, of images that are decoded as they are read.
    """
    if resized is None:
        return decode_image(Path(picture), side) if isinstance(picture, (str, Path)) else image_pixels(picture, side)
    view = View(side, resized)
    if not isinstance(picture, (str, Path)):
        return view.image_pixels(picture).numpy()
    with refused(
        Path(picture), "cannot be decoded as an image", "give an intact image", OSError, SyntaxError, ValueError
    ):
        return view.pixels(Path(picture).read_bytes()).numpy()


def load_model(path: str | Path) -> ExportedModel:
    """Load the model that `sweeper export` wrote into the folder `path`.

    No pickle of the folder is run, but the program itself names the functions of torch that it calls. Load only folders
    whose author you trust.

    Raises:
        SweeperError: the folder has no model, or the model is damaged (with every fault) or from another release.

    Example:
        >>> from sweeper.core.errors import SweeperError
        >>> try:
        ...     load_model("no_such_folder")
        ... except SweeperError as error:
        ...     print(str(error).splitlines()[0])
        no_such_folder has no model.json
    """
    folder = Path(path)
    return ExportedModel(folder, *read_model(folder))
