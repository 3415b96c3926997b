"""Arrays in NumPy and HDF5 files: names and shapes before values, and nothing from outside the file."""

import os
import zipfile

import h5py
import numpy as np
import pytest

from trainables.datasets.array_files import reading, stored_arrays
from trainables.datasets.cache import DataSetUnavailableError

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def fault_of(path, name):
    """Return the rule for which an array is not loaded."""
    with pytest.raises(DataSetUnavailableError) as refused:
        next(array for array in stored_arrays(path) if array.name == name).load()
    return refused.value.rule


def test_each_form_lists_and_loads_the_same(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, words=np.array(["a", "é"]), raw=np.array([b"a", "é".encode()]))
    np.savez_compressed(tmp_path / "b.npz", x=X, words=np.array(["a", "é"]), raw=np.array([b"a", "é".encode()]))
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["x"], file["words"], file["raw"] = X, ["a", "é"], np.array([b"a", "é".encode()])
    (tmp_path / "d").mkdir()
    for name, array in (("x", X), ("words", np.array(["a", "é"])), ("raw", np.array([b"a", "é".encode()]))):
        np.save(tmp_path / "d" / f"{name}.npy", array)
    for form in ("a.npz", "b.npz", "c.h5", "d"):
        arrays = {array.name: array for array in stored_arrays(tmp_path / form)}
        assert {name: array.shape for name, array in arrays.items()} == {"x": (4, 3), "words": (2,), "raw": (2,)}
        np.testing.assert_array_equal(arrays["x"].load(), X)
        assert arrays["words"].load().tolist() == arrays["raw"].load().tolist() == ["a", "é"]


def test_a_folder_puts_a_file_s_name_before_its_arrays_and_lists_other_files(tmp_path):
    np.savez(tmp_path / "val.npz", logits=X)
    (tmp_path / "notes.txt").write_text("")
    os.mkfifo(tmp_path / "pipe.npy")
    held = {array.name: bool(array.fault) for array in stored_arrays(tmp_path)}
    assert held == {"val_logits": False, "notes.txt": True, "pipe.npy": True}


def test_nothing_outside_of_an_hdf5_file_is_read(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret" * 100)
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = X
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["deep/x"] = X
        file["deep/around"] = file["/"]
        for name, place in (("external", "secret"), ("waiting", "pipe"), ("absent", "nowhere")):
            file.create_dataset(name, (4, 3), "f4", external=[(str(tmp_path / place), 0, 48)])
        layout = h5py.VirtualLayout((4, 3), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (4, 3))
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")
        file["soft"], file["itself"] = h5py.SoftLink("/link"), h5py.SoftLink("/itself")
        file.create_dataset("unwritten", (4, 3), "f4")
        file["references"] = np.array([file.ref], h5py.ref_dtype)
    own = [array for array in stored_arrays(tmp_path / "a.h5") if not array.fault]
    assert [array.name for array in own] == ["deep/x"]
    np.testing.assert_array_equal(own[0].load(), X)
    assert {fault_of(tmp_path / "a.h5", name)[-10:] for name in ("external", "waiting", "absent", "virtual")} == {
        "ther files"
    }
    assert "is a link" in fault_of(tmp_path / "a.h5", "link") and "is a link" in fault_of(tmp_path / "a.h5", "itself")


def test_a_damaged_array_matters_only_where_it_is_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=X + 1, objects=np.array([{}], dtype=object))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(X.tobytes()) + 5] ^= 255
    (tmp_path / "a.npz").write_bytes(data)
    arrays = {array.name: array for array in stored_arrays(tmp_path / "a.npz")}
    np.testing.assert_array_equal(arrays["y"].load(), X + 1)
    assert "CRC" in fault_of(tmp_path / "a.npz", "x") and "pickled" in fault_of(tmp_path / "a.npz", "objects")


@pytest.mark.parametrize("shape", [(10**15, 3), (2**62, 2**62), (10**9,)])
def test_a_header_that_asks_for_more_than_the_file_holds_is_refused_before_memory_is_taken(tmp_path, shape):
    np.save(tmp_path / "a.npy", X)
    with (tmp_path / "a.npy").open("r+b") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    assert "damaged" in fault_of(tmp_path / "a.npy", "a")


def test_two_arrays_of_one_name_and_an_encrypted_one_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "b.npz").write_bytes(data)
    assert "encrypted" in fault_of(tmp_path / "b.npz", "x")
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("x", b"")
    with pytest.raises(DataSetUnavailableError) as refused:
        stored_arrays(tmp_path / "a.npz")
    assert "several arrays called 'x'" in refused.value.rule


def test_any_error_of_a_library_is_a_sentence_and_ours_stay():
    for error in (RuntimeError("encrypted"), MemoryError(), RecursionError("deep"), NotImplementedError("method 99")):
        with pytest.raises(DataSetUnavailableError), reading("a.npz", "write it again"):
            raise error
    ours = DataSetUnavailableError("a.npz", "rule", "remedy")
    with pytest.raises(DataSetUnavailableError) as refused, reading("a.npz", "write it again"):
        raise ours
    assert refused.value is ours
