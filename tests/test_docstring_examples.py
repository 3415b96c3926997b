"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import shutil
from pathlib import Path

import pytest

import sweeper

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("sweeper", "trainables", "search_spaces")
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text()
)


EXAMPLE = """\
dataset: {name: digits}
scheduler: {name: none, max_epochs: 1}
searcher: grid
replicates: 2
space:
  loss: {choice: [{name: cross_entropy}, {name: focal, gamma: 2.0}]}
  architecture: mlp
  optimizer: {name: sgd, lr: 0.1}
evaluation: {bootstrap: 0, curvature: false, posthoc: [temperature]}
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the sweep that examples read as `example`: two losses, two seeds, one epoch; seconds."""
    folder = tmp_path_factory.mktemp("example")
    (folder / "example.yaml").write_text(EXAMPLE)
    done = sweeper.run(
        folder / "example.yaml", name="example", output=folder / "results", mlflow=False, executor="local"
    )
    assert done.complete
    return folder


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_print_what_they_say(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    module = importlib.import_module(name)
    # An example may write files, so each module that reads sweeps gets its own copy of the sweep.
    monkeypatch.chdir(tmp_path)
    if name.startswith(("sweeper.api.", "sweeper.results.results")):
        shutil.copytree(request.getfixturevalue("example"), tmp_path, dirs_exist_ok=True, symlinks=True)

    failed, tried = doctest.testmod(
        module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
    )

    assert tried
    assert not failed, capsys.readouterr().out
