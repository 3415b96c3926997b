"""Errors that a user can fix: each states the value, the rule it breaks and the remedy.

Every error derives from `SweeperError`, whose text the command line prints; bad input never ends in a traceback.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Error numbers of a full disk and of an exhausted quota.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class SweeperError(Exception):
    """An error that the user can fix.

    Attributes:
        message: what is wrong, with the value concerned.
        remedy: what to do about it; may be empty.
        exit_code: the exit status of the command that raises it: 2, bad input, unless a subclass says otherwise.

    Example:
        >>> print(SweeperError("unknown loss 'focl'", "did you mean 'focal'?"))
        unknown loss 'focl'
          did you mean 'focal'?
    """

    exit_code: int = 2

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  {self.remedy}" if self.remedy else self.message


class DiskFullError(SweeperError):
    """No space is left on a disk. All results so far are kept, and the input was not wrong, so the exit status is 1."""

    exit_code = 1


def unwritable(message: str, remedy: str, error: OSError) -> SweeperError:
    """Return the error for a failed write: a `DiskFullError` if no space is left, else a `SweeperError`.

    Args:
        message: what cannot be written; the reason is appended.
        remedy: what to do about it.
        error: the cause.
    """
    kind = DiskFullError if error.errno in NO_SPACE else SweeperError
    return kind(f"{message}: {error.strerror or error}", remedy)


@contextmanager
def writing_to(place: Path | str, remedy: str) -> Iterator[None]:
    """Turn an OSError inside the context into the error `unwritable` for `place`, with this remedy.

    Another user's folder, a read-only disk and a full disk are not bugs, so a command that cannot write prints a
    sentence instead of a traceback.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(f"{place} cannot be written", remedy, error) from error


@dataclass(frozen=True)
class Fault:
    """A rule that a search space file breaks.

    Attributes:
        path: the place in the file, e.g. `space.loss.one_of[2].coverage.uniform`; empty for the file as a whole.
        rule: one sentence with the value and the rule it breaks.
        remedy: what to write instead, e.g. `did you mean 'focal'?`; may be empty.
        line: line number in the file, from 1; `None` for a fault without a line (a missing key, a `--set`).
    """

    path: str
    rule: str
    remedy: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        subject = f"{self.path}: " if self.path else ""
        remedy = f"\n    {self.remedy}" if self.remedy else ""
        return f"{place}{subject}{self.rule}{remedy}"


class InvalidArgumentsError(SweeperError):
    """Arguments of a command are invalid. Lists every fault; a fault's path is the argument's name."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[type[InvalidArgumentsError], tuple[tuple[Fault, ...]]]:
        return type(self), (self.faults,)


class InvalidSearchSpace(SweeperError):  # noqa: N818 - says what is invalid
    """A search space file is invalid. Lists every fault, in the order of the file's lines."""

    def __init__(self, faults: Sequence[Fault], source: str = "search space") -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0)))
        self.source = source
        count = "1 error" if len(self.faults) == 1 else f"{len(self.faults)} errors"
        lines = [f"{source}: {count}, nothing was started", *(f"  {fault}" for fault in self.faults)]
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[type[InvalidSearchSpace], tuple[tuple[Fault, ...], str]]:
        # Unpickled by default, it would be built from its text, and errors do come back from other processes.
        return type(self), (self.faults, self.source)
