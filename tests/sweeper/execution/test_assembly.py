"""Modules are imported in the background, and one that cannot be imported disturbs nobody."""

import sys
from pathlib import Path

import pytest

from sweeper.execution.assembly import import_meanwhile


def test_modules_are_there_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_at_the_end.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_meanwhile("needed_at_the_end").join(60)
    assert sys.modules["needed_at_the_end"].VALUE == 3


def test_a_missing_module_is_left_to_who_needs_it(recwarn: pytest.WarningsRecorder) -> None:
    thread = import_meanwhile("there_is_no_such_module")
    thread.join(60)
    assert not thread.is_alive()
    assert not recwarn.list
