"""Every module has a test at the same path below `tests/`, or a line in `covered_elsewhere.txt` that names one.

A package's `__init__` is part of what its modules' tests import, and needs neither.
"""

import functools
from pathlib import Path

import pytest

from tests.import_graph import FILES, ROOT, imported, imported_modules, module_name

LINES = [
    tuple(part.strip() for part in line.split(":"))
    for line in (ROOT / "tests" / "covered_elsewhere.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]
MODULES = {path.relative_to(ROOT).as_posix(): module_name(path) for path in FILES if path.name != "__init__.py"}
PLACES = {module_name(path): path for path in [*FILES, *(ROOT / "tests").rglob("*.py")]}
STEPS = 3


def mirrored(module: str) -> Path:
    """Return where a module's test lies if it has one of its own."""
    path = Path(module)
    return ROOT / "tests" / path.parent / f"test_{path.name}"


@functools.cache
def next_to(name: str) -> frozenset[str]:
    """Return the modules that a module imports; who starts commands imports the command line."""
    found = imported_modules(PLACES[name], PLACES)
    if name.startswith("tests.") and any(module == "subprocess" for module, _ in imported(PLACES[name])):
        found |= {place for place in PLACES if place.startswith("sweeper.api.")} | {"sweeper.__main__"}
    return frozenset(found)


def reached(test: str) -> set[str]:
    """Return what a test and its helpers import, and what is imported from there in three steps."""
    helpers, waiting = set(), [module_name(ROOT / test)]
    while waiting:
        if (name := waiting.pop()) not in helpers:
            helpers.add(name)
            waiting += [other for other in next_to(name) if other.startswith("tests.")]
    found = {other for name in helpers for other in next_to(name)}
    for _ in range(STEPS):
        found |= {other for name in found for other in next_to(name)}
    return found


def test_every_module_has_its_test_or_a_line() -> None:
    named = [module for module, _ in LINES]
    assert len(named) == len(set(named)), "one line a module"
    alone = {module for module in MODULES if not mirrored(module).is_file()}
    assert alone - set(named) == set(), "write their tests at the same path, or say which test covers them"
    assert set(named) - alone == set(), "superfluous: these have a test of their own, or are gone"


@pytest.mark.parametrize(("module", "test"), LINES, ids=[module for module, _ in LINES])
def test_a_line_names_a_test_that_leads_to_the_module(module: str, test: str) -> None:
    assert Path(test).name.startswith("test_") and (ROOT / test).is_file(), test
    if module.startswith("search_spaces/examples/"):
        text = (ROOT / test).read_text("utf-8")
        assert "own_components" in text or Path(module).stem in text, "a search space or a test runs them"
    else:
        assert MODULES[module] in reached(test), f"{test} imports nothing that leads to {module}"
