"""A right that one process has while it lives, where the file system has no locks: a file that it renews.

Lustre without `-o flock` and NFS without a lock service refuse `flock`. There the file is made under a name that can
be made once, and renewed by a thread every few seconds. Who finds it watches it: if it changes, its process is alive;
if it has not changed for `SILENCE_SECONDS`, its process is taken for gone. Clocks of machines are never compared, and
the file is opened anew for each look, which makes a network file system ask its server.

A process that was stopped for longer than that finds its right gone when it wakes, up to one beat later: what must not
happen twice has to be safe by itself until then.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainables.files.atomic import temporary_name

BEAT_SECONDS = 5.0

SILENCE_SECONDS = 20.0
"""Four beats: a busy server may answer one of them late."""

LOOK_SECONDS = 0.5

_LENGTH = 256
"""Bytes of the file: all beats are as long, so that one is written in place and in one piece."""


class Heartbeat:
    """The right that the file at `path` stands for."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to take the right; the folder of `path` exists."""
        self._path, self._clock, self._sleep = path, clock, sleep
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, name="heartbeat", daemon=True)
        self.lost = False
        """Whether another process is known to have taken the right over."""

    def take(self, patience: float = math.inf) -> bool:
        """Take the right; tell whether it was to be had within `patience` seconds of another process's sign of life.

        Raises OSError when the folder cannot be written to.
        """
        began, seen, since = self._clock(), b"", self._clock()
        while not self._make():
            now = self._read()
            if now != seen:
                alive = bool(seen) and bool(now)
                seen, since = now, self._clock()
                if alive and self._clock() - began >= patience:
                    return False
            elif self._clock() - since >= SILENCE_SECONDS:
                self._remove(seen)
            self._sleep(LOOK_SECONDS)
        self._thread.start()
        return True

    def beat(self) -> None:
        """Renew the file, unless another process has taken the right over. Raises OSError."""
        try:
            descriptor = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            self.lost = True
            return
        try:
            if not self._is_mine(os.pread(descriptor, _LENGTH, 0)):
                self.lost = True
                return
            self._beats += 1
            os.pwrite(descriptor, self._content(), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """End the right, unless another process has it."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._is_mine(self._read()):
            self._path.unlink(missing_ok=True)

    def _make(self) -> bool:
        """Make the file unless it is there: a link is made in one step, on network file systems as well."""
        temporary = self._path.with_name(temporary_name())
        try:
            temporary.write_bytes(self._content())
            os.link(temporary, self._path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def _remove(self, seen: bytes) -> None:
        """Remove the file of a process that is gone; another may do the same, and have taken the right by then."""
        aside = self._path.with_name(temporary_name())
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        with suppress(FileExistsError):
            if aside.read_bytes() != seen:
                os.link(aside, self._path)
        aside.unlink(missing_ok=True)

    def _live(self) -> None:
        while not self._ended.wait(BEAT_SECONDS) and not self.lost:
            with suppress(OSError):  # a full disk, or a server that is away: it is tried again
                self.beat()

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def _content(self) -> bytes:
        holder = {"token": self._token, "beats": self._beats, "pid": os.getpid(), "host": socket.gethostname()[:100]}
        return json.dumps(holder).encode().ljust(_LENGTH)

    def _is_mine(self, content: bytes) -> bool:
        return f'"token": "{self._token}"'.encode() in content
