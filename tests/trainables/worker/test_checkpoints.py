"""A checkpoint is whole or absent, holds no code, and a damaged one is never taken for a sound one."""

import errno
import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.seeds import drawn_seed
from trainables.worker import checkpoints
from trainables.worker.checkpoints import (
    TrialFiles,
    checkpoint_epochs,
    checkpoint_file,
    load_newest_checkpoint,
    save_state,
    write_checkpoint,
)

WRITER = """
import sys, torch
from pathlib import Path
from trainables.worker.checkpoints import write_checkpoint
torch.set_num_threads(1)
epoch = int(sys.argv[2])
while True:
    write_checkpoint(Path(sys.argv[1]), epoch, {"epoch": epoch, "weights": torch.full((60_000,), float(epoch))})
    print(epoch, flush=True)
    epoch += 1
"""


def _state(epoch):
    generator = torch.Generator().manual_seed(epoch)
    return {
        "epoch": epoch,
        "weights": torch.randn(300, generator=generator),
        "order": generator.get_state(),
        "report": {"objective": 0.5, "failure": None, "epochs": [{"epoch": epoch, "lr": 0.1, "split": "val"}]},
    }


def _equal(left, right):
    tensors = ("weights", "order")
    rest = [{key: value for key, value in state.items() if key not in tensors} for state in (left, right)]
    return rest[0] == rest[1] and all(torch.equal(left[key], right[key]) for key in tensors)


def test_the_newest_is_by_epoch_and_not_by_name(tmp_path):
    for epoch in (3, 99_999, 100_000, 27):
        write_checkpoint(tmp_path, epoch, _state(epoch))
    assert checkpoint_epochs(tmp_path) == [100_000, 99_999, 27, 3]
    assert load_newest_checkpoint(tmp_path)["epoch"] == 100_000


def test_older_ones_are_removed_and_other_files_are_not(tmp_path):
    for epoch in (3, 9, 27):
        write_checkpoint(tmp_path, epoch, _state(epoch))
    (tmp_path / "e00001.damaged").write_text("kept for whoever wants to look")
    TrialFiles(Path(), tables=None, checkpoints=tmp_path).keep_newest(2)
    assert checkpoint_epochs(tmp_path) == [27, 9]
    assert (tmp_path / "e00001.damaged").exists()


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_never_becomes_a_wrong_weight(tmp_path, seed):
    for epoch in (3, 9):
        write_checkpoint(tmp_path, epoch, _state(epoch))
    path, rng = checkpoint_file(tmp_path, 9), random.Random(seed)
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    loaded = load_newest_checkpoint(tmp_path)
    assert _equal(loaded, _state(9)) or _equal(loaded, _state(3))
    assert path.exists() == (loaded["epoch"] == 9)
    assert path.with_suffix(".damaged").exists() == (loaded["epoch"] == 3)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_one_is_set_aside(tmp_path, share):
    for epoch in (3, 9):
        write_checkpoint(tmp_path, epoch, _state(epoch))
    path = checkpoint_file(tmp_path, 9)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert load_newest_checkpoint(tmp_path)["epoch"] == 3
    assert sorted(os.listdir(tmp_path)) == ["e00003.pt", "e00009.damaged"]


def test_when_all_are_damaged_there_is_none(tmp_path):
    for epoch in (3, 9):
        write_checkpoint(tmp_path, epoch, _state(epoch)).write_bytes(b"no checkpoint")
    assert load_newest_checkpoint(tmp_path) is None
    assert checkpoint_epochs(tmp_path) == []


class Malicious:
    """An object whose unpickling runs code."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_code_in_a_checkpoint_does_not_run(tmp_path):
    marker = tmp_path / "it ran"
    write_checkpoint(tmp_path, 3, _state(3))
    torch.save({"epoch": 9, "payload": Malicious(marker)}, checkpoint_file(tmp_path, 9))
    assert load_newest_checkpoint(tmp_path)["epoch"] == 3
    assert not marker.exists()


@pytest.mark.parametrize("error", [MemoryError("none left"), torch.OutOfMemoryError("CUDA out of memory")])
def test_running_out_of_memory_is_no_damage(tmp_path, monkeypatch, error):
    path = write_checkpoint(tmp_path, 9, _state(9))

    def full(*arguments, **options):
        raise error

    monkeypatch.setattr(checkpoints.torch, "load", full)
    with pytest.raises(type(error)):
        load_newest_checkpoint(tmp_path)
    assert path.exists()


def test_a_failed_write_leaves_nothing_behind(tmp_path):
    write_checkpoint(tmp_path, 3, _state(3))
    with pytest.raises(Exception, match="pickle"):
        write_checkpoint(tmp_path, 9, {"epoch": 9, "cannot be saved": lambda: None})
    assert os.listdir(tmp_path) == ["e00003.pt"]


@pytest.mark.integration
def test_killing_the_writer_leaves_whole_checkpoints(tmp_path):
    seed = drawn_seed()
    print(f"seed {seed}")
    rng, epoch = random.Random(seed), 0
    for _ in range(3):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(epoch)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            for _ in range(rng.randint(1, 6)):
                epoch = int(writer.stdout.readline()) + 1
            time.sleep(rng.uniform(0, 3e-3))
            writer.send_signal(signal.SIGKILL)
        newest = load_newest_checkpoint(tmp_path)
        assert newest["epoch"] >= epoch - 1
        assert torch.equal(newest["weights"], torch.full((60_000,), float(newest["epoch"])))
        assert not list(tmp_path.glob("*.damaged"))
        epoch = newest["epoch"] + 1


class FullOnce(io.BytesIO):
    """A disk that is full at one write, and has room again when the archive is closed."""

    def __init__(self, at):
        super().__init__()
        self._left = at

    def write(self, data):
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("at", range(1, 14))
def test_a_full_disk_is_the_operating_systems_error(at):
    """Torch alone says "unexpected pos 62336 vs 62264" at most of these, which nobody takes for a full disk."""
    with pytest.raises(OSError, match="No space left"):
        save_state({"weights": torch.ones(3000), "more": torch.ones(2000)}, FullOnce(at))
