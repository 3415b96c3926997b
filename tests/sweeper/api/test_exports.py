"""Taking results home from the command line and from Python, and answers of commands that have ended."""

import sweeper
from tests.running import in_process


def test_commands_write_what_functions_write(quickstart_folder, tmp_path):
    made = str(quickstart_folder)
    drawn = in_process("figure", made, "importance", "--to", "a.svg", cwd=tmp_path)
    assert (drawn.returncode, drawn.stdout) == (0, "a.svg\n"), drawn.stderr
    sweeper.figure(made, "importance", tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    printed = in_process("figure", made, "table", "--format", "latex", cwd=tmp_path)
    assert printed.stdout == sweeper.figure(made, "table", form="latex") + "\n"
    refused = in_process("export", "nothing", "--to", "model", cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.startswith("error: ") and "nothing" in refused.stderr
    assert not (tmp_path / "model").exists()
