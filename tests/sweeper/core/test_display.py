"""Texts from files that somebody else wrote, on a terminal: no markup, and nothing that steers it."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import yaml
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sweeper.core.display import SafeConsole, as_html, as_text, printable, text_table
from tests.running import typed

EVIL = "[/x] [red]a[/] :bomb: \x1b[31m\x1b]0;title\x07\x9b1m\u202eabc\r"


def test_what_steers_a_terminal_is_written_out():
    assert printable("a\x1b[31mb\x07\r\x9b\u202e\u2028") == r"a\x1b[31mb\x07\r\x9b\u202e\u2028"
    assert printable("τ ≥ 0.5 · ä 漢 🙂\tx\ny") == "τ ≥ 0.5 · ä 漢 🙂\tx\ny"


@pytest.mark.parametrize("styled", [False, True])
def test_a_console_prints_texts_as_they_are(styled):
    table = Table("name")
    table.add_row(EVIL)
    table.add_row(Text(EVIL, style="bold"))
    file = io.StringIO()
    SafeConsole(file=file, force_terminal=styled, width=200).print(Group(table, Text(EVIL), EVIL))
    written = file.getvalue()
    assert written.count("[/x] [red]a[/] :bomb:") == 4
    for steering in ("\x1b[31m", "\x1b]", "\x07", "\x9b", "\u202e", "\r"):
        assert steering not in written
    assert ("\x1b[1m" in written) == styled, "the console's own styles stay"
    assert "\x1b" not in as_text(table) + as_html(table) and "[/x]" in as_text(table)


def test_a_cell_of_a_text_table_is_one_line_without_control_characters():
    shown = text_table(["a"], [{"a": "x\n\x1b[2Jy"}])
    assert "\x1b" not in shown and len(shown.splitlines()) == 3


def test_names_of_a_strangers_folder_end_no_command(quickstart_folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "results" / "received"
    shutil.copytree(quickstart_folder, root, symlinks=True)
    values = yaml.safe_load((root / "sweep.yaml").read_text())
    values["dataset"]["name"] = "[/x] \x1b[31mred"
    (root / "sweep.yaml").write_text(yaml.safe_dump(values))
    for command in (["status"], ["show", "received"], ["results", "received"]):
        done = typed(*command, "--output", str(root.parent))
        assert done.returncode == 0, (command, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr
