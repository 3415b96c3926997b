"""A trained network goes home: its program gives the sweep's probabilities, here and where torch is all there is."""

import json
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sweeper
from sweeper.core.ids import SweepPaths
from sweeper.exporting.folder import NONE, Exported, _reference
from sweeper.exporting.program import joint_logits, raw_batches
from sweeper.results.predictions import StoredPredictions
from tests.running import in_process
from tests.sweeper.exporting.swept import DIGITS, OWN, SPIRALS, stored, swept
from tests.sweeper.reporting.test_first_screen import shared_screen
from trainables.datasets import load_dataset
from trainables.metrics import softmax64
from trainables.metrics.base import log_softmax64
from trainables.posthoc import fit


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> SweepPaths:
    return swept(tmp_path_factory.mktemp("digits"), "digits", *DIGITS)


@pytest.fixture(scope="module")
def exported(digits, tmp_path_factory) -> Exported:
    """The best trial of the digits, exported with the defaults."""
    return sweeper.export(digits.name, tmp_path_factory.mktemp("exported") / "model", output=digits.root.parent)


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> SweepPaths:
    return swept(tmp_path_factory.mktemp("own"), "own", *OWN)


@pytest.mark.parametrize(
    ("replicate", "posthoc"),
    [
        ("0", "temperature"),
        ("all", "temperature"),
        *(pytest.param("1", method, marks=pytest.mark.integration) for method in ("focal_map", NONE)),
    ],
)
@pytest.mark.parametrize("which", ["digits", pytest.param("own", marks=pytest.mark.integration)])
def test_the_program_gives_the_sweeps_probabilities(which, replicate, posthoc, request, tmp_path):
    paths = request.getfixturevalue(which)
    if (which, replicate, posthoc) == ("digits", "0", "temperature"):
        done = request.getfixturevalue("exported")
    else:
        done = sweeper.export(
            paths.name, tmp_path / "model", replicate=replicate, posthoc=posthoc, output=paths.root.parent
        )
    options = {} if which == "digits" else SPIRALS
    raw = next(raw_batches(load_dataset(**(options or {"name": "digits"})), 1000))
    parts = stored(paths, done.trial, [0, 1] if replicate == "all" else [int(replicate)])
    if posthoc == NONE:
        expected = softmax64(parts["test"][0])
    else:
        gamma = done.description["source"]["configuration"]["loss"]["gamma"]
        expected = fit(posthoc, *parts["val"], **({"gamma": gamma} if posthoc == "focal_map" else {}))(parts["test"][0])
    model = sweeper.load_model(done.folder)
    found = model.predict(raw)
    assert found.shape == expected.shape and np.abs(found.double().numpy() - expected).max() < 1e-5
    assert done.difference < 1e-5 and done.samples == len(raw)
    assert torch.allclose(model.predict(raw[0]), found[:1], atol=1e-5)
    assert model.predict(raw[:0]).shape == (0, found.shape[1])
    assert {path.name for path in done.folder.iterdir()} == {
        "program.pt2", "model.json", "model_card.md", "MLmodel", "code", "python_env.yaml", "requirements.txt",
        "input_example.json", "serving_input_example.json",
        *(f"weights_r{r}.safetensors" for r in done.replicates)
    }  # fmt: skip


@pytest.mark.integration
def test_the_program_runs_where_torch_is_all_there_is(own, tmp_path):
    done = sweeper.export(own.name, tmp_path / "model", replicate="all", output=own.root.parent)
    inputs = load_dataset(**SPIRALS).test.inputs
    torch.save(inputs, tmp_path / "inputs.pt")
    program = (
        "import sys, torch\n"
        f"run = torch.export.load({str(done.folder / 'program.pt2')!r}).module()\n"
        f"torch.save(run(torch.load({str(tmp_path / 'inputs.pt')!r})), {str(tmp_path / 'outputs.pt')!r})\n"
        "print(sorted({'sweeper', 'trainables', 'own_components'} & {name.split('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout == "[]\n", ran.stdout + ran.stderr
    here = sweeper.load_model(done.folder).predict(inputs)
    assert torch.allclose(torch.load(tmp_path / "outputs.pt"), here, atol=1e-7)


def test_the_weights_fit_the_network_and_the_card_tells_what_it_is(digits, exported):
    from trainables.models import build_model

    done = exported
    network = build_model("resnet8", (1, 8, 8), 10)
    network.load_state_dict(load_file(done.folder / "weights_r0.safetensors"))
    test = load_dataset("digits").test
    with torch.no_grad():
        logits = network.eval()(test.inputs).numpy()
    assert np.abs(logits - stored(digits, done.trial, [0])["test"][0]).max() < 1e-4
    card = (done.folder / "model_card.md").read_text("utf-8")
    row = sweeper.results.load(digits.name, digits.root.parent).rows(
        f"SELECT posthoc_temperature_nll AS nll FROM final WHERE trial = '{done.trial}' AND replicate = 0 "
        "AND split = 'test'"
    )[0]
    said = next(line for line in card.splitlines() if line.startswith("| NLL"))
    assert f"| {row['nll']:.4f} (" in said.split("|", 3)[3].join("|  ")
    for words in ("1,079 training", "focal (gamma", f"trial `{done.trial}`", "Reliability", "Limits"):
        assert words in card
    description = json.loads((done.folder / "model.json").read_text("utf-8"))
    taken = {"kind": "array", "shape": [1, 8, 8], "dtype": "uint8", "low": 0, "high": 16, "transformed": True}
    assert description["input"] == {**taken, "integers": True}
    screen = shared_screen(digits.root)
    standing = description["source"]["standing"]
    finalist = next(one for one in screen.finalists if one.trial == done.trial)
    assert (standing["code"], standing["deployed"]) == (finalist.standing, finalist.used.standing)
    assert standing["seeds"] == screen.answers[0].seeds == 2 and "| val_nll | the best |" in card


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"posthoc": "vector"}, "did not measure the post-hoc method 'vector'"),
        ({"posthoc": "isotonic"}, "isotonic cannot be part of a torch program"),
        ({"trial": "c99999"}, "has no evaluated trial 'c99999'"),
        ({"replicate": "7"}, "has no replicate '7'"),
        ({"trial": "worst"}, "are gone"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_sentence_and_nothing_is_written(digits, tmp_path, asked, said):
    if asked.get("trial") == "worst":
        kept = {path.name for path in digits.checkpoints.iterdir()}
        asked = {"trial": ({"c00000", "c00001"} - kept).pop()}
    with pytest.raises(sweeper.SweeperError, match=said):
        sweeper.export(digits.name, tmp_path / "model", output=digits.root.parent, **asked)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("which", "replicate"),
    [
        pytest.param("digits", "0", marks=pytest.mark.integration),
        pytest.param("own", "1", marks=pytest.mark.slow),
        pytest.param("own", "all", marks=pytest.mark.slow),
    ],
)
def test_weights_that_are_gone_are_trained_again_bit_for_bit(which, replicate, request, tmp_path):
    """A lane of a network with batch norm, and replicates with processes of their own."""
    paths = request.getfixturevalue(which)
    kept = {path.name for path in paths.checkpoints.iterdir()}
    (lost,) = {"c00000", "c00001"} - kept
    lines: list[str] = []
    done = sweeper.export(
        paths.name, tmp_path / "model", trial=lost, replicate=replicate, output=paths.root.parent,
        retrain=True, say=lines.append,
    )  # fmt: skip
    assert done.again == 0.0, "logits differ from those that the sweep stored"
    assert "trained again, logits equal the sweep's bit for bit" in str(done)
    assert lines[-1].startswith(lost) and lines[-1].endswith("epoch 2 of 2")
    assert done.difference < 1e-5 and done.description["source"]["trained_again"] == {"largest_logit_difference": 0.0}
    assert {path.name for path in paths.checkpoints.iterdir()} == kept, "the sweep stays as it was"


def test_a_folder_that_exists_stays_as_it_is(digits, exported):
    assert "probabilities of the 359 test samples equal the sweep's within" in str(exported)
    before = {path: path.read_bytes() for path in exported.folder.rglob("*") if path.is_file()}
    arguments = ("export", digits.name, "--output", digits.root.parent, "--to", "model")
    again = in_process(*arguments, cwd=exported.folder.parent)
    assert again.returncode == 2 and again.stderr.startswith("error: model exists already\n")
    assert {path: path.read_bytes() for path in exported.folder.rglob("*") if path.is_file()} == before


def test_a_full_disk_leaves_nothing(digits, tmp_path):
    """The limit on a file's size stands for the disk. Python ignores its signal, so writes fail with EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(sweeper.SweeperError, match="cannot be written"):
            sweeper.export(digits.name, tmp_path / "model", output=digits.root.parent)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not any(tmp_path.iterdir())


def test_a_damaged_checkpoint_is_called_damaged_and_stays(digits, tmp_path):
    shutil.copytree(digits.root, tmp_path / "damaged", symlinks=True)
    (checkpoint,) = (tmp_path / "damaged" / "checkpoints").rglob("e*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    for replicate in (None, "1", "all"):
        with pytest.raises(sweeper.SweeperError, match="damaged") as refused:
            sweeper.export("damaged", tmp_path / "model", replicate=replicate, output=tmp_path)
        assert str(checkpoint) in refused.value.message and "--retrain" in refused.value.remedy
    assert checkpoint.exists() and not (tmp_path / "model").exists()


def test_weights_that_are_not_those_of_the_predictions_are_refused(digits, tmp_path):
    shutil.copytree(digits.root, tmp_path / "changed", symlinks=True)
    (checkpoint,) = (tmp_path / "changed" / "checkpoints").rglob("e*.pt")
    state = torch.load(checkpoint, weights_only=True)
    for saved in state["replicates"]:
        for weights in (saved["model"], saved["kept"]):
            for value in weights.values():
                value.mul_(0)
    torch.save(state, checkpoint)
    with pytest.raises(sweeper.SweeperError, match="differ from the sweep's"):
        sweeper.export("changed", tmp_path / "model", output=tmp_path)
    assert not (tmp_path / "model").exists()


def test_a_method_that_validation_data_do_not_determine_is_not_exported_silently(tmp_path):
    posthoc = {"method": "temperature", "parameters": {"temperature": 0.3, "at_bound": 1.0}}
    done = Exported(tmp_path, "c00000", [0], "temperature", 0.0, 36, {"posthoc": posthoc})
    assert done.at_bound
    assert "warning: validation data do not determine temperature" in str(done)
    assert "export with --posthoc none" in str(done)
    sure = replace(done, description={"posthoc": {**posthoc, "parameters": {"at_bound": 0.0}}})
    assert not sure.at_bound and "warning" not in str(sure)


def test_networks_that_agree_in_being_wrong_keep_the_size_of_their_error():
    sure = np.array([[0.0, 2000.0], [0.0, 1.0]])
    assert np.allclose(joint_logits([sure, sure]), log_softmax64(sure), rtol=1e-12)
    chosen = SimpleNamespace(
        networks=[SimpleNamespace(stored=StoredPredictions("c0", 0, 1, {"test": sure}, {"test": np.array([0, 1])}))],
        sweep=SimpleNamespace(spec=SimpleNamespace(evaluation=SimpleNamespace(bins=2))),
    )
    probabilities, metrics = _reference(chosen, None, "test")
    assert probabilities[0, 0] == 0.0 and metrics["nll"] == pytest.approx((2000 + np.log1p(np.exp(-1))) / 2)
