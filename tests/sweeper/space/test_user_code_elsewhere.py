"""A process that sees none of the user's files trains with all five kinds of components from the archive alone."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import search_spaces
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.user_code import code_of, set_code_root
from tests.remote.services import can_hide
from trainables.worker.trial_settings import TrialSettings

ROOT = Path(search_spaces.__file__).parents[1]

PROGRAM = """
import json, pickle, sys
from pathlib import Path
from trainables.worker.trial import Trial
from trainables.worker.trial_settings import prepare_process
from trainables.worker.trial_settings import Assignment
folder, settings, values = pickle.load(sys.stdin.buffer)
seen = sorted(path.name for path in Path(folder).iterdir()) if Path(folder).is_dir() else []
prepare_process(settings)
report = Trial(Assignment(0, "c00000", values, [1, 2]), settings, settings.load_dataset()).advance()
row = next(row for row in report.evaluations if row["split"] == "test")
print(json.dumps({"seen": seen, "packing": report.packing, "failure": report.failure, **row}))
"""


@pytest.mark.integration
def test_what_travels_is_all_that_a_trial_needs(tmp_path, monkeypatch):
    files = tmp_path / "files"
    shutil.copytree(ROOT / "search_spaces" / "examples", files)
    changes = ["space.loss=own_components:Poly1", "space.architecture=own_components:GatedMlp", "samples=1"]
    monkeypatch.chdir(files)
    spec = load_spec("own_components.yaml", [*changes, "evaluation.curvature=false", "evaluation.bootstrap=0"])
    code = code_of(spec)
    assert code is not None
    settings = TrialSettings(
        dataset=spec.dataset,
        max_epochs=2,
        rungs=(2,),
        objective="val_worst_class_gap",
        evaluation=spec.evaluation.settings,
        packing="lanes",
        report_seconds=1e9,
        extensions=code.archive,
    )
    command = [sys.executable, "-c", PROGRAM]
    if can_hide():
        command = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(files), *command]
    else:
        files.rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        command, input=pickle.dumps((str(files), settings, configurations(spec)[0])), capture_output=True, timeout=200,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert found["seen"] == [] and found["failure"] is None and found["packing"] == "lanes"
    assert 0 <= found["worst_class_gap"] <= 1 and 0 <= found["posthoc_bias_corrected_worst_class_gap"] <= 1
    assert found["posthoc_bias_corrected_temperature"] > 0 and "metrics_unavailable" not in found
    set_code_root(None)
