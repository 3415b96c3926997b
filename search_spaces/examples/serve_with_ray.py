"""Serve an exported model with Ray Serve (`pip install -e '.[ray-serve]'`), on this machine's port 8000:

serve run search_spaces.examples.serve_with_ray:application model=/absolute/path/to/model

POST JSON `{"inputs": [sample, ...]}` with raw samples (pixels, rows `{"column": value, ...}`, texts; the model's card
describes them), or an image file as the body if the data set has colour images. The answer is
`{"predictions": [[probability, ...], ...]}`.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from ray import serve
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import sweeper


@serve.deployment
class CalibratedModel:
    """Answers requests with calibrated probabilities; each replica holds the model in memory."""

    def __init__(self, folder: str) -> None:
        self.model = sweeper.load_model(folder)

    async def __call__(self, request: Request) -> Response:
        """Answer one request; status 400 with the reason for inputs that the model cannot take."""
        body, kind = await request.body(), request.headers.get("content-type", "")
        try:
            # The network would block the event loop, and with it every other request of this replica.
            probabilities = await run_in_threadpool(self.answer, body, kind)
        except (sweeper.SweeperError, UnidentifiedImageError, KeyError, TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"predictions": probabilities.tolist()})

    def answer(self, body: bytes, kind: str) -> torch.Tensor:
        """Return probabilities [N, K] of a request's body."""
        if kind.startswith("image/"):
            return self.model.predict(Image.open(io.BytesIO(body)))
        # `reader` opens no files, whereas `predict` takes a text for the path of one.
        return self.model.predict(self.model.reader.array(json.loads(body)["inputs"]))


def application(arguments: dict[str, str]) -> serve.Application:
    """Return the application for `model`, a folder that `sweeper export` wrote."""
    # A replica may run in another working directory, so the path is made absolute here.
    return CalibratedModel.bind(str(Path(arguments["model"]).resolve()))
