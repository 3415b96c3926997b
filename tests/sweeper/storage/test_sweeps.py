"""A sweep's name is claimed once, its space is written down whole, and opening it gives the same sweep."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sweeper.core.errors import DiskFullError, SweeperError
from sweeper.space.loading import load_spec
from sweeper.storage.lookup import sweep_names
from sweeper.storage.sweeps import create_sweep, open_sweep

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


def test_an_explicit_name_that_is_taken_offers_resume(spec, tmp_path):
    _create(spec, tmp_path, "mine")
    with pytest.raises(SweeperError, match=r"'mine' is taken(.|\n)*sweeper resume mine"):
        _create(spec, tmp_path, "mine")


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


def test_a_sweep_that_is_not_there_names_the_nearest(spec, tmp_path):
    _create(spec, tmp_path)
    with pytest.raises(SweeperError, match=r"no sweep 'smal'(.|\n)*did you mean 'small'"):
        open_sweep("smal", tmp_path)
    with pytest.raises(SweeperError, match="sweeper run"):
        open_sweep("any", tmp_path / "empty")


@pytest.mark.parametrize(
    "content", [b"dataset: {name: [", b"\xff\xfe\x00", b"", b"- a list", b"dataset: {name: digits}"]
)
def test_a_damaged_space_is_a_clear_error(spec, tmp_path, content):
    sweep = _create(spec, tmp_path)
    sweep.paths.sweep_file.write_bytes(content)
    with pytest.raises(SweeperError, match=r"sweep\.yaml"):
        open_sweep("small", tmp_path)


def test_a_sweep_of_tables_alone_cannot_be_opened(tmp_path):
    (tmp_path / "bare" / "tables").mkdir(parents=True)
    with pytest.raises(SweeperError, match=r"has no sweep\.yaml"):
        open_sweep("bare", tmp_path)


def test_a_configuration_is_the_same_in_every_process(spec, tmp_path):
    sweep = _create(spec, tmp_path)
    program = (
        "import sys, json; from pathlib import Path; from sweeper.storage.sweeps import open_sweep\n"
        "print(json.dumps(list(open_sweep('small', Path(sys.argv[1])).configurations)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert json.loads(done.stdout) == list(sweep.configurations), done.stderr
