"""Imports point one way: no folder reaches itself again through others, heavy packages stay where they belong.

Every import counts, those inside functions too; only what type checkers alone see is left out.
"""

import ast
import subprocess
import sys

import pytest
import yaml

from sweeper.space.loading import load_spec
from tests.import_graph import (
    FILES,
    ROOT,
    cycle_in,
    drawn_into,
    file_graph,
    folder_graph,
    folder_name,
    imported,
    packages,
)
from tests.sweeper.synthetic_sweep import write_sweep

RAY_FOLDERS = ("sweeper/execution/ray", "sweeper/execution/cluster/cluster.py")
RAY_FILES = {"trainables/worker/trainable.py"}
PROGRAMS = {
    f"search_spaces/examples/{name}.py" for name in ("own_loop", "own_lightning", "own_trainer", "serve_with_ray")
}
"""Examples that use the packages instead of being used by them."""
SLOW = {"torchvision", "timm", "scipy", "sklearn", "ray", "mlflow", "pandas", "duckdb", "vl_convert", "optuna"}


def test_the_graph_of_folders_has_no_cycle():
    graph = folder_graph(FILES)
    assert len(graph) > 30, "there are folders to look at"
    assert cycle_in(graph) == []


def test_no_file_reaches_itself_through_others():
    assert cycle_in(file_graph(FILES)) == []


def test_the_drawing_shows_these_folders():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert text == drawn_into(text), "imports changed: `make graph` draws them anew"


def test_packages_import_one_way():
    for path in FILES:
        top = path.relative_to(ROOT).parts[0]
        forbidden = {"sweeper": {"tests"}, "trainables": {"tests", "sweeper", "search_spaces", "mlflow"}}
        if path.relative_to(ROOT).as_posix() not in PROGRAMS:
            guest = folder_name(path).startswith("search_spaces.papers")
            assert not packages(path) & forbidden.get(top, {"tests"} if guest else {"tests", "sweeper"}), path


def test_the_papers_are_a_guest_whom_nothing_imports():
    for path in FILES:
        if not folder_name(path).startswith("search_spaces.papers"):
            assert not any(module.startswith("search_spaces.papers") for module, _ in imported(path)), path


def test_only_the_commands_import_commands():
    for path in FILES:
        if folder_name(path) != "sweeper.api" and path.stem not in ("__main__", "__init__", "commands"):
            assert not any(module.startswith("sweeper.api") for module, _ in imported(path)), path


def test_only_the_commands_print():
    for path in FILES:
        if folder_name(path) not in ("sweeper.api", "search_spaces.examples"):
            called = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
            calls = (node.func for node in called if not any(word.arg == "file" for word in node.keywords))
            assert not any(isinstance(call, ast.Name) and call.id == "print" for call in calls), path


def test_what_runs_without_the_packages_imports_none_of_them():
    alone = [*(ROOT / "search_spaces").glob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    assert len(alone) > 3
    for path in alone:
        assert not packages(path) & {"sweeper", "trainables"}, path


def test_ray_and_mlflow_stay_where_they_belong():
    for path in FILES:
        name, found = path.relative_to(ROOT).as_posix(), packages(path)
        assert "ray" not in found or name.startswith(RAY_FOLDERS) or name in {*RAY_FILES, *PROGRAMS}, path
        assert "mlflow" not in found or name.startswith("sweeper/tracking/mlflow/"), path


def test_trainables_import_nothing_slow_at_the_top():
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("trainables/"):
            assert packages(path, in_functions=False) & SLOW <= ({"ray"} if name in RAY_FILES else set()), path


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("trainables.worker.trial, trainables.models, trainables.datasets; trainables.datasets.load_dataset('digits')",
         SLOW),
        ("sweeper.journal.journal, sweeper.journal.state, sweeper.scheduling.asha, sweeper.core.ids, "
         "sweeper.storage.lease", {"torch", "ray"}),
        ("sweeper.execution.options, sweeper.storage.places, sweeper.api.finished", {"torch", "ray"}),
    ],
    ids=["a worker that is about to train", "a reader of journals", "a resume with nothing to do"],
)  # fmt: skip
def test_what_must_start_fast_loads_nothing_slow(modules, absent):
    program = f"import sys, {modules}\nprint(sorted({absent!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_training_evaluating_and_planning_load_no_compiler_and_no_symbols():
    program = """
import sys
from sweeper.planning.costs import measured_plan
from sweeper.space.loading import load_spec
from trainables.posthoc import fit
spec = load_spec("quickstart")
assert spec.evaluation.curvature
assert measured_plan(spec).estimate
fit("vector", [[1.0, 0.0], [0.0, 1.0], [1.0, 2.0]] * 9, [0, 1, 0] * 9)
print(sorted({"torch._dynamo", "sympy"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_commands_that_read_a_sweep_load_nothing_that_trains(tmp_path):
    folder = write_sweep(tmp_path / "results" / "small", configurations=4, samples=100, failures=0, space="gamma")
    (folder / "sweep.yaml").write_text(yaml.safe_dump(load_spec("quickstart", ["objective=val_nll"]).resolved()))
    program = """
import sys
import sweeper
sweeper.status()
sweeper.status("small")
sweeper.status("small", audit=True)
sweeper.results_("small")
sweeper.figure("small", "ece_against_gamma")
sweeper.ensemble("small")
sweeper.show("small", "c00000")
sweeper.compare("small", "c00000", "c00001")
sweeper.report("small")
try:
    sweeper.stop("small")
except sweeper.SweeperError:
    pass
print(sorted({"torch", "ray", "mlflow", "scipy.stats"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_the_command_line_imports_only_the_module_of_the_typed_command():
    program = """
import contextlib, sys
from sweeper.api import COMMANDS, main
sys.argv = ["sweeper", "status", "--help"]
with contextlib.suppress(SystemExit):
    main.main()
print(sorted({f"sweeper.api.{COMMANDS[name]}" for name in ("compare", "show", "doctor")} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr
