"""Rehearsals: what a file changes for one, its faults, and that no rehearsal passes for the real thing."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from search_spaces import packaged_files
from sweeper.core.errors import InvalidSearchSpace
from sweeper.core.labels import rehearsal_name
from sweeper.core.schemas import record_batch, table_schemas
from sweeper.planning.costs import dataset_size
from sweeper.space.configurations import configurations
from sweeper.space.loading import build_spec, load_spec
from sweeper.space.spec import SweepSpec
from sweeper.storage.metadata import build_manifest
from tests.rehearsals import REHEARSED

SPACE = """
dataset: cifar100
scheduler: {name: asha, max_epochs: 350, grace_epochs: 40, reduction_factor: 3}
samples: 100
replicates: 5
space:
  loss: {grid: [cross_entropy, {name: focal, gamma: {grid: [1, 2, 3, 5]}}]}
  architecture: resnet50
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.1]}}
"""

REHEARSAL = """
rehearsal:
  dataset: digits_stand_in
  scheduler: {name: asha, max_epochs: 4, grace_epochs: 1}
  samples: 2
  replicates.seeds: common
  space.loss.grid[1].gamma: 3
  space.architecture.pool: 1
"""


def spec_of(tmp_path: Path, more: str = REHEARSAL, *overrides: str, rehearse: bool = True) -> SweepSpec:
    path = tmp_path / "space.yaml"
    path.write_text(SPACE + textwrap.dedent(more))
    return load_spec(path, overrides, rehearse=rehearse)


def faults_of(tmp_path: Path, more: str, *overrides: str, **options: Any) -> list[tuple[str, int | None]]:
    with pytest.raises(InvalidSearchSpace) as caught:
        spec_of(tmp_path, more, *overrides, **options)
    return [(fault.path, fault.line) for fault in caught.value.faults]


def test_a_rehearsal_has_the_files_changes_and_nothing_else(tmp_path: Path) -> None:
    real, small = spec_of(tmp_path, rehearse=False), spec_of(tmp_path)
    assert (real.is_rehearsal, real.scheduler.max_epochs, len(configurations(real))) == (False, 350, 500)
    assert small.is_rehearsal and small.rehearsal is None and len(small.rehearsed) == 6
    assert small.schedule.rungs == (1, 3, 4) and small.dataset["name"] == "digits_stand_in"
    assert (small.replicates.count, small.replicates.seeds) == (5, "common"), "joined to the short form's count"
    drawn = configurations(small)
    assert sorted(c["loss"].get("gamma", 0) for c in drawn) == [0, 0, 3, 3]
    assert {(c["architecture"]["name"], c["architecture"]["pool"]) for c in drawn} == {("resnet50", 1)}
    assert small.evaluation == real.evaluation


def test_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, REHEARSAL, "samples=1", "scheduler.max_epochs=2")
    assert (spec.samples, spec.scheduler.max_epochs, spec.replicates.seeds) == (1, 2, "common")


#: What a file writes below its 9 lines → paths and lines of the faults.
FAULTS = [
    ("", [("rehearsal", None)]),
    ("rehearsal: {}", [("rehearsal", 10)]),
    ("rehearsal: 3", [("rehearsal", 10)]),
    ("rehearsal:\n  samples..x: 3\n  rehearsed: []", [("rehearsal.samples..x", 11), ("rehearsal.rehearsed", 12)]),
    ("rehearsal:\n  space.loss.grid[2].gamma: 3", [("rehearsal.space.loss.grid[2].gamma", 11)]),
    ("rehearsal:\n  smaples: 3\n  evaluation.bins: 0", [("smaples", 11), ("evaluation.bins", 12)]),
    ("rehearsal:\n  scheduler.max_epochs: 4\n  scheduler.grace_epochs: 9", [("scheduler.grace_epochs", 12)]),
]


@pytest.mark.parametrize(("text", "faults"), FAULTS)
def test_all_faults_come_at_once_with_the_lines_of_the_changes(
    tmp_path: Path, text: str, faults: list[tuple[str, int | None]]
) -> None:
    assert faults_of(tmp_path, text) == faults


def test_a_rehearsal_is_no_setting_of_the_command_line(tmp_path: Path) -> None:
    for rehearse in (False, True):
        assert faults_of(tmp_path, REHEARSAL, "rehearsal.samples=3", rehearse=rehearse) == [("rehearsal.samples", None)]
    assert faults_of(tmp_path, "rehearsal: 3", rehearse=False) == [("rehearsal", 10)]


def test_a_rehearsals_resolved_file_is_itself_again(tmp_path: Path) -> None:
    for spec in (spec_of(tmp_path), spec_of(tmp_path, rehearse=False)):
        assert build_spec(spec.resolved()) == spec.model_copy(update={"rehearsal": None})


def test_every_experiment_of_a_paper_has_a_rehearsal() -> None:
    assert {name for name, path in packaged_files().items() if path.parent.name == "papers"} <= {*REHEARSED}


@pytest.mark.parametrize("name", REHEARSED)
def test_every_shipped_rehearsal_is_small(name: str) -> None:
    spec = load_spec(packaged_files()[name], rehearse=True)
    drawn = configurations(spec)
    assert spec.is_rehearsal and len(drawn) <= 48 and spec.scheduler.max_epochs <= 12
    assert spec.resources.cpu == 1 and spec.replicates.count <= 4
    size = dataset_size(spec.dataset)
    assert size is None or size.train <= 5000


@pytest.mark.parametrize("rehearsal", [False, True])
def test_every_row_that_the_driver_writes_says_what_it_is(rehearsal: bool) -> None:
    schemas = table_schemas({}, 10, (), rehearsal=rehearsal)
    for table in ("trials", "epochs", "evaluations", "decisions"):
        batch = record_batch(table, schemas[table], [{"trial": "c00000"}, {"trial": "c00001"}])
        assert batch.column("rehearsal").to_pylist() == [rehearsal, rehearsal]


def test_manifest_and_name_say_so(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert build_manifest(spec, {})["rehearsal"] == spec.rehearsed
    assert "rehearsal" not in build_manifest(spec_of(tmp_path, rehearse=False), {})
    assert rehearsal_name("mine") == "mine-rehearsal" == rehearsal_name("mine-rehearsal")
    assert len(rehearsal_name("x" * 100)) == 100
