"""Imports point one way, heavy packages stay where they belong, and a worker starts fast."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("sweeper", "trainables", "search_spaces")
RUNNING = {"sweeper.running", "sweeper.remote"}
COMMANDS = {"sweeper.cli", "sweeper.__main__"}
READING = {"sweeper.report", "sweeper.comparison", "sweeper.papers", "sweeper.progress"}
OTHERS = {f"sweeper.{path.stem}" for path in (ROOT / "sweeper").iterdir()} - {"sweeper.statistics"}
FORBIDDEN = {
    # folder → what nothing in it imports, beyond what the tests below say; `CONTRIBUTING.md` says it in words.
    "trainables/losses": {"trainables.training", "trainables.worker", "trainables.datasets"},
    "trainables/models": {"trainables.training", "trainables.worker", "trainables.losses"},
    "trainables/datasets": {"trainables.training", "trainables.worker", "trainables.losses", "trainables.models"},
    "trainables/posthoc": {"trainables.training", "trainables.worker", "trainables.datasets", "trainables.models"},
    "trainables/curvature": {"trainables.training", "trainables.worker", "trainables.datasets", "trainables.models"},
    },
    "trainables/models": {
        "trainables.training.loop",
        "trainables.worker.trial",
        "trainables.training.evaluation",
        "trainables.losses",
    },
    "trainables/datasets": {
        "trainables.training.loop",
        "trainables.worker.trial",
        "trainables.losses",
        "trainables.models",
    },
    "trainables/posthoc": {
        "trainables.training.loop",
        "trainables.worker.trial",
        "trainables.datasets",
        "trainables.models",
    },
    "trainables/curvature": {
        "trainables.training.loop",
        "trainables.worker.trial",
        "trainables.datasets",
        "trainables.models",
    },
    "sweeper/spec":
    RUNNING | COMMANDS | READING | {"sweeper.sinks", "sweeper.journal", "sweeper.state"},
    "sweeper/statistics": OTHERS, "sweeper/search": RUNNING | COMMANDS | READING | {"sweeper.sinks",
    "sweeper.planning"}, "sweeper/planning": RUNNING | COMMANDS | READING | {"sweeper.sinks", "sweeper.journal", "sweeper.state"},
    "sweeper/recalibration": RUNNING | COMMANDS | READING | {"sweeper.sinks", "sweeper.journal"},
    "sweeper/sinks": RUNNING | COMMANDS | {"sweeper.report", "sweeper.claims"},
    "sweeper/report": RUNNING | COMMANDS | {"sweeper.journal", "sweeper.state", "sweeper.sinks"},
    "sweeper/claims": RUNNING | COMMANDS | {"sweeper.journal", "sweeper.state", "sweeper.sinks", "sweeper.report"},
}
FILES = sorted(path for package in ("trainables", "sweeper") for path in (ROOT / package).rglob("*.py"))
RAY_FILES = {
    "trainables/worker/trainable.py",
    "sweeper/running/executor.py",
    "sweeper/running/ray_session.py",
    "sweeper/remote/cluster.py",
    "sweeper/running/ray_card_probe.py",
    "sweeper/running/ray_memory_kills.py",
    "sweeper/running/ray_view.py",
}
RAY_FILES |= {"sweeper/search/optuna_search.py"}  # Optuna through Tune's own searcher
SLOW = {"torchvision", "timm", "scipy", "sklearn", "ray", "mlflow", "pandas", "duckdb", "plotly", "matplotlib"}
SLOW |= {"optuna"}


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _packages(nodes):
    """Return the top-level packages that these import statements name."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add((node.module or "").partition(".")[0])
    return found


def _imported(path):
    return _packages(ast.walk(ast.parse(path.read_text())))


def _imported_at_the_top(path):
    """Return what importing the module imports: everything outside functions, but not what only type checkers see."""
    waiting, reached = list(ast.parse(path.read_text()).body), []
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        reached.append(node)
        waiting += ast.iter_child_nodes(node)
    return _packages(reached)


def test_there_are_files_to_look_at():
    assert len(FILES) > 60


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_one_way(path):
    imported = _imported(path)
    assert "tests" not in imported
    if _name(path).startswith("trainables/"):
        assert "sweeper" not in imported and "search_spaces" not in imported


def _our_modules(path):
    """Return the modules of ours that a file imports, in two parts: `sweeper.sinks`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module in OURS:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {".".join(name.split(".")[:2]) for name in named if name.split(".")[0] in OURS}
    return found


@pytest.mark.parametrize(("folder", "forbidden"), FORBIDDEN.items(), ids=list(FORBIDDEN))
def test_a_folder_imports_what_it_may(folder, forbidden):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert len(files) > 3
    for path in files:
        assert not _our_modules(path) & forbidden, path


def test_only_the_commands_import_commands():
    for path in FILES:
        inside = path.parent.name == "cli" or path.stem == "__main__"
        assert inside or "sweeper.cli" not in _our_modules(path), path


def test_what_runs_without_the_packages_imports_none_of_them():
    alone = [*(ROOT / "search_spaces").glob("*.py"), *(ROOT / "deploy").rglob("*.py")]
    assert len(alone) > 4
    for path in alone:
        assert not {name for name in _our_modules(path) if not name.startswith("search_spaces")}, path


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_ray_and_mlflow_stay_where_they_belong(path):
    imported = _imported(path)
    assert "ray" not in imported or _name(path) in RAY_FILES
    assert "mlflow" not in imported or _name(path).startswith("sweeper/sinks/mlflow")


@pytest.mark.parametrize("path", [p for p in FILES if _name(p).startswith("trainables/")], ids=_name)
def test_trainables_import_nothing_slow_at_the_top(path):
    allowed = {"ray"} if _name(path) in RAY_FILES else set()
    assert _imported_at_the_top(path) & SLOW <= allowed


def test_a_worker_loads_nothing_slow_before_it_trains():
    program = (
        "import sys; from trainables.worker.trial import Trial; from trainables.models import ARCHITECTURES\n"
        "from trainables.datasets import load_dataset; load_dataset('digits')\n"
        f"print(sorted({SLOW!r} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stdout + done.stderr


def test_reading_ids_and_journals_loads_no_torch():
    program = (
        "import sys, sweeper.journal, sweeper.state, sweeper.scheduler, sweeper.ids, sweeper.lease\n"
        "print('torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False False\n", done.stdout + done.stderr
