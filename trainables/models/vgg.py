"""VGG-19 with batch normalisation for 32x32 images.

Simonyan and Zisserman 2015, Table 1, column E, each convolution followed by batch normalisation; the three fully
connected layers become one, as five poolings leave a single pixel of a 32x32 image.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from trainables.models.base import ARCHITECTURES, initialise, require_image

COLUMN_E = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and convolutions before each pooling


@ARCHITECTURES.add("vgg19", stand_in={"name": "vgg19", "width": 0.0625})
class VGG(nn.Module):
    """VGG-19 with batch normalisation for 32x32 images.

    Source: curvature; Simonyan & Zisserman 2015.

    Args:
        width: [Simonyan & Zisserman 2015].

    Raises:
        ValueError: the shape is not an image of at least 32x32 (five poolings halve it).
    """

    def __init__(self, input_shape: tuple[int, ...], classes: int, width: Annotated[float, "(0, inf)"] = 1.0) -> None:
        """Create the network with `width` times the channels of column E."""
        super().__init__()
        layers: list[nn.Module] = []
        features, _, _ = require_image(input_shape, minimum_side=32, network="vgg19")
        for base, convolutions in COLUMN_E:
            channels = max(1, round(base * width))
            for _ in range(convolutions):
                layers += [nn.Conv2d(features, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
                features = channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(features, classes)
        initialise(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.features(inputs).mean((2, 3)))
        return logits
