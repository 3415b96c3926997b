"""The search for repeated code finds what is planted, and nothing that a protocol or an import makes alike."""

from tests.repeats import FEWEST, compared, repeats


def _lines(count: int) -> str:
    return "".join(f"    total += values[{k}] * weights[{k}]\n" for k in range(count))


def _function(name: str, count: int) -> str:
    return f"def {name}(values, weights):\n    total = {len(name)}\n{_lines(count)}    return total\n"


def test_a_planted_repeat_is_found_with_its_places() -> None:
    files = {"a.py": "import ast\n" + _function("one", FEWEST), "b.py": _function("three", FEWEST)}
    (found,) = repeats(files)
    places = found.splitlines()[0].split(" = ")
    assert places == ["a.py:4", "b.py:3"] and "values[0]" in found


def test_fewer_lines_are_no_repeat() -> None:
    assert repeats({"a.py": _function("one", FEWEST - 2), "b.py": _function("three", FEWEST - 2)}) == []


def test_imports_signatures_docstrings_and_comments_may_be_alike() -> None:
    imports = "from math import (\n" + "".join(f"    name{k},\n" for k in range(9)) + ")\n"
    signature = "def f(\n" + "".join(f"    name{k},\n" for k in range(9)) + "):\n"
    body = '    """' + "Say\n    the\n    same\n    in\n    many\n    lines.\n" + '    """\n' + "    # why\n" * 9
    files = {name: f"{imports}\n\n{signature}{body}    return {name!r}\n" for name in ("a", "b")}
    assert repeats(files) == []


def test_every_line_keeps_its_number() -> None:
    source = "import ast\n" + _function("one", 3) + "from b import (\n    c,\n)\n"
    kept = compared(source).splitlines()
    assert [line for line in kept if line.strip()] == [
        f"    total = {len('one')}",
        *_lines(3).splitlines(),
        "    return total",
    ]
    assert kept[2] == "    total = 3"
