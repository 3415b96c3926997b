"""Secrets planted where a user keeps them, and a search through every byte that a sweep left behind."""

import base64
import gzip
import io
import json
import os
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED7EXAMPLE1",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+Zk3vQ9xW7",
    "AWS_SESSION_TOKEN": "planted-session-Rj8mN2cD5",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON": "planted-google-Ht4bV6yL1",
    "MLFLOW_TRACKING_PASSWORD": "planted-mlflow-Wq5sX8eF3",
    "MLFLOW_TRACKING_TOKEN": "planted-tracking-Uo2kJ7aP9",
    "RAY_AUTH_TOKEN": "planted-ray-" + "4b7e9c1d" * 6,
    "WANDB_API_KEY": "planted-wandb-Cx1nE5rS2",
}
IN_ADDRESSES = {"user": "planteduser", "password": "planted-url-Lp9dK3fY6"}


def needles() -> dict[bytes, str]:
    """Return every form in which a secret may show, with what it is a form of."""
    secrets = {**ENVIRONMENT, **{f"address {name}": value for name, value in IN_ADDRESSES.items() if name != "user"}}
    pair = ":".join(IN_ADDRESSES.values())
    secrets["address basic"] = base64.b64encode(pair.encode()).decode()
    found: dict[bytes, str] = {}
    for name, value in secrets.items():
        forms = {value, quote(value, safe=""), json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()}
        forms |= {value[::-1], value.encode().hex()}
        found |= {form.encode(): name for form in forms}
    return found


def texts(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, and again as what they hold where that is packed: Parquet, SQLite, gzip, zip."""
    data = path.read_bytes()
    yield data
    if data[:2] == b"\x1f\x8b":
        with suppress(OSError, EOFError):
            yield gzip.decompress(data)
    if data[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    if data[:4] == b"PAR1":
        file = pq.ParquetFile(path)
        yield repr(file.schema_arrow.metadata).encode()
        for name, column in zip(file.schema_arrow.names, file.read().columns, strict=True):
            if pa.types.is_string(column.type):
                yield "\n".join([name, *map(str, column.unique().to_pylist())]).encode()
    if data[:15] == b"SQLite format 3":
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
            yield "\n".join(store.iterdump()).encode()


def leaks(*places: Path | str) -> list[str]:
    """Return where a secret shows: below folders, in their files' names and contents, and in texts."""
    forms, found = needles(), []

    def look(where: str, data: bytes) -> None:
        found.extend(f"{where}: {name}" for form, name in forms.items() if form in data)

    for place in places:
        if isinstance(place, str):
            look("text", place.encode())
            continue
        for folder, _, files in os.walk(place):
            for file in files:
                path = Path(folder, file)
                look(str(path), str(path).encode())
                if path.is_file() and not path.is_symlink():
                    for data in texts(path):
                        look(str(path), data)
    return sorted(set(found))


def searched(*folders: Path) -> tuple[int, int]:
    """Return how many files, and bytes, lie below folders."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return len(files), sum(path.stat().st_size for path in files)
