"""What `sweeper spaces` shows is complete and readable; search spaces from flags are valid."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from search_spaces import packaged_files
from sweeper.core.errors import SweeperError
from sweeper.space.catalogue import KINDS, components_table, list_components, list_spaces, template, value_text
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec


def test_every_shipped_file_is_listed_with_its_question():
    entries = list_spaces()
    assert list(entries) == sorted(packaged_files())
    assert all(header["question"] and header["cost"] and header["command"] for header in entries.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_component_that_exists_is_listed_with_its_ranges_as_they_are(kind):
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(components_table(kind))
    text, components = console.export_text(), list_components(kind)
    assert components and all(component.name in text for component in components)
    assert all(value_text(h.default) for component in components for h in component.hyperparameters)
    assert kind != "datasets" or "required" in text
    assert kind != "losses" or ("(0, 1]" in text and "[0, inf)" in text), "square brackets are not markup"


def test_a_question_becomes_a_grid(tmp_path: Path) -> None:
    values = {"loss.gamma": ["0.5", "1", "2", "5"], "dataset.label_noise": ["0", "0.1", "0.2"]}
    asked = template(architectures=("mlp", "resnet8"), values=values, objective="val_ece", epochs=9, replicates=3)
    (tmp_path / "q.yaml").write_text(asked)
    spec = load_spec(tmp_path / "q.yaml")
    drawn = configurations(spec)
    points = {(c["loss"].get("gamma", 0.0), c["architecture"]["name"], c["dataset"]["label_noise"]) for c in drawn}
    assert len(points) == 5 * 2 * 3 == len(drawn)
    assert (spec.objective.metric, spec.scheduler.max_epochs, spec.replicates.count) == ("val_ece", 9, 3)


@pytest.mark.parametrize("key", ["lr", "momentum", "schedule"])
def test_a_setting_of_the_usual_recipe_can_be_asked_about(tmp_path: Path, key: str) -> None:
    tried = {"lr": ["0.01", "0.1"], "momentum": ["0.5", "0.9"], "schedule": ["constant", "cosine"]}[key]
    (tmp_path / "q.yaml").write_text(template(values={f"optimizer.{key}": tried}))
    found = [configuration["optimizer"][key] for configuration in configurations(load_spec(tmp_path / "q.yaml"))]
    assert sorted({str(value) for value in found}) == sorted(str(yaml.safe_load(value)) for value in tried)


def test_every_unknown_name_is_said_at_once() -> None:
    with pytest.raises(SweeperError) as raised:
        template("digit", losses=["focl"], architectures=["mlp"], values={"loss.gama": ["1"]})
    text = str(raised.value)
    assert "'digit'" in text and "'focl'" in text and "'loss.gama'" in text
