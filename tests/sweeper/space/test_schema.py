"""The JSON schema takes what the checks take, and refuses hyperparameters that they refuse."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from search_spaces import packaged_files
from sweeper.core.errors import InvalidSearchSpace
from sweeper.space.catalogue import installed_registries
from sweeper.space.file import read_document
from sweeper.space.loading import build_spec
from sweeper.space.schema import json_schema

VALUES: dict[str, Any] = {
    "dataset": "digits",
    "scheduler": {"max_epochs": 2},
    "samples": 1,
    "space": {"loss": "cross_entropy", "architecture": {"name": "mlp"}, "optimizer": {"name": "sgd", "lr": 0.1}},
}
#: Numbers at and about the ends of ranges, and values of other types.
CANDIDATES = [-1, 0, 0.25, 0.5, 1, 1.5, 2, 5, 1000, True, "text", "msp", [0.5], ["a"], {"name": "x"}]


@pytest.fixture(scope="module")
def registries() -> Any:
    return installed_registries()


@pytest.fixture(scope="module")
def valid(registries: Any) -> Draft7Validator:
    schema = json.loads(json.dumps(json_schema(registries), default=list))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


@pytest.mark.parametrize("file", packaged_files().values(), ids=lambda file: Path(str(file)).stem)
def test_every_shipped_file_is_one(file: Path, valid: Draft7Validator) -> None:
    assert [error.message for error in valid.iter_errors(read_document(file).values)] == []


@pytest.mark.parametrize("part", ["loss", "architecture", "optimizer"])
def test_hyperparameters_have_the_values_they_allow(part: str, registries: Any, valid: Draft7Validator) -> None:
    rng = random.Random(0)
    for component in registries.space[part].built_in():
        for described in component.hyperparameters:
            for value in rng.sample(CANDIDATES, 6):
                values = copy.deepcopy(VALUES)
                given = {h.name: _sound(h) for h in component.hyperparameters if h.required}
                values["space"][part] = {"name": component.name, **given, described.name: value}
                allowed = described.fault(value) is None
                assert valid.is_valid(values) == allowed, (component.name, described.name, value)


def _sound(described: Any) -> Any:
    return next(value for value in CANDIDATES if described.fault(value) is None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("space", "loss"), {"name": "focal", "gama": 2}),
        (("space", "loss"), "focl"),
        (("space", "loss"), {"one_of": [{"name": "focal", "gamma": -1}]}),
        (("space", "loss"), {"name": "focal", "gamma": {"unifrom": [0, 1]}}),
        (("space", "architectur"), "mlp"),
        (("scheduler",), {"name": "asha", "max_epochs": "many"}),
        (("dataset",), {"name": "digitss"}),
        (("evaluation",), {"posthoc": ["temprature"]}),
        (("evaluation",), {"curvature": {"lanczos_stepps": 3}}),
        (("replicates",), {"cuont": 2}),
        (("sed",), 0),
    ],
)
def test_a_mistake_is_refused_by_both(path: tuple[str, ...], value: Any, valid: Draft7Validator) -> None:
    values = copy.deepcopy(VALUES)
    assert valid.is_valid(values)
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert not valid.is_valid(values)
    with pytest.raises(InvalidSearchSpace):
        build_spec(values)
