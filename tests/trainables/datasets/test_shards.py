"""An index of shards finds every image's bytes and class; what is broken is named."""

import os
import tarfile

import pytest

from tests.memory_store import use_memory_store
from tests.trainables.stream_files import jpeg, write_shard, write_shards
from trainables.datasets.cache import DataSetUnavailableError
from trainables.datasets.shards import indexed_shards, local_copy, place_inside, shard_paths, shards_by_split
from trainables.files.stores.object_store import Store


def _index(folder):
    return indexed_shards("small", folder, shard_paths(folder))


def test_every_image_has_the_bytes_and_the_class_that_tarfile_finds(tmp_path):
    folder = write_shards(tmp_path / "shards", "train", shards=3, samples=5)
    found = _index(folder)
    expected, targets = [], []
    for path in sorted(folder.iterdir()):
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                content = archive.extractfile(member).read()
                (expected if member.name.endswith("jpg") else targets).append(content)
    assert [found.read(index) for index in range(len(found))] == expected
    assert found.targets.tolist() == [int(each) for each in targets]
    assert [found.read(index) for index in (14, 0, 7)] == [expected[index] for index in (14, 0, 7)]


def test_classes_are_read_from_json_and_other_members_are_left_out(tmp_path):
    samples = [
        {"json": b'{"label": 3, "width": 60}', "jpg": jpeg(0, 0)},
        {"PNG": jpeg(1, 1), "txt": b"a text", "cls": b"1\n"},
    ]
    write_shard(tmp_path / "shards" / "a.tar", samples)
    found = _index(tmp_path / "shards")
    assert found.targets.tolist() == [3, 1] and found.read(1) == jpeg(1, 1)


def test_it_is_indexed_once_and_again_when_a_shard_changes(tmp_path, monkeypatch):
    folder = write_shards(tmp_path / "shards", "train", shards=2, samples=4)
    first = _index(folder)
    with monkeypatch.context() as patched:
        patched.setattr("trainables.datasets.shards._members", None)  # it is not called
        assert _index(folder).fingerprint() == first.fingerprint()
    write_shard(folder / "small-train-0001.tar", [{"jpg": jpeg(0, 9), "cls": b"0"}])
    second = _index(folder)
    assert len(second) == 5 and second.fingerprint() != first.fingerprint()


def test_the_fingerprint_knows_names_sizes_and_classes_and_no_path(tmp_path):
    sweeps = [write_shards(tmp_path / name, "train", shards=1, samples=4) for name in ("one", "two")]
    assert _index(sweeps[0]).fingerprint() == _index(sweeps[1]).fingerprint()
    other = write_shards(tmp_path / "three", "train", shards=1, samples=4, classes=4)
    assert _index(other).fingerprint() != _index(sweeps[0]).fingerprint()


@pytest.mark.parametrize(
    ("samples", "rule"),
    [
        ([{"jpg": jpeg(0, 0)}], "has no class for '000000'"),
        ([{"jpg": jpeg(0, 0), "cls": b"cat"}], "has no class for '000000'"),
        ([{"jpg": jpeg(0, 0), "cls": b"-1"}], "has no class for '000000'"),
        ([{"cls": b"1"}], "holds no images"),
        ([{"jpg": jpeg(0, 0), "png": jpeg(0, 1), "cls": b"0"}], "has two images with the key '000000'"),
    ],
)
def test_a_shard_in_another_layout_is_refused(tmp_path, samples, rule):
    write_shard(tmp_path / "shards" / "a.tar", samples)
    with pytest.raises(DataSetUnavailableError, match=rule) as refused:
        _index(tmp_path / "shards")
    assert refused.value.path.endswith("a.tar")


def test_a_truncated_shard_is_refused(tmp_path):
    folder = write_shards(tmp_path / "shards", "train", shards=1, samples=4)
    path = folder / "small-train-0000.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataSetUnavailableError, match="cannot be read as a tar archive"):
        _index(folder)


def _shard(*classes):
    return [{"jpg": jpeg(0, number), "cls": str(label).encode()} for number, label in enumerate(classes)]


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Put what is below a folder into a store, in place of all that is there."""
    use_memory_store(monkeypatch)
    found = Store("s3://images/shards")

    def put(folder):
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        found.delete(found.entries().keys() - files.keys())
        for name, path in files.items():
            if found.get(name) != path.read_bytes():
                found.put(name, path)
        return found.uri

    return put


def test_shards_of_a_store_are_copied_once_and_those_that_changed_again(tmp_path, store):
    source = write_shards(tmp_path / "source", "train", shards=2, samples=3)
    (source / "class_index.json").write_text('{"0": "even", "1": "odd"}')
    folder = local_copy(store(source))
    copied = {path.name: path.stat().st_ino for path in folder.glob("[!.]*")}
    assert sorted(copied) == ["class_index.json", "small-train-0000.tar", "small-train-0001.tar"]
    assert local_copy(store(source)) == folder
    write_shard(source / "small-train-0001.tar", [{"jpg": jpeg(0, 9), "cls": b"0"}] * 40)
    changed = local_copy(store(source))
    again = {path.name: path.stat().st_ino for path in changed.glob("[!.]*")}
    assert [name for name in copied if copied[name] != again[name]] == ["small-train-0001.tar"]
    assert len(_index(folder)) == 6, "a trial that reads the shards as they were keeps them"


def test_shards_that_a_store_no_longer_has_are_not_read(tmp_path, store):
    source = write_shards(tmp_path / "source", "train", shards=2, samples=3)
    before = local_copy(store(source))
    (source / "small-train-0001.tar").rename(source / "renamed-train-0001.tar")
    after = local_copy(store(source))
    assert len(_index(before)) == len(_index(after)) == 6


def test_shards_relabelled_at_equal_size_are_copied_again_and_have_another_fingerprint(tmp_path, store):
    write_shard(tmp_path / "source" / "a.tar", _shard(0, 1, 0))
    before = _index(local_copy(store(tmp_path / "source")))
    write_shard(tmp_path / "source" / "a.tar", _shard(1, 0, 1))
    after = _index(local_copy(store(tmp_path / "source")))
    assert after.targets.tolist() == [1, 0, 1] and after.fingerprint() != before.fingerprint()


def test_other_pixels_of_equal_size_have_another_fingerprint(tmp_path, store):
    fingerprints = set()
    for colour in (b"one", b"two"):
        write_shard(tmp_path / "source" / "a.tar", [{"jpg": colour, "cls": b"0"}])
        fingerprints.add(_index(local_copy(store(tmp_path / "source"))).fingerprint())
    assert len(fingerprints) == 2


def test_two_addresses_share_no_folder(tmp_path, store):
    write_shard(tmp_path / "source" / "images" / "a.tar", _shard(0))
    address = store(tmp_path / "source")
    write_shard(tmp_path / "source" / "images_a.tar", _shard(0, 1))
    assert local_copy(f"{address}/images") != local_copy(address)


def test_an_interrupted_copy_continues_and_what_nobody_reads_is_removed(tmp_path, store, monkeypatch):
    address = store(write_shards(tmp_path / "source", "train", shards=2, samples=3))
    with monkeypatch.context() as patched:
        patched.setattr("trainables.datasets.shards.os.link", None)
        with pytest.raises(TypeError):
            local_copy(address)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "download_all", lambda _, targets: dict.fromkeys(targets))  # none is asked for
        first = local_copy(address)
    os.utime(first, (0, 0))
    (tmp_path / "source" / "small-train-0001.tar").unlink()
    second = local_copy(store(tmp_path / "source"))
    assert not first.exists() and len(_index(second)) == 3 and len([*(second.parent / "pool").iterdir()]) == 1


def test_splits_are_named_by_whole_words(tmp_path):
    """Else training images would be validated on: `val` is in `retrieval`, `test` in `latest`."""
    names = ["retrieval-train-0001.tar", "latest-train-0002.tar", "sets/validation/0001.tar", "a_test_3.tar"]
    found = shards_by_split(tmp_path, [tmp_path / name for name in names])
    first, second, validation, test = (tmp_path / name for name in names)
    assert found == {"train": [first, second], "val": [validation], "test": [test]}
    assert shards_by_split(tmp_path, [tmp_path / "latest-1.tar"]) == {"train": [tmp_path / "latest-1.tar"]}


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        (["train/test-1.tar", "train/2.tar"], "names the splits train and test"),
        (["train-1.tar", "2.tar"], "names no split, and other shards do"),
        (["val-1.tar", "test-1.tar"], "has shards of val and test, and none of train"),
    ],
)
def test_shards_of_no_clear_split_are_refused(tmp_path, names, rule):
    with pytest.raises(DataSetUnavailableError, match=rule):
        shards_by_split(tmp_path, [tmp_path / name for name in names])


@pytest.mark.parametrize(
    "name", ["../../.ssh/keys.tar", "a/../../b.tar", "/etc/a.tar", "a//b.tar", "./a.tar", "a\\b.tar", "a\n.tar", ""]
)
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path, name):
    with pytest.raises(DataSetUnavailableError, match="name is no path below it"):
        place_inside(tmp_path, name, "s3://images/shards")


def test_other_names_are_places_below_the_folder(tmp_path):
    assert place_inside(tmp_path, "train/a..b-0001.tar", "s3://i") == tmp_path / "train" / "a..b-0001.tar"


def test_a_store_that_is_not_there_is_named():
    with pytest.raises(DataSetUnavailableError, match="is not the address of a store"):
        local_copy("file:///nowhere/at/all")
