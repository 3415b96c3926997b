"""A file system of a few megabytes, which needs no rights: a tmpfs in a user and mount namespace of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

from tests.patience import patient

HOLD = 'mount -t tmpfs -o size="$1" tmpfs "$0" && echo mounted && cat'


class SmallDisk:
    """A tmpfs at `folder` that only commands given to `run` find there, for as long as the context lasts.

    Linux lets every user have this (`unshare --map-root-user`); where an administrator has forbidden it, entering
    fails and says so, because a test that quietly does nothing shows nothing.
    """

    def __init__(self, folder: Path, size: str) -> None:
        """Prepare a disk of `size`, e.g. `1m`."""
        self.folder, self._size = folder, size

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir()
        self._holder = subprocess.Popen(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", HOLD, str(self.folder), self._size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None and self._holder.stderr is not None
        if self._holder.stdout.readline() != "mounted\n":
            raise PermissionError(
                f"a small disk cannot be made here: {self._holder.stderr.read().strip()}; allow unprivileged user "
                "namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, or a container with CAP_SYS_ADMIN)"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The namespace, and with it the disk, goes with its last process.
        self._holder.communicate()

    @property
    def seen_from_outside(self) -> Path:
        """The disk's folder as processes outside the namespace reach it."""
        return Path(f"/proc/{self._holder.pid}/root") / self.folder.relative_to("/")

    def run(self, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end and return what it printed."""
        enter = ["nsenter", "--target", str(self._holder.pid), "--user", "--mount", "--preserve-credentials"]
        words = [*enter, f"--wd={cwd}", *command]
        return subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=patient(240))

    def remount(self, options: str) -> None:
        """Change the disk, e.g. `ro` or `rw,size=64m`."""
        done = self.run("mount", "-o", f"remount,{options}", str(self.folder), cwd=self.folder.parent)
        assert done.returncode == 0, done.stderr
