"""A sweep's name is claimed once, its space is written down whole, and opening it gives the same sweep."""

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.core.errors import DiskFullError, InvalidSearchSpace, SweeperError
from sweeper.execution.options import RunOptions
from sweeper.execution.resuming import check_trials
from sweeper.execution.runner import resume_sweep
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Attempt
from sweeper.journal.state import fold
from sweeper.reporting.status import audit_sweep
from sweeper.space.loading import load_spec
from sweeper.storage.lookup import sweep_names
from sweeper.storage.sweeps import Sweep, create_sweep, edited, open_sweep
from tests.running import write_space
from tests.sweeper.records import made_body

SPACE = """
dataset: {name: digits}
scheduler: {name: asha, max_epochs: 9, grace_epochs: 1}
samples: 6
replicates: 2
seed: 5
space:
  loss:
    one_of:
      - {name: cross_entropy}
      - {name: focal, gamma: {uniform: [0.5, 10]}}
  architecture: mlp
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, batch_size: 64}
evaluation: {curvature: false}
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("space") / "small.yaml"
    path.write_text(SPACE)
    return load_spec(path)


def _create(spec, output, name=None, stem="small"):
    return create_sweep(spec, stem, name, output, {"seed": 5})


def test_an_opened_sweep_is_the_one_that_was_created(spec, tmp_path):
    created = _create(spec, tmp_path)
    opened = open_sweep("small", tmp_path)
    assert opened.spec == created.spec == spec
    assert list(opened.configurations) == list(created.configurations)
    assert opened.paths == created.paths and opened.name == "small"
    assert json.loads(opened.paths.manifest.read_text()) == {"seed": 5}
    assert sorted(os.listdir(created.paths.root)) == ["manifest.json", "sweep.yaml"]


def test_a_taken_stem_gets_a_number(spec, tmp_path):
    assert [_create(spec, tmp_path).name for _ in range(3)] == ["small", "small-2", "small-3"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "/tmp/x", ".hidden", "-x", "x" * 101, "a b"])
def test_a_name_cannot_escape_the_output_folder(spec, tmp_path, name):
    with pytest.raises(SweeperError, match="is not a valid sweep name"):
        _create(spec, tmp_path / "out", name)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("stem", "name"),
    [("my space", "my-space"), ("γ sweep", "sweep"), ("_draft", "draft"), ("..", "sweep"), ("x" * 150, "x" * 90)],
)
def test_any_files_stem_gives_a_name(spec, tmp_path, stem, name):
    assert [_create(spec, tmp_path, stem=stem).name for _ in range(2)] == [name, f"{name}-2"]


def test_names_are_claimed_once_by_many_at_a_time(spec, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: _create(spec, tmp_path).name, range(8)))
    assert len(set(names)) == 8


def test_an_empty_folder_is_nobodys_and_a_file_is_taken(spec, tmp_path):
    (tmp_path / "mine").mkdir()
    assert _create(spec, tmp_path, "mine").name == "mine"
    (tmp_path / "yours").touch()
    (tmp_path / "theirs").symlink_to("nowhere")
    for name in ("yours", "theirs"):
        with pytest.raises(SweeperError, match="is taken"):
            _create(spec, tmp_path, name)


@pytest.mark.parametrize("file", ["sweep.yaml", "manifest.json", "extensions.zip"])
def test_a_disk_that_is_full_leaves_no_folder_and_takes_no_name(spec, tmp_path, monkeypatch, file):
    def full(path, *_, **__):
        if path.name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("sweeper.storage.sweeps.write_text", full)
        with pytest.raises(DiskFullError, match=r"No space left on device(.|\n)*--output") as raised:
            create_sweep(spec, "small", "mine", tmp_path / "out", {}, add=lambda paths: full(paths.extensions))
    assert raised.value.exit_code == 1
    assert os.listdir(tmp_path / "out") == []
    assert _create(spec, tmp_path / "out", "mine").name == "mine"


def test_a_folder_that_is_not_complete_is_no_sweep_yet(spec, tmp_path):
    def look(paths):
        assert paths.sweep_file.exists() and paths.manifest.exists()
        assert sweep_names(tmp_path) == [] and not (tmp_path / "mine").exists()

    create_sweep(spec, "small", "mine", tmp_path, {}, add=look)
    assert sweep_names(tmp_path) == ["mine"]


@pytest.mark.parametrize("kind", ["file", "below a file"])
def test_an_output_that_is_a_file_is_a_clear_error(spec, tmp_path, kind):
    (tmp_path / "out").write_text("")
    with pytest.raises(SweeperError, match="output"):
        _create(spec, tmp_path / "out" / ("" if kind == "file" else "deeper"))


@pytest.mark.parametrize(
    "content", [b"dataset: {name: [", b"\xff\xfe\x00", b"", b"- a list", b"dataset: {name: digits}"]
)
def test_a_damaged_space_is_a_clear_error(spec, tmp_path, content):
    sweep = _create(spec, tmp_path)
    sweep.paths.sweep_file.write_bytes(content)
    with pytest.raises(SweeperError, match=r"sweep\.yaml"):
        open_sweep("small", tmp_path)


Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep that has been driven, its first trial reported."""
    spec = load_spec(write_space(tmp_path))
    made = create_sweep(spec, "small", None, tmp_path / "results", {})
    with_space(made, spec.resolved())
    return made


def with_space(sweep: Sweep, space: Any) -> None:
    journal = Journal(sweep.paths.journal, durable=False)
    journal.append(Attempt(1, "here", 1, None, space))
    journal.append(made_body("report", {"configuration": 9, "config_hash": sweep.configurations[9].digest}))


def after(sweep: Sweep, edit: Edit) -> Sweep:
    """Edit `sweep.yaml` by hand, and open the sweep again."""
    values = yaml.safe_load(sweep.paths.sweep_file.read_text())
    edit(values)
    sweep.paths.sweep_file.write_text(yaml.safe_dump(values))
    return open_sweep(sweep.name, sweep.paths.root.parent)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda v: v.update(seed=4), "seed"),
        (lambda v: v["scheduler"].update(max_epochs=81), "scheduler.max_epochs"),
        (lambda v: v["replicates"].update(count=3), "replicates.count"),
        (lambda v: v["evaluation"].update(bins=10), "evaluation.bins"),
        (lambda v: v["space"]["optimizer"]["lr"].update(loguniform=[0.01, 0.5]), "space.optimizer.lr.loguniform[1]"),
        (lambda v: v["space"]["loss"]["one_of"].pop(), "space.loss.one_of"),
        (lambda v: v.update(samples=4), "samples"),
    ],
)
def test_a_change_of_what_is_measured_is_named_and_refused(sweep: Sweep, edit: Edit, path: str) -> None:
    (fault,) = edited(after(sweep, edit))
    assert fault.path == path
    options = RunOptions(sweep.paths.root.parent, executor="ray")
    before = sweep.paths.sweep_file.read_bytes()
    with pytest.raises(InvalidSearchSpace, match="nothing was started"):
        resume_sweep(sweep.name, options)
    assert sweep.paths.sweep_file.read_bytes() == before
    if path != "samples":  # that many trials are not even there to be audited
        _, differences = audit_sweep(sweep.name, sweep.paths.root.parent)
        assert any(path in difference for difference in differences)


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v.update(samples=12),
        lambda v: v.update(budget={"gpu_hours": 3.0}, retries=5, max_concurrent=1),
        lambda v: v["resources"].update(cpu=2),
        lambda v: v.update(header={"question": "another?"}),
        lambda v: None,
    ],
)
def test_what_may_change_is_accepted(sweep: Sweep, edit: Edit) -> None:
    assert edited(after(sweep, edit)) == []


def test_the_last_driver_counts(sweep: Sweep) -> None:
    more = after(sweep, lambda v: v.update(samples=12))
    Journal(sweep.paths.journal, durable=False).append(Attempt(2, "here", 1, None, more.spec.resolved()))
    (fault,) = edited(after(sweep, lambda v: v.update(samples=11)))
    assert "12" in fault.rule


def test_configurations_that_are_drawn_otherwise_are_named(sweep: Sweep) -> None:
    state = fold(read_journal(sweep.paths.journal), 10)
    hashes: list[str | None] = [values.digest for values in sweep.configurations]
    check_trials(state, hashes)
    check_trials(state, [None] * 10)
    with pytest.raises(SweeperError, match=r"1 configuration differs from the journal, e\.g\. c00009"):
        check_trials(state, [*hashes[:9], "another"])
