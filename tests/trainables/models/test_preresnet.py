"""Shortcuts that change shape: of the activated input (He et al. 2016) or of the raw one (selective's code)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from trainables.models import build_model
from trainables.models.preresnet import PreActivationBlock


def by_hand(block: PreActivationBlock, inputs: torch.Tensor, raw: bool) -> torch.Tensor:
    """A bottleneck, line by line as the selective paper's released network computes it where `raw`."""
    hidden = functional.relu(block.bn1(inputs))
    shortcut = block.shortcut(inputs if raw else hidden)
    hidden = functional.relu(block.bn2(block.conv1(hidden)))
    hidden = functional.relu(block.bn3(block.conv2(hidden)))
    return block.conv3(hidden) + shortcut


@pytest.mark.parametrize("shortcut", ["activated", "raw"])
def test_a_bottleneck_that_changes_shape_projects_what_it_says(shortcut: str) -> None:
    torch.manual_seed(0)
    block = PreActivationBlock(8, 4, 2, bottleneck=True, shortcut=shortcut).eval()
    inputs = torch.randn(3, 8, 8, 8)
    torch.testing.assert_close(block(inputs), by_hand(block, inputs, shortcut == "raw"))


def test_the_two_differ_and_the_default_is_he_et_als() -> None:
    torch.manual_seed(0)
    plain = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True).eval()
    raw = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True, shortcut="raw").eval()
    same = build_model("preresnet", (3, 8, 8), 10, depth=8, width=0.5, bottleneck=True, shortcut="activated").eval()
    raw.load_state_dict(plain.state_dict())
    same.load_state_dict(plain.state_dict())
    inputs = torch.randn(2, 3, 8, 8)
    assert torch.equal(plain(inputs), same(inputs)) and not torch.allclose(plain(inputs), raw(inputs), rtol=0.05)


def test_an_unknown_shortcut_is_refused() -> None:
    with pytest.raises(ValueError, match="activated, raw"):
        build_model("preresnet", (3, 32, 32), 10, depth=8, shortcut="projected")
