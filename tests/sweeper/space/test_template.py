"""A search space from flags: valid, commented, and refused with every fault."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sweeper.core.errors import SweeperError
from sweeper.space.catalogue import template
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec


def test_the_usual_template_is_a_valid_search_space(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(template())
    spec = load_spec(file)
    assert {c["loss"]["name"] for c in configurations(spec)} == {"cross_entropy", "focal"}
    assert "gamma: " in file.read_text() and "# " in file.read_text()


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
