"""`run --continue`: starts what is not there, goes on with what is, and refuses another sweep of the same name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sweeper.core.errors import SweeperError
from sweeper.execution.runner import to_continue
from sweeper.space.loading import load_spec
from tests.running import SPACE, write_space


def kept(folder: Path, space: Path, name: str) -> None:
    """Leave what a sweep of a search space leaves at its start."""
    (folder / name).mkdir(parents=True)
    (folder / name / "sweep.yaml").write_text(yaml.safe_dump(load_spec(space).resolved()))


def test_a_name_that_is_free_is_begun_and_one_of_the_same_space_continued(tmp_path: Path) -> None:
    space, output = write_space(tmp_path), tmp_path / "results"
    assert to_continue(str(space), [], None, str(output), rehearse=False) == ("small", False)
    kept(output, space, "small")
    assert to_continue(str(space), [], None, str(output), rehearse=False) == ("small", True)
    assert to_continue(str(space), [], "other", str(output), rehearse=False) == ("other", False)


@pytest.mark.parametrize(("override", "key"), [("seed=77", "seed"), ("space.optimizer.lr=0.123", "space")])
def test_another_search_space_is_another_sweep(tmp_path: Path, override: str, key: str) -> None:
    space, output = write_space(tmp_path, SPACE), tmp_path / "results"
    kept(output, space, "small")
    with pytest.raises(SweeperError, match=f"another search space: {key} differ"):
        to_continue(str(space), [override], None, str(output), rehearse=False)
    assert to_continue(str(space), ["budget.gpu_hours=3"], None, str(output), rehearse=False) == ("small", True)
