"""Use an exported model: images or tensors in, calibrated probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweeper.core.errors import SweeperError
from sweeper.exporting.chosen import Description
from sweeper.exporting.reading import read_model
from trainables.datasets import DataSetUnavailableError
from trainables.datasets.image_files import decode_image, image_pixels
from trainables.datasets.image_stream import ImagePreprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture: TypeAlias = str | Path | Image


#: Number of samples per call of the program. It limits the memory of activations.
BATCH = 256


class ExportedModel:
    """A model that `sweeper export` wrote, returned by `sweeper.load_model`.

    Attributes:
        folder: folder of the model.
        description: contents of `model.json`.
        class_names: names of the K columns of `predict`.
        input_shape: shape of one preprocessed sample.
        module: the program, preprocessed inputs [N, …] → probabilities [N, K].

    Example:
        >>> description = {"class_names": ["cat", "dog"], "input": {"shape": [3], "dtype": "float32"},
        ...     "preprocessing": None, "source": {"sweep": "pets", "trial": "c00000"}}
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
        self._dtype: torch.dtype = getattr(torch, description["input"]["dtype"])
        images = description["preprocessing"]
        self._stored_shape = tuple(images["stored_shape"]) if images else None
        self._prepare = (
            ImagePreprocessing(tuple(images["mean"]), tuple(images["std"]), images["size"]) if images else None
        )

    @torch.no_grad()
    def predict(self, inputs: Tensor | NDArray[np.generic] | Picture | Sequence[Picture]) -> Tensor:
        """Return calibrated probabilities, float32 [N, K].

        Args:
            inputs: preprocessed samples [N, *input_shape] of the network's type; or uint8 pixels [N, C, H, W] as the
                data set stores them; or images: a path, a Pillow image, or a list of these. The first dimension can be
                omitted for a single sample.

        Raises:
            SweeperError: the inputs have another shape or type, or are images and the preprocessing is unknown.
        """
        samples = self._samples(inputs)
        parts = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
        if not parts:
            return torch.empty(0, len(self.class_names))
        return torch.cat([self.module(self._prepared(part)) for part in parts])

    def _samples(self, inputs: Tensor | NDArray[np.generic] | Picture | Sequence[Picture]) -> Tensor:
        """Convert inputs to samples in the form that the network takes, or in the form that the data set stores."""
        if not isinstance(inputs, (Tensor, np.ndarray)):
            return self._pixels(inputs)
        given = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.ascontiguousarray(inputs))
        pixels = given.dtype == torch.uint8 and self._stored_shape is not None
        shape = self._stored_shape if pixels and self._stored_shape else self.input_shape
        # A floating-point network accepts any floating-point type, but no integers. Integers are usually pixels that
        # were not preprocessed, and would give confident nonsense.
        fits = given.is_floating_point() if self._dtype.is_floating_point else not given.is_floating_point()
        if not (pixels or fits) or (tuple(given.shape) != shape and tuple(given.shape[1:]) != shape):
            images = f", or uint8 pixels [N, {_sizes(self._stored_shape)}]" if self._stored_shape else ""
            raise SweeperError(
                f"the model cannot take {str(given.dtype).removeprefix('torch.')} [{_sizes(given.shape)}]",
                f"give {self.description['input']['dtype']} [N, {_sizes(self.input_shape)}], preprocessed like the "
                f"data set's samples{images}",
            )
        whole = given if given.dim() > len(shape) else given.unsqueeze(0)
        return whole if pixels else whole.to(self._dtype)

    def _pixels(self, pictures: Picture | Sequence[Picture]) -> Tensor:
        if self._stored_shape is None or self._stored_shape[0] != 3:
            raise SweeperError(
                "the model cannot take images: its data set's loader preprocesses its samples itself",
                f"give {self.description['input']['dtype']} [N, {_sizes(self.input_shape)}], preprocessed like the "
                "data set's samples",
            )
        side = self._stored_shape[-1]
        images = pictures if isinstance(pictures, Sequence) and not isinstance(pictures, str) else [pictures]
        try:
            # Decoded and resized by the data set's own functions, so that pixels equal those of training.
            decoded = [
                decode_image(Path(image), side) if isinstance(image, (str, Path)) else image_pixels(image, side)
                for image in images
            ]
        except DataSetUnavailableError as error:
            raise SweeperError(str(error)) from error
        return torch.from_numpy(np.stack(decoded)) if decoded else torch.empty(0, *self._stored_shape)

    def _prepared(self, samples: Tensor) -> Tensor:
        if samples.dtype == torch.uint8 and self._prepare is not None:
            return self._prepare(samples)
        return samples

    def __repr__(self) -> str:
        source = self.description["source"]
        return f"ExportedModel({self.folder}: {source['sweep']}, {source['trial']}, {len(self.class_names)} classes)"


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


def _sizes(shape: Sequence[int] | None) -> str:
    return ", ".join(map(str, shape or ()))
