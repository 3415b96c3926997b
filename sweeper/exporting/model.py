"""An exported model in use: images or tensors in, calibrated probabilities out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweeper.core.errors import SweeperError
from sweeper.exporting.chosen import Description
from sweeper.exporting.folder import DESCRIPTION, FORMAT, PROGRAM
from trainables.datasets import DataSetUnavailableError
from trainables.datasets.image_files import decode_image, image_pixels
from trainables.datasets.image_stream import ImagePreprocessing
from trainables.files.regular import read_text

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture: TypeAlias = str | Path | Image


BATCH = 256


class ExportedModel:
    """A model that `sweeper export` wrote.

    Attributes:
        folder: where it lies.
        description: the contents of `model.json`.
        class_names: of the columns of `predict`.
        input_shape: of one preprocessed sample.
        module: the program: preprocessed inputs [N, …] → probabilities [N, K].
    """

    def __init__(self, folder: Path, description: Description, module: torch.nn.Module) -> None:
        """Take what `load_model` has read."""
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
                data set stores them; or images: a path, an image of Pillow's, or a list of these. One sample may come
                without its first dimension.

        Raises:
            SweeperError: inputs of another shape or type, or images where the data set's preprocessing is not known.
        """
        samples = self._samples(inputs)
        parts = [samples[at : at + BATCH] for at in range(0, len(samples), BATCH)]
        if not parts:
            return torch.empty(0, len(self.class_names))
        return torch.cat([self.module(self._prepared(part)) for part in parts])

    def _samples(self, inputs: Tensor | NDArray[np.generic] | Picture | Sequence[Picture]) -> Tensor:
        """Return samples as the network takes them or as the data set stores them."""
        if not isinstance(inputs, (Tensor, np.ndarray)):
            return self._pixels(inputs)
        given = inputs if isinstance(inputs, Tensor) else torch.from_numpy(np.ascontiguousarray(inputs))
        pixels = given.dtype == torch.uint8 and self._stored_shape is not None
        shape = self._stored_shape if pixels and self._stored_shape else self.input_shape
        fits = given.is_floating_point() if self._dtype.is_floating_point else not given.is_floating_point()
        if not (pixels or fits) or (tuple(given.shape) != shape and tuple(given.shape[1:]) != shape):
            images = f", or uint8 pixels [N, {_sizes(self._stored_shape)}]" if self._stored_shape else ""
            raise SweeperError(
                f"the model cannot take {str(given.dtype).removeprefix('torch.')} [{_sizes(given.shape)}]",
                f"give {self.description['input']['dtype']} [N, {_sizes(self.input_shape)}], preprocessed as the data "
                f"set's samples{images}",
            )
        whole = given if given.dim() > len(shape) else given.unsqueeze(0)
        return whole if pixels else whole.to(self._dtype)

    def _pixels(self, pictures: Picture | Sequence[Picture]) -> Tensor:
        if self._stored_shape is None or self._stored_shape[0] != 3:
            raise SweeperError(
                "the model cannot take images: its data set's loader prepares its samples itself",
                f"give {self.description['input']['dtype']} [N, {_sizes(self.input_shape)}], preprocessed as the data "
                "set's samples",
            )
        side = self._stored_shape[-1]
        each = pictures if isinstance(pictures, Sequence) and not isinstance(pictures, str) else [pictures]
        try:
            decoded = [
                decode_image(Path(one), side) if isinstance(one, (str, Path)) else image_pixels(one, side)
                for one in each
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
    """Return the model that `sweeper export` wrote into the folder `path`.

    Its program is run, and reading it may run more: load only folders whose writer you trust.

    Raises:
        SweeperError: there is none, or it is damaged or of a later release.
    """
    folder = Path(path)
    try:
        description = json.loads(read_text(folder / DESCRIPTION))
        known = description["format"]
        module = torch.export.load(folder / PROGRAM).module() if known == FORMAT else None
    except FileNotFoundError as error:
        raise SweeperError(f"{folder} has no {Path(str(error.filename or PROGRAM)).name}", _EXPORT) from error
    except Exception as error:
        # torch reports a damaged program as any of a dozen types.
        raise SweeperError(f"the model in {folder} is damaged ({type(error).__name__})", _EXPORT) from error
    if module is None:
        raise SweeperError(f"the model in {folder} is of format {known}, not {FORMAT}", "load it with a later release")
    return ExportedModel(folder, description, module)


_EXPORT = "give a folder that `sweeper export NAME --to FOLDER` wrote"


def _sizes(shape: Sequence[int] | None) -> str:
    return ", ".join(map(str, shape or ()))
