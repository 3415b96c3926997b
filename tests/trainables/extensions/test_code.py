"""The archive of users' code: what is in it, when it differs, and that a process imports from it alone."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import trainables.extensions.code as module
from trainables.extensions.code import archive_digest, gathered, unpack_into
from trainables.losses import LOSSES
from trainables.registry import ExtensionError

LOSS = (
    "import own_helper\ndef loss(logits, targets):\n    from own_lazy.deep import two\n    return logits.sum(1) * two\n"
)


@pytest.fixture
def written(own, tmp_path: Path):
    own("own_helper", "import json, torch\n")
    own("own_lazy/__init__", "")
    own("own_lazy/deep", "two = 2\n")
    own("own_unused", "x = 1\n")
    (tmp_path / "own_lazy" / "table.csv").write_text("1,2\n")
    (tmp_path / "own_lazy" / "__pycache__").mkdir()
    (tmp_path / "own_lazy" / "__pycache__" / "deep.pyc").write_bytes(b"x")
    own("own_code", LOSS)
    return own


def _names(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def test_the_archive_holds_what_is_imported_from_the_same_folder_and_no_more(written):
    code = gathered([(LOSSES, "own_code:loss"), (LOSSES, "focal")])
    assert code is not None
    assert _names(code.archive) == [
        "own_code.py", "own_helper.py", "own_lazy/__init__.py", "own_lazy/deep.py", "own_lazy/table.csv",
    ]  # fmt: skip
    assert code.components == {"own_code:loss": {"kind": "loss"}}
    assert gathered([(LOSSES, "focal")]) is None


def test_equal_code_has_equal_bytes_and_a_change_anywhere_another_digest(written):
    first = gathered([(LOSSES, "own_code:loss")])
    assert first is not None and gathered([(LOSSES, "own_code:loss")]) == first
    written("own_unused", "x = 2\n")
    assert gathered([(LOSSES, "own_code:loss")]) == first
    written("own_lazy/deep", "two = 3\n")
    second = gathered([(LOSSES, "own_code:loss")])
    assert second is not None and second.digest != first.digest
    assert archive_digest(second.archive) == second.digest


def test_code_that_is_data_is_refused(written, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 20)
    with pytest.raises(ExtensionError, match="is larger than"):
        gathered([(LOSSES, "own_code:loss")])


def test_another_process_imports_from_the_archive_before_everything_else(written, tmp_path):
    code = gathered([(LOSSES, "own_code:loss")])
    assert code is not None
    written("own_lazy/deep", "two = 1000\n")
    archive = tmp_path / "kept.zip"
    archive.write_bytes(code.archive)
    program = (
        "import sys, torch; from pathlib import Path; from trainables.extensions.code import take_up\n"
        f"archive = Path({str(archive)!r}).read_bytes(); [take_up(archive, ['own_code:loss']) for _ in range(2)]\n"
        "from trainables.losses import build_loss\n"
        "print(float(build_loss('own_code:loss')(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": str(Path(module.__file__).parents[2]), "TMPDIR": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.stdout == "6.0\n", done.stderr


def test_a_file_called_as_an_installed_package_does_not_travel(written, tmp_path):
    """`import torch` in one's own code means PyTorch, whatever lies beside it."""
    (tmp_path / "torch.py").write_text("raise SystemExit('imported')\n")
    code = gathered([(LOSSES, "own_code:loss")])
    assert code is not None and "torch.py" not in _names(code.archive)


def test_an_archive_writes_nothing_outside_of_its_folder(tmp_path):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("../outside.py", "x")
        archive.writestr("/absolute.py", "x")
    unpack_into(held.getvalue(), tmp_path / "inside")
    assert not (tmp_path / "outside.py").exists() and not Path("/absolute.py").exists()
