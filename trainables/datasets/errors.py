"""The error of a data set that cannot be loaded."""

from __future__ import annotations


class DataSetUnavailableError(Exception):
    """A data set cannot be loaded: where it was looked for, which rule is broken, what to do."""

    def __init__(self, path: object, rule: str, remedy: str) -> None:
        """Say that `path` breaks `rule`, and the `remedy`."""
        self.path = str(path)
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"{self.path}: {rule}; {remedy}")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Let the error travel between processes."""
        return type(self), (self.path, self.rule, self.remedy)
