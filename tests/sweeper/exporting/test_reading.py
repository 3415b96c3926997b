"""An altered folder is refused with all of its faults, and none of its pickles runs."""

import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sweeper
from sweeper.exporting.folder import DESCRIPTION, PROGRAM, write_program
from sweeper.exporting.program import exported_program
from sweeper.exporting.reading import DamagedModelError
from tests.sweeper.exporting.test_model import exported

Change = Callable[[dict[str, Any]], object]


class Network(torch.nn.Module):
    """A program with a weight, a constant and two sizes."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer, self.shift = torch.nn.Linear(inputs, classes), torch.arange(classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layer(inputs) + self.shift, dim=1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    exported(folder, Network(6, 4), torch.zeros(2, 6), pictures={"side": 10, "resized": None})
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def alter(folder: Path, change: Change) -> None:
    description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    change(description)
    (folder / DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def faults(folder: Path) -> list[str]:
    """Return the places of the faults with which the folder is refused."""
    with pytest.raises(DamagedModelError) as refused:
        sweeper.load_model(folder)
    assert refused.value.exit_code == 2 and str(folder) in str(refused.value)
    return [fault.path for fault in refused.value.faults]


@pytest.mark.parametrize("key", ["format", "input", "output", "class_names", "pictures", "source", "program_sha256"])
def test_every_part_of_the_description_is_required(folder: Path, key: str) -> None:
    alter(folder, lambda description: description.pop(key))
    assert faults(folder) == [key]


@pytest.mark.parametrize(
    ("change", "places"),
    [
        (lambda d: d["input"].pop("shape"), ["input.shape"]),
        (lambda d: d["input"].update(shape=[0]), ["input.shape[0]"]),
        (lambda d: d["input"].update(dtype="load"), ["input.dtype"]),
        (lambda d: d["output"].update(classes=True), ["output.classes"]),
        (lambda d: d.update(class_names=["a", "b"]), ["class_names"]),
        (lambda d: d.update(class_names=["a", "b", "c", 4]), ["class_names[3]"]),
        (lambda d: d["pictures"].update(side=0, resized=1.5), ["pictures.side", "pictures.resized"]),
        (lambda d: d["input"].update(kind="rows"), ["input.kind"]),
        (lambda d: d["input"].update(kind="table"), ["input"]),
        (lambda d: d["input"].update(kind="words", length="long"), ["input"]),
        (lambda d: (d.update(source=None, class_names="abcd"), d["input"].pop("dtype")),
         ["input.dtype", "class_names", "source"]),
        (lambda d: d["input"].update(shape=[7]), ["input"]),
        (lambda d: d["input"].update(dtype="float64"), ["input"]),
        (lambda d: d["output"].update(classes=3) or d.update(class_names=["a", "b", "c"]), ["output"]),
    ],
)  # fmt: skip
def test_all_faults_of_the_description_are_named_at_once(folder: Path, change: Change, places: list[str]) -> None:
    alter(folder, change)
    assert faults(folder) == places


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "[]", "NaN", "7", '"text"'])
def test_a_description_that_is_no_mapping_is_refused(folder: Path, text: str) -> None:
    (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    assert len(faults(folder)) == 1


@pytest.mark.parametrize("content", [b"", b"no program"])
def test_a_damaged_program_is_refused(folder: Path, content: bytes) -> None:
    (folder / PROGRAM).write_bytes(content)
    assert {*faults(folder)} == {PROGRAM}


def test_a_flipped_bit_is_found(folder: Path) -> None:
    data = bytearray((folder / PROGRAM).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / PROGRAM).write_bytes(data)
    assert PROGRAM in faults(folder)


def test_another_exports_program_is_found_whatever_its_shapes(folder: Path) -> None:
    digest = write_program(exported_program(Network(5, 4), torch.zeros(2, 5)), folder / PROGRAM)
    assert faults(folder) == [PROGRAM]
    alter(folder, lambda description: description.update(program_sha256=digest))
    assert faults(folder) == ["input"]


@pytest.mark.parametrize("name", [DESCRIPTION, PROGRAM])
@pytest.mark.parametrize("instead", [None, Path.mkdir, os.mkfifo])
def test_a_file_that_is_missing_or_no_file_is_named(
    folder: Path, name: str, instead: Callable[[Path], None] | None
) -> None:
    (folder / name).unlink()
    if instead is not None:
        instead(folder / name)
    with pytest.raises(sweeper.SweeperError, match=name):
        sweeper.load_model(folder)


def test_another_format_is_not_read(folder: Path) -> None:
    (folder / PROGRAM).write_bytes(b"no program")
    alter(folder, lambda description: description.update(format=99))
    with pytest.raises(sweeper.SweeperError, match="99"):
        sweeper.load_model(folder)


class Touches:
    """Its pickle creates a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.file),)


def rewritten(folder: Path, changed: dict[str, bytes]) -> None:
    """Replace or add members of the program's archive, with the digest of the result."""
    with zipfile.ZipFile(folder / PROGRAM) as archive:
        root = archive.namelist()[0].partition("/")[0]
        members = {name: archive.read(name) for name in archive.namelist()}
    members |= {f"{root}/{name}": content for name, content in changed.items()}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    (folder / PROGRAM).write_bytes(data.getvalue())
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    alter(folder, lambda description: description.update(program_sha256=digest))


def with_pickles(folder: Path) -> bytes:
    """Return the weights' configuration in which all weights are pickled."""
    with zipfile.ZipFile(folder / PROGRAM) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("model_weights_config.json"))
        config = json.loads(archive.read(name))
    for entry in config["config"].values():
        entry["use_pickle"] = True
    return json.dumps(config).encode()


@pytest.mark.parametrize(
    "member",
    [
        "data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt",
        "data/constants/custom_obj_0", "data/constants/opaque_obj_0", "data/aotinductor/model/model.so",
        "data/weights/weight_0",
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_no_pickle_runs(folder: Path, tmp_path: Path, member: str) -> None:
    changed = {member: pickle.dumps(Touches(tmp_path / "ran"))}
    if member == "data/weights/weight_0":
        changed["data/weights/model_weights_config.json"] = with_pickles(folder)
    rewritten(folder, changed)
    assert faults(folder) == [PROGRAM]
    assert not (tmp_path / "ran").exists()


def test_an_archive_that_was_only_packed_again_is_read(folder: Path, sound: Path) -> None:
    rewritten(folder, {})
    samples = torch.randn(3, 6)
    assert torch.equal(sweeper.load_model(folder).module(samples), sweeper.load_model(sound).module(samples))
