"""Components of a user's own on their way from a search space to a sweep: faults, trials, copies, lists."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from sweeper.api import housekeeping
from sweeper.core.columns import evaluation_columns
from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.execution.cluster.submission import Request, submit
from sweeper.journal.journal import Journal, read_journal
from sweeper.planning.preparation import dataset_facts, lane_notes, prepare_dataset
from sweeper.space import catalogue
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec, reopened_spec
from sweeper.space.user_code import code_of, keep, kept_archive, manifest_entry, set_code_root, take_up_kept
from sweeper.storage.metadata import read_manifest
from sweeper.storage.sweeps import create_sweep, open_sweep
from sweeper.tracking.base import SWEEP_RUN
from sweeper.tracking.runs import RunProjection, identity_of
from sweeper.tracking.sync import tracked
from tests.sweeper.records import made_body
from trainables.extensions.code import archive_digest
from trainables.extensions.targets import entry_points
from trainables.losses import LOSSES
from trainables.training.lanes.packing import chosen_packing
from trainables.training.loop import Replicate

BAD = """
import torch
from torch import nn
from trainables.datasets import load_dataset
from trainables.losses import Loss

def raises(logits, targets, a: float = 1.0):
    return [1][5]

def detached(logits, targets):
    return logits.detach().sum(1)

def flat(logits, targets):
    return logits.sum() * 0

def untyped(logits, targets, a, b=None):
    return logits.sum(1)

class Forgets(Loss):
    stateful = True
    def __init__(self): self.n = 0
    def values(self, logits, targets):
        self.n += 1
        return nn.functional.cross_entropy(logits, targets, reduction="none")
    def state_dict(self): return {"n": self.n}

class Pickled(Forgets):
    def state_dict(self): return {"n": Forgets}

class Liar(Loss):
    def values(self, logits, targets):
        return nn.functional.cross_entropy(logits, targets, reduction="none") * logits.max()

class Narrow(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes + 1)
    def forward(self, inputs): return self.linear(inputs.flatten(1))

class Softmaxed(Narrow):
    def forward(self, inputs): return self.linear(inputs.flatten(1))[:, :-1].softmax(1)

def mapping(probabilities, targets): return {}
def undefined(probabilities, targets): return float("nan")
def unchanged(logits, targets): return lambda values: values

def short(): return load_dataset("digits").test
def floats():
    from dataclasses import replace
    data = load_dataset("digits")
    return replace(data, val=replace(data.val, targets=data.val.targets.float()))
def weightless():
    from dataclasses import replace
    data = load_dataset("digits")
    return replace(data, test=replace(data.test, weights=torch.zeros(len(data.test))))
def doubled():
    from dataclasses import replace
    from trainables.datasets import Transform
    data = load_dataset("digits")
    return replace(data, transform=Transform(lambda raw: 2 * raw, data.test.inputs))
"""

SPACE = {
    "dataset": "digits",
    "scheduler": {"max_epochs": 2},
    "samples": 60,
    "space": {"loss": "cross_entropy", "architecture": "mlp", "optimizer": {"name": "sgd", "lr": 0.1}},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with the bad examples, looked in; forgotten afterwards."""
    (tmp_path / "bad.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    monkeypatch.undo()
    set_code_root(None)


def _space(folder: Path, **changes) -> Path:
    values = {**SPACE, **{key: value for key, value in changes.items() if key != "space"}}
    values["space"] = {**SPACE["space"], **changes.get("space", {})}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def _faults(call) -> str:
    with pytest.raises(InvalidSearchSpace) as caught:
        call()
    return str(caught.value)


def test_every_unusable_name_is_reported_with_its_line_at_once(folder):
    losses = ["bad:Lair", "bad:untyped", {"name": "bad:raises", "aa": 1}, {"name": "bad:raises", "a": "x"}, "nowhere:X"]
    evaluation = {"metrics": ["ece", "bad:mapping", "bad:mapping"], "posthoc": ["bad:none"]}
    said = _faults(lambda: load_spec(_space(folder, space={"loss": {"one_of": losses}}, evaluation=evaluation)))
    for words in ("8 errors, nothing was started", "bad has no 'Lair'", "did you mean 'Liar'?", "the type of b is not",
                  "takes no hyperparameter 'aa'", "a = 'x' must be a number", "there is no module 'nowhere'",
                  "every evaluation measures it already: remove it", "bad:mapping is given twice",
                  "bad has no 'none'"):  # fmt: skip
        assert words in said, said
    assert said.count("line ") == 8


def test_a_metric_may_not_fill_anothers_column_and_may_be_the_objective(folder):
    (folder / "fine.py").write_text("def seed(p, t): return 0.0\ndef gap(p, t): return 0.5\n")
    said = _faults(lambda: load_spec(_space(folder, evaluation={"metrics": ["fine:seed"]})))
    assert "'seed' would write to the column seed" in said
    spec = load_spec(
        _space(folder, evaluation={"metrics": ["fine:gap"], "posthoc": "temperature"}, objective={"metric": "val_gap"})
    )
    columns = evaluation_columns(["temperature"], [m["name"] for m in spec.evaluation.metrics])
    assert {"gap", "metrics_unavailable", "posthoc_temperature_gap"} < set(columns)
    assert "unknown metric 'val_gap'" in _faults(lambda: load_spec(_space(folder, objective={"metric": "val_gap"})))


def test_a_users_metric_says_which_end_is_good(folder):
    (folder / "fine.py").write_text(
        "def own_f1(p, t): return 0.5\nown_f1.MODE = 'max'\ndef up(p, t): return 0.5\nup.MODE = 'up'\n"
    )
    changes = {"evaluation": {"metrics": ["fine:own_f1"]}, "objective": {"metric": "val_own_f1"}}
    spec = load_spec(_space(folder, **changes))
    assert spec.objective.mode == "max"
    (folder / "fine.py").unlink()
    assert reopened_spec(spec.resolved(), "sweep").objective.mode == "max", (
        "written out, and read without the user's code"
    )
    (folder / "fine.py").write_text("def up(p, t): return 0.5\nup.MODE = 'up'\n")
    assert "MODE = 'up' must be min or max" in _faults(
        lambda: load_spec(_space(folder, evaluation={"metrics": ["fine:up"]}))
    )


def test_what_a_signature_does_not_tell_is_tried_out_before_the_sweep(folder):
    losses = [f"bad:{name}" for name in ("raises", "detached", "flat", "Forgets", "Pickled", "Liar")]
    space = _space(
        folder,
        samples=18,
        space={"loss": {"choice": losses}, "architecture": {"choice": ["mlp", "bad:Narrow", "bad:Softmaxed"]}},
        evaluation={"metrics": ["bad:mapping", "bad:undefined"], "posthoc": ["bad:unchanged"]},
    )
    said = _faults(lambda: prepare_dataset(load_spec(space)))
    for words in (
        "bad.py:8: IndexError: list index out of range", "bad:detached: its value does not depend on the logits",
        "bad:flat: its gradient is zero everywhere", "bad:Forgets: its state 'n' changes after load_state_dict",
        "bad:Pickled: its state_dict cannot be read from a checkpoint",
        "bad:Liar: a sample's value depends on the others",
        "bad:Narrow: it gives shape (2, 11) for 2 samples", "bad:Softmaxed: its outputs are probabilities",
        "bad:mapping: TypeError", "bad:undefined: it gives nan",
        "bad:unchanged: its probabilities from",
    ):  # fmt: skip
        assert words in said, said
    assert "11 errors" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "bad:short gives a Split, which must be a trainables.datasets.DataSet"),
        ("floats", "bad:floats has targets of torch.float32 of shape (359,) in val"),
        ("weightless", "has weights of shape (359,) in test; give each sample a finite number above 0"),
        ("doubled", "a transform whose module does not make the test split's inputs of its raw inputs"),
        ("mapping", "the type of probabilities is not known"),
    ],
)
def test_a_data_set_is_looked_at_before_anything_trains_on_it(folder, name, said):
    assert said in _faults(lambda: prepare_dataset(load_spec(_space(folder, dataset=f"bad:{name}"))))


LANES = '''
import torch
from torch import nn
from torch.nn import functional
from trainables.losses import Loss

def looks(logits, targets):
    values = functional.cross_entropy(logits, targets, reduction="none")
    return values.mean() * (2 if values.mean().item() > 1 else 1)

class Counts(Loss):
    """Keeps a running mean that lanes do not see."""
    batch_coupled = stateful = True
    def __init__(self): self.mean = torch.zeros(())
    def value(self, logits, targets):
        value = functional.cross_entropy(logits, targets)
        if not torch._C._functorch.is_batchedtensor(value):
            self.mean = 0.5 * self.mean + value.detach()
        return value / (1 + self.mean)
    def state_dict(self): return {"mean": self.mean}
    def restore(self, state): self.mean = torch.as_tensor(state["mean"])

class Asks(nn.Module):
    """Chooses its way by what it sees."""
    def __init__(self, input_shape, classes):
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(64, classes) for _ in range(2))
    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.ways[int(flat.mean() > 0.3)](flat)

def fine(logits, targets, power: float = 1.0):
    return functional.cross_entropy(logits, targets, reduction="none") ** power
'''


def test_a_loss_that_lanes_would_train_wrongly_trains_one_after_the_other(folder):
    (folder / "lanes.py").write_text(LANES)
    losses = {"grid": ["lanes:looks", "lanes:Counts", "lanes:fine", "focal"]}
    replicates = {"count": 2, "packing": "lanes"}
    spec = load_spec(_space(folder, space={"loss": losses}, samples=1, replicates=replicates))
    dataset = prepare_dataset(spec)
    notes = lane_notes(spec, dataset)
    assert len(notes) == 2, notes
    assert notes[0].startswith("lanes:looks on mlp trains replicates one after another, not as lanes: it cannot be")
    assert notes[1].startswith("lanes:Counts on mlp trains replicates one") and " alone" in notes[1]
    found = {}
    for values in configurations(spec):

        def build(seed, data, values=values):
            return Replicate(values, seed=seed, dataset=data, max_epochs=2)

        found[values["loss"]["name"]] = chosen_packing("lanes", build, values, (1, 2), dataset, "cpu")
    assert found == {
        "lanes:looks": "sequential", "lanes:Counts": "sequential", "lanes:fine": "lanes", "focal": "lanes",
    }  # fmt: skip


def test_a_network_that_lanes_cannot_share_trains_one_after_the_other(folder):
    (folder / "lanes.py").write_text(LANES)
    space = {"architecture": {"grid": ["lanes:Asks", "mlp"]}}
    spec = load_spec(_space(folder, space=space, samples=1, replicates={"count": 2, "packing": "auto"}))
    notes = lane_notes(spec, prepare_dataset(spec))
    assert len(notes) == 1
    assert notes[0].startswith("cross_entropy on lanes:Asks trains replicates one after another, not as lanes: it")


def _begun(folder: Path, name: str) -> tuple:
    spec = load_spec(_space(folder, space={"loss": "mine:loss"}, samples=1))
    code, facts = code_of(spec), dataset_facts(prepare_dataset(spec))
    manifest = {"dataset": {**spec.dataset, **facts}, **manifest_entry(code)}
    sweep = create_sweep(spec, name, name, folder / "results", manifest)
    keep(code, sweep.paths)
    return spec, code, facts, sweep


def test_a_sweep_is_opened_without_its_code_and_resumed_with_its_own_copy(folder):
    (folder / "mine.py").write_text("def loss(logits, targets, scale: float = 1.0): return scale * logits.sum(1)\n")
    _, code, _, sweep = _begun(folder, "first")
    (folder / "mine.py").write_text("raise SystemExit('imported')\n")
    set_code_root(None)
    opened = open_sweep("first", folder / "results")
    assert opened.configurations[0]["loss"] == {"name": "mine:loss", "scale": 1.0}
    assert SweepPaths(sweep.paths.root).extensions.read_bytes() == code.archive
    take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=False)
    prepare_dataset(opened.spec)
    Journal(sweep.paths.journal).append(made_body("attempt", {"attempt": 1}))
    runs = RunProjection(tracked(opened.paths), identity_of(opened.paths), {})
    for record in read_journal(sweep.paths.journal):
        runs.apply(record)
    (own,) = (update for update in runs.take(abandoned=False, diagrams={}) if update.place == SWEEP_RUN)
    assert own.tags["own_code"] == code.digest


CAUGHT = "import pathlib\npathlib.Path('caught').touch()\ndef loss(logits, targets): return logits.sum(1)\n"


def test_code_that_came_with_a_folder_runs_only_if_it_is_trusted(folder, monkeypatch):
    (folder / "mine.py").write_text("def loss(logits, targets): return logits.sum(1)\n")
    sweep = _begun(folder, "first")[3]
    opened = open_sweep("first", folder / "results")
    monkeypatch.setenv("SWEEPER_CACHE", str(folder / "another user's"))
    (folder / "mine.py").unlink()
    with pytest.raises(SweeperError, match=r"would run code that came with its folder: mine:loss\n.*--trust"):
        take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=False)
    take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=True)
    take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=False)  # it is remembered
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("mine.py", CAUGHT)
    sweep.paths.extensions.write_bytes(buffer.getvalue())
    with pytest.raises(SweeperError, match="differs from the code that the sweep started with"):
        take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=True)
    assert not (folder / "caught").exists()


@pytest.mark.parametrize("named", [False, True])
def test_code_that_no_space_names_reaches_no_process(folder, named):
    """A stranger may write the manifest as well, and `torch.py` in the archive would come first on the path."""
    spec = load_spec(_space(folder, samples=1))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("torch.py", CAUGHT)
    facts = {"extensions": {"digest": archive_digest(buffer.getvalue()), "components": {"mine:loss": {}}}}
    sweep = create_sweep(spec, "plain", "plain", folder / "results", facts if named else {})
    sweep.paths.extensions.write_bytes(buffer.getvalue())
    take_up_kept(sweep.paths, spec, read_manifest(sweep.paths.manifest), trust=True)
    assert kept_archive(sweep.paths, spec, read_manifest(sweep.paths.manifest)) is None
    assert not any("sweeper-extensions" in entry for entry in sys.path[:2])


def test_a_name_that_the_code_was_not_allowed_for_is_not_called(folder, monkeypatch):
    """A search space can name any function of any installed package."""
    (folder / "mine.py").write_text("def loss(logits, targets): return logits.sum(1)\n")
    sweep = _begun(folder, "first")[3]
    text = sweep.paths.sweep_file.read_text().replace("mine:loss", "os:system")
    assert "os:system" in text
    sweep.paths.sweep_file.write_text(text)
    opened = open_sweep("first", folder / "results")
    with pytest.raises(SweeperError, match="would run code that came with its folder: os:system"):
        take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=False)


PLANTED = {
    "a split's data set": lambda values: values["evaluation"].update(
        splits=["val", "test", {"other": {"dataset": {"name": "payload:load"}}}]
    ),
    "a split's data set in short": lambda values: values["evaluation"].update(
        splits=["val", "test", {"name": "other", "dataset": "payload:load"}]
    ),
    "the varied data set": lambda values: values["space"].update(
        dataset={"name": "payload:load", "option": {"choice": [0, 1]}}
    ),
    "a base loss": lambda values: values["space"].update(loss={"name": "hessian_trace", "base": "payload:load"}),
    "one of several base losses": lambda values: values["space"].update(
        loss={"name": "hessian_trace", "base": {"choice": ["cross_entropy", "payload:load"]}}
    ),
    "a nested base loss": lambda values: values["space"].update(
        loss={"one_of": [{"name": "focal"}, {"name": "hessian_trace", "base": "payload:load"}]}
    ),
    "a post-hoc method": lambda values: values["evaluation"].update(posthoc=[{"name": "payload:load"}]),
}


@pytest.mark.parametrize("place", PLANTED)
def test_a_strangers_name_runs_only_if_it_is_trusted_wherever_it_stands(folder, place):
    """Opening the folder imports nothing, resuming it asks first, and what was not asked about stays unimported."""
    spec = load_spec(_space(folder, samples=1))
    sweep = create_sweep(spec, "plain", "plain", folder / "results", {})
    (folder / "payload.py").write_text(CAUGHT.replace("loss", "load"))
    values = yaml.safe_load(sweep.paths.sweep_file.read_text())
    PLANTED[place](values)
    sweep.paths.sweep_file.write_text(yaml.safe_dump(values))
    set_code_root(None)
    opened = open_sweep("plain", folder / "results")
    assert not (folder / "caught").exists(), "opening a folder is no reason to run what it names"
    with pytest.raises(SweeperError, match="would run code that came with its folder: payload:load"):
        take_up_kept(opened.paths, opened.spec, {}, trust=False)
    assert not (folder / "caught").exists()


def test_only_what_was_asked_about_can_be_imported(folder):
    """The second line of defence: a name that no walk over the file found is refused by the registries."""
    (folder / "payload.py").write_text(CAUGHT)
    (folder / "mine.py").write_text("def loss(logits, targets): return logits.sum(1)\n")
    opened = _begun(folder, "first")[3]
    take_up_kept(opened.paths, opened.spec, read_manifest(opened.paths.manifest), trust=False)
    assert "has not been approved" in str(LOSSES.fault("payload:loss")) and LOSSES.fault("mine:loss") is None
    assert not (folder / "caught").exists()
    set_code_root(None)
    assert LOSSES.fault("payload:loss") is None, "a program of the user's own may name anything"


def test_a_base_loss_and_a_splits_data_set_travel_with_the_sweep(folder):
    (folder / "mine.py").write_text("def loss(logits, targets): return logits.sum(1)\n")
    (folder / "data.py").write_text(
        "from trainables.datasets import load_dataset\ndef load(): return load_dataset('digits')\n"
    )
    evaluation = {"splits": ["val", "test", {"other": {"dataset": "data:load"}}]}
    spec = load_spec(
        _space(folder, space={"loss": {"name": "hessian_trace", "base": "mine:loss"}}, evaluation=evaluation)
    )
    code = code_of(spec)
    assert code.components == {"data:load": {"kind": "data set"}, "mine:loss": {"kind": "loss"}}
    assert zipfile.ZipFile(io.BytesIO(code.archive)).namelist() == ["data.py", "mine.py"]
    assert open_sweep(create_sweep(spec, "own", None, folder / "results", {}).name, folder / "results").spec == spec


class _Jobs:
    def submit(self, name, command, metadata, folder, modules):
        self.files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        return f"{name}.1"


def test_a_submitted_sweep_takes_its_code_along(folder):
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "losses.py").write_text("import beside\ndef loss(logits, targets): return logits.sum(1)\n")
    (folder / "beside.py").write_text("")
    jobs = _Jobs()
    space = _space(folder, space={"loss": "package.losses:loss"})
    assert submit(jobs, str(space), None, lambda name: False, Request("s3://bucket/x", no_mlflow=True))[0] == "own"
    assert jobs.files == ["beside.py", "package/__init__.py", "package/losses.py", "space.yaml"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that is installed for this test, as pip would write it."""
    described = tmp_path / "site" / "acme-2.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 2.0\n")
    points = "[calibration_sweeper.losses]\ntempered = acme:tempered\nfocal = acme:tempered\nlost = acme:lost\n"
    (described / "entry_points.txt").write_text(points + "[calibration_sweeper.metrics]\nworst = acme:worst\n")
    (tmp_path / "site" / "acme.py").write_text(
        'def tempered(logits, targets, power: float = 0.5):\n    """A power."""\n    return logits.sum(1) ** power\n'
        "def worst(probabilities, targets): return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    set_code_root(None)
    yield tmp_path
    monkeypatch.undo()
    set_code_root(None)
    entry_points.cache_clear()


def test_what_a_package_adds_is_listed_with_where_it_comes_from_and_checked_by_doctor(installed):
    losses = {entry.name: entry for entry in catalogue.list_components("losses")}
    assert (losses["tempered"].summary, losses["tempered"].source) == ("A power.", "acme 2.0, acme:tempered")
    assert losses["lost"].summary.startswith("cannot be used: acme:lost: acme has no 'lost'")
    assert losses["focal"].source != "acme 2.0", "the project's own name is not taken away"
    assert [h.default for h in losses["tempered"].hyperparameters] == [0.5]
    assert "worst" in {entry.name for entry in catalogue.list_components("metrics")}
    check = housekeeping._own_components()  # `doctor` itself also starts processes, which takes half a minute
    assert not check.ok and "loss lost: acme:lost" in check.finding
    assert "a built-in component has the same name" in check.finding
    spec = load_spec(_space(installed, space={"loss": "tempered"}, evaluation={"metrics": "worst"}))
    code = code_of(spec)
    assert code.components["tempered"] == {"kind": "loss", "package": "acme 2.0"}
    names = zipfile.ZipFile(io.BytesIO(code.archive)).namelist()
    assert names == ["acme-2.0.dist-info/METADATA", "acme-2.0.dist-info/entry_points.txt", "acme.py"]
