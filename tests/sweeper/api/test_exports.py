"""Taking results home from the command line and from Python: the same options, files and sentences."""

from __future__ import annotations

import sweeper
from sweeper.api import exports
from tests.running import in_process
from tests.sweeper.synthetic_sweep import write_sweep


def test_everything_is_found_in_the_package():
    names = {"export", "load_model", "figure"}
    assert all(getattr(sweeper, name) is getattr(exports, name) for name in names) and names <= set(dir(sweeper))


def test_commands_write_what_functions_write(tmp_path):
    write_sweep(tmp_path / "results" / "made")
    drawn = in_process("figure", "made", "importance", "--to", "a.svg", cwd=tmp_path)
    assert (drawn.returncode, drawn.stdout) == (0, "a.svg\n"), drawn.stderr
    sweeper.figure("made", "importance", tmp_path / "b.svg", output=tmp_path / "results")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    printed = in_process("figure", "made", "table", "--format", "latex", cwd=tmp_path)
    assert printed.stdout == sweeper.figure("made", "table", form="latex", output=tmp_path / "results") + "\n"
    refused = in_process("export", "nothing", "--to", "model", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("error: ") and "nothing" in refused.stderr
    assert not (tmp_path / "model").exists()
