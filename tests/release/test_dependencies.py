"""Whatever an installation brings is pinned at a tested version and named in the notices; each need has its reason."""

import re
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.distribution import ROOT
from tests.release.notices import needed

PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
}
NOTED = {
    canonicalize_name(name): version.partition("+")[0]
    for name, version in re.findall(
        r"^\| ([\w.-]+) \| (\S+) \|", (ROOT / "THIRD_PARTY_NOTICES.md").read_text("utf-8"), re.MULTILINE
    )
}
UNPINNED = {"setuptools"}
"""pip leaves it out of what it freezes; torch names a range."""


def test_everything_that_is_needed_is_pinned_at_what_is_installed() -> None:
    wanted = needed()
    assert len(wanted) > 100
    for name in wanted - UNPINNED:
        assert PINS.get(name) == metadata.version(name).partition("+")[0], name


def test_everything_that_is_needed_is_in_the_notices_at_its_version() -> None:
    wanted = needed() - UNPINNED
    assert {name for name in wanted if NOTED.get(name) != PINS[name]} == set(), "run `make notices`"
    assert set(NOTED) - needed() - {"package"} == set(), "run `make notices`"


def test_every_requirement_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    lines = re.findall(r'^    "([^"]+)",?(.*)$', listed, re.MULTILINE)
    assert len(lines) > 40
    for requirement, rest in lines:
        assert Requirement(requirement).name and rest.strip().startswith("#") and len(rest.strip()) > 5, requirement
