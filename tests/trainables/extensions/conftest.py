"""A folder of a user's own, looked in for import paths and forgotten afterwards."""

from pathlib import Path

import pytest

from trainables.datasets.base import DATASETS
from trainables.extensions.targets import look_in
from trainables.losses import LOSSES
from trainables.metrics.base import METRICS
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC


@pytest.fixture
def own(tmp_path: Path):
    """Write a module of the user's own: `own("name", source)`."""

    def write(name: str, source: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        look_in([tmp_path])
        for registry in (LOSSES, ARCHITECTURES, DATASETS, METRICS, POSTHOC):
            registry.forget_own()
        return path

    yield write
    look_in([])
    for registry in (LOSSES, ARCHITECTURES, DATASETS, METRICS, POSTHOC):
        registry.forget_own()
