import hashlib
import http.server
import pickle
import tarfile
import threading
import zipfile

import pytest
import torch

from trainables.datasets.cache import DataSetUnavailableError, Source, extracted, fetch, prepared, unpack

CONTENT = bytes(range(256)) * 2000


def source_of(url, content=CONTENT, name="file.bin"):
    return Source(url, name, "sha256:" + hashlib.sha256(content).hexdigest())


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        first = int(self.headers.get("Range", "bytes=0-").split("=")[1].rstrip("-"))
        server.starts.append(first)
        if first >= len(CONTENT):
            self.send_error(416)
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        ranged = first and self.path != "/no-ranges"
        body = CONTENT[first:] if ranged else CONTENT
        self.send_response(206 if ranged else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cut_after] if server.cut_after else body)

    def log_message(self, *arguments):
        """Keep the test's output clean."""


@pytest.fixture
def server():
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.starts, running.cut_after = [], None
    running.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_missing_file_is_not_fetched_unless_asked(tmp_path, server):
    with pytest.raises(DataSetUnavailableError, match=r"file\.bin.*missing.*download: true"):
        fetch(source_of(server.url + "/data"), tmp_path, download=False)
    assert server.starts == []


def test_a_download_is_checked_and_kept(tmp_path, server):
    source = source_of(server.url + "/data")
    path = fetch(source, tmp_path / "new" / "folder", download=True)
    assert path.read_bytes() == CONTENT
    assert fetch(source, tmp_path / "new" / "folder", download=True) == path
    assert server.starts == [0]


def test_an_interrupted_download_resumes_where_it_stopped(tmp_path, server):
    source = source_of(server.url + "/data")
    server.cut_after = 100_000
    with pytest.raises(DataSetUnavailableError, match="run again to resume"):
        fetch(source, tmp_path, download=True)
    assert not (tmp_path / "file.bin").exists()
    server.cut_after = None
    assert fetch(source, tmp_path, download=True).read_bytes() == CONTENT
    assert server.starts == [0, 100_000]


def test_a_server_without_ranges_starts_over(tmp_path, server):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:5000])
    assert fetch(source_of(server.url + "/no-ranges"), tmp_path, download=True).read_bytes() == CONTENT


def test_a_complete_part_only_needs_its_check(tmp_path, server):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert fetch(source_of(server.url + "/data"), tmp_path, download=True).read_bytes() == CONTENT


def test_a_wrong_checksum_names_both_sums_and_leaves_nothing(tmp_path, server):
    with pytest.raises(DataSetUnavailableError, match=r"sha256 is .* but must be"):
        fetch(source_of(server.url + "/data", b"other"), tmp_path, download=True)
    assert not list(tmp_path.glob("file*"))


def test_unreachable_and_missing_addresses(tmp_path, server):
    for url in (server.url + "/missing", "http://127.0.0.1:9/data"):
        with pytest.raises(DataSetUnavailableError, match="download was interrupted"):
            fetch(source_of(url), tmp_path, download=True)


def test_a_damaged_file_is_noticed_also_after_a_good_check(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    source = source_of("http://127.0.0.1:9/")
    assert fetch(source, tmp_path, download=False) == path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataSetUnavailableError, match="delete it"):
        fetch(source, tmp_path, download=False)


def test_many_processes_of_a_node_download_once(tmp_path, server):
    source = source_of(server.url + "/data")
    threads = [threading.Thread(target=fetch, args=(source, tmp_path, True)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert server.starts == [0]


def archive_of(tmp_path, kind):
    (tmp_path / "content" / "member").mkdir(parents=True)
    (tmp_path / "content" / "member" / "a.txt").write_text("hello" * 1000)
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / ("a.zip" if kind == "zip" else "a.tar.gz")
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.write(tmp_path / "content" / "member" / "a.txt", "member/a.txt")
    else:
        with tarfile.open(path, "w:gz") as file:
            file.add(tmp_path / "content" / "member", "member")
    return path


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_unpacked_once(tmp_path, kind):
    archive = archive_of(tmp_path, kind)
    folder = extracted(archive, "member")
    assert (folder / "a.txt").read_text().startswith("hello")
    archive.unlink()
    assert extracted(archive, "member") == folder
    assert [path.name for path in folder.parent.iterdir() if not path.name.startswith(".")] == ["member"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_broken_archives_leave_nothing_behind(tmp_path, kind, damage):
    archive = archive_of(tmp_path, kind)
    archive.write_bytes(archive.read_bytes()[:60] if damage == "cut" else b"garbage" * 20)
    with pytest.raises(DataSetUnavailableError, match="cannot be unpacked"):
        extracted(archive, "member")
    assert not (archive.parent / "member").exists() and not list(archive.parent.glob(".unpacking*"))


def test_an_archive_of_something_else_is_named(tmp_path):
    with pytest.raises(DataSetUnavailableError, match="does not contain other"):
        extracted(archive_of(tmp_path, "tar"), "other")


def test_members_that_leave_the_folder_are_refused(tmp_path):
    (tmp_path / "evil").write_text("x")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as file:
        file.add(tmp_path / "evil", "../../escaped")
    (tmp_path / "target").mkdir()
    with pytest.raises(DataSetUnavailableError):
        unpack(tmp_path / "evil.tar.gz", tmp_path / "target")
    assert not (tmp_path.parent / "escaped").exists()


def test_values_are_prepared_once_until_a_file_changes(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("1")
    calls = []

    def build():
        calls.append(1)
        return {"images": torch.arange(5), "words": ["a", "bc"]}

    for _ in range(2):
        values = prepared("demo", [file], "size=1", build)
        assert values["images"].tolist() == [0, 1, 2, 3, 4] and values["words"] == ["a", "bc"]
    prepared("demo", [file], "size=2", build)
    file.write_text("22")
    prepared("demo", [file], "size=1", build)
    assert len(calls) == 3


def test_failed_preparation_leaves_nothing(data_folder):

    def build():
        raise DataSetUnavailableError("a.png", "broken", "remove it")

    with pytest.raises(DataSetUnavailableError):
        prepared("demo", [], "", build)
    assert not [*(data_folder / "shared").glob("[!.]*")]


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(DataSetUnavailableError("/a/b", "is missing", "fetch it")))
    assert str(error) == "/a/b: is missing; fetch it" and error.remedy == "fetch it"
