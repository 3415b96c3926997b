"""What a terminal is shown of texts that somebody else wrote, without markup, control characters and secrets."""

import io
import shutil
import sys
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st
from rich.console import Group
from rich.table import Table
from rich.text import Text

from sweeper.core.display import SafeConsole, as_html, as_text, printable, redact, redact_arguments, text_table
from tests.running import typed

EVIL = "[/x] [red]a[/] :bomb: \x1b[31m\x1b]0;title\x07\x9b1m\u202eabc\r"


def test_what_steers_a_terminal_is_written_out():
    assert printable("a\x1b[31mb\x07\r\x9b\u202e\u2028") == r"a\x1b[31mb\x07\r\x9b\u202e\u2028"
    assert printable("τ ≥ 0.5 · ä 漢 🙂\tx\ny") == "τ ≥ 0.5 · ä 漢 🙂\tx\ny"


def test_no_character_that_is_not_seen_passes():
    every = map(chr, range(sys.maxunicode + 1))
    hidden = [c for c in every if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"]
    assert {"\u061c", "\u200b", "\u200d", "\ufeff", "\u00ad", "\x1b"} < {*hidden}
    for character in hidden:
        assert printable(f"a{character}b") == "a" + character.encode("unicode_escape").decode() + "b"


@pytest.mark.parametrize("columns", [2, 40])
def test_outside_a_terminal_no_cell_is_cut(columns):
    words = [f"{'column' * 5}{number}" for number in range(columns)]
    table = Table(box=None)
    for place, word in enumerate(words):
        table.add_column(word, no_wrap=place % 2 == 0)
    table.add_row(*reversed(words))
    for rendered in (table, Group(Text("above"), table)):
        lines = as_text(rendered).splitlines()[-2:]
        assert [line.split() for line in lines] == [words, words[::-1]]
        assert all(word in as_html(rendered) for word in words)


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


SECRET = "hunter2"
LEAKS = [
    f"postgresql://mlflow:{SECRET}@db:5432/mlflow",
    f"postgresql+psycopg2://mlflow:{SECRET}@db/mlflow?sslmode=require",
    f"postgresql://mlflow:p@ss{SECRET}@db/mlflow",
    f"s3://AKIA:ab/cd{SECRET}@bucket/results",
    f"https://{SECRET}@example.org/",
    f"https://example.org/?token={SECRET}&page=2",
    f"s3://bucket/results?secret_key={SECRET}&endpoint_override=localhost:9000",
    f"MLFLOW_TRACKING_PASSWORD={SECRET}",
    f"--password={SECRET}",
    f"password: {SECRET}",
    f"api-key = {SECRET}",
    f"AWS_SECRET_ACCESS_KEY={SECRET} and so on",
    f'{{"password": "{SECRET}"}}',
    f"{{'auth_token': '{SECRET}'}}",
    f"RAY_AUTH_TOKEN={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"Response body: 'Basic dXNlcjp{SECRET}aHVudGVyMg== may not do this'",
]
HARMLESS = [
    "sweeper run search_spaces/quickstart.yaml --set samples=8",
    "sqlite:////results/mlflow.db",
    "http://localhost:5000",
    "basic authentication is needed; the bearer of this",
    "s3://bucket/results?region=eu-west-1",
    "γ = 3.0, lr = 0.1: mail me at someone@example.org",
    "/home/user/results/quickstart",
    "",
]


@pytest.mark.parametrize("text", LEAKS)
def test_secrets_are_starred_out(text):
    assert SECRET not in redact(text)
    assert "***" in redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays(text):
    assert redact(text) == text


def test_what_stands_around_a_secret_stays():
    assert redact(f"postgresql://u:{SECRET}@db:5432/mlflow") == "postgresql://***@db:5432/mlflow"
    assert redact(f"a=1 token={SECRET}&b=2") == "a=1 token=***&b=2"


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=4, max_size=20))
def test_any_password_in_an_address_goes(secret):
    assert f":{secret}@" not in redact(f"mysql://user:{secret}@host/db")


def test_a_secret_may_be_an_argument_of_its_own():
    arguments = ["sweeper", "run", "a.yaml", "--api-token", SECRET, "--output", "out", "--password", "--name", "x"]
    arguments += [f"--secret={SECRET}", "plain"]
    starred = [*arguments[:4], "***", *arguments[5:10], "--secret=***", "plain"]
    assert redact_arguments(arguments) == starred
    assert redact_arguments([]) == []
