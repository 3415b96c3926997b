"""The list of commands and their help: complete and consistent."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.api import GROUPS, SUBCOMMANDS
from sweeper.api.main import refuse_what_is_no_text
from sweeper.core.errors import SweeperError
from tests.patience import patient
from tests.running import typed

TYPED = [*(name.rstrip("_") for names in GROUPS.values() for name in names), "paper", "claims"]
BELOW = [f"{group} {name}" for group, (_, names) in SUBCOMMANDS.items() for name in names]


def test_one_table_of_the_documentation_has_every_command() -> None:
    page = (Path(__file__).parents[3] / "docs" / "commands.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `([a-z -]+)` \|", page, re.MULTILINE)) == sorted([*TYPED, *BELOW])


@pytest.mark.parametrize("argument", [b"SELECT '\xff'", b"caf\xe9.yaml"])
def test_an_argument_that_is_no_text_is_refused(argument: bytes) -> None:
    refuse_what_is_no_text(["results", "γ.yaml", "--sql", "SELECT 'γ'"])
    with pytest.raises(SweeperError, match=r"\\x.. is not UTF-8|\\x..(.)* is not UTF-8"):
        refuse_what_is_no_text(["results", os.fsdecode(argument)])


# MiB: without the check, scipy never ended with 60 and 90, and duckdb aborted
@pytest.mark.parametrize(
    ("name", "left"), [("scipy.special", 60), ("scipy.special", 90), ("duckdb", 60), ("duckdb", 200)]
)
def test_what_needs_more_address_space_than_is_left_is_refused(name: str, left: int) -> None:
    program = f"""
import mmap, resource, numpy
from pathlib import Path
from sweeper.api.main import refuse_what_would_hang
refuse_what_would_hang()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
held = mmap.mmap(-1, resource.getrlimit(resource.RLIMIT_AS)[0] - used - {left} * 2**20)
try:
    import {name}
except MemoryError as error:
    print(error)
"""
    command = ["sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(60))
    assert done.stdout.startswith(f"{name.partition('.')[0]} needs 256 MiB of address space and "), done.stderr


def test_an_installed_package_adds_a_command(tmp_path: Path) -> None:
    """One that runs, one that cannot be imported, and one that has a name of ours, which stays ours."""
    facts = tmp_path / "audits-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: audits\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[sweeper.commands]\naudit-all = audits:audit_all\nbroken = audits_missing:go\ndoctor = audits:audit_all\n"
    )
    (tmp_path / "audits.py").write_text(
        "from __future__ import annotations\n\n\ndef audit_all(name: str, *, deep: bool = False) -> str:\n"
        '    """Audit everything.\n\n    Args:\n        name: Whom to audit.\n        deep: Look closer.\n    """\n'
        '    return f"{name} {deep}"\n'
    )
    program = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from sweeper.api.main import main; main()",
    ]

    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, str(tmp_path), *words], capture_output=True, text=True, timeout=patient(60))

    done = said("audit-all", "everyone", "--deep")
    assert done.stdout == "everyone True\n", done.stderr
    helped = said("--help")
    assert helped.returncode == 0 and "Audit everything." in helped.stdout
    assert "Check that this machine can run sweeps." in helped.stdout
    assert "'broken' of audits_missing:go cannot be imported" in helped.stderr and "'doctor'" in helped.stderr


def test_numbers_of_a_papers_figure_are_json() -> None:
    done = typed("paper", "confidence", "--format", "json")
    first = json.loads(done.stdout)[0]
    assert first["curve"] and [type(value) for value in first.values()] == [str, float, float]
    items = typed("paper", "mukhoti", "--items", "--format", "json")
    assert any(row["item"] == "Fig. 1" for row in json.loads(items.stdout))
