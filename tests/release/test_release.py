"""What a release says of itself agrees, and what GitHub reads of the project is what GitHub takes."""

import json
import re
from pathlib import Path

import check_jsonschema
import jsonschema
import pytest
import yaml

from tests.release.check_release import source_faults
from tests.release.distribution import ROOT

SCHEMAS = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
READ_BY_GITHUB = {
    **dict.fromkeys(sorted((ROOT / ".github/workflows").glob("*.yml")), "github-workflows"),
    ROOT / ".github/ISSUE_TEMPLATE/bug.yml": "github-issue-forms",
    ROOT / ".github/ISSUE_TEMPLATE/idea.yml": "github-issue-forms",
    ROOT / ".github/ISSUE_TEMPLATE/config.yml": "github-issue-config",
    ROOT / "CITATION.cff": "citation-file-format",
}
WORKFLOWS = [path for path, schema in READ_BY_GITHUB.items() if schema == "github-workflows"]


def test_the_sources_agree_on_the_version() -> None:
    assert list(source_faults()) == []


@pytest.mark.parametrize("path", READ_BY_GITHUB, ids=lambda path: path.name)
def test_github_would_take_it(path: Path) -> None:
    # YAML 1.1, which PyYAML reads, has a truth value in `on:`; the schemas know no dates
    text = re.sub(r"^on:", '"on":', path.read_text("utf-8"), flags=re.MULTILINE)
    document = json.loads(json.dumps(yaml.safe_load(text), default=str))
    schema = json.loads((SCHEMAS / f"{READ_BY_GITHUB[path]}.json").read_text("utf-8"))
    jsonschema.validators.validator_for(schema)(schema).validate(document)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_make_what_can_be_made_with_few_rights(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}, "a job that needs more says so itself"
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for line in commands:
        for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", line):
            if "apt-get" not in line:
                assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in words.split()), line


def test_every_tested_python_is_a_classifier() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))
    tested = {"3.11", *workflow["jobs"]["default"]["strategy"]["matrix"]["python"]}
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert tested == set(named)
