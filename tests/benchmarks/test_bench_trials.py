"""The trainable of `bench_trials` follows the executor's protocol; once that had changed, and every trial failed."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_trials import measure

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("kind", ["bare", "sweep"])
def test_trials_that_train_nothing_end(kind: str) -> None:
    found = measure(kind, trials=3, last=2)
    assert found["seconds"] > 0 and ("sync" in found) == (kind == "sweep")
