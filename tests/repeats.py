"""Repeated code, six lines and more, in two places of the product: `make check-repeats` fails where there is some.

pylint compares the lines. It is given files without imports and signatures, which functions of one protocol share. Its
own way of leaving these out infers the type of every name, and takes three minutes instead of three seconds.
"""

import ast
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from pylint.checkers.symilar import Symilar

ROOT = Path(__file__).parent.parent
PLACES = ("sweeper", "trainables", "search_spaces", "deploy/images")
FEWEST = 6


def compared(source: str) -> str:
    """Return a file with an empty line for each line of an import or a signature.

    Example:
        >>> compared("import ast\\ndef f(\\n    x,\\n):\\n    return x")
        '\\n\\n\\n\\n    return x'
    """
    lines = source.splitlines()
    for first, last in _left_out(ast.parse(source)):
        lines[first - 1 : last] = [""] * (last - first + 1)
    return "\n".join(lines)


def _left_out(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each import and signature."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, node.end_lineno or node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, max(node.lineno, node.body[0].lineno - 1)


def repeats(sources: dict[str, str]) -> list[str]:
    """Return each repeat of `FEWEST` lines or more: the places, and the lines."""
    search = Symilar(FEWEST - 1, ignore_comments=True, ignore_docstrings=True)  # it reports what is longer
    for name, source in sources.items():
        search.append_stream(name, io.StringIO(compared(source)))
    found = []
    for _, places in search._compute_sims():  # pylint 4.1 has no public function that returns and does not print them
        lineset, first, last = sorted(places, key=lambda place: (place[0].name, place[1]))[0]
        lines = [line.rstrip() for line in lineset.real_lines[first:last]]
        where = [f"{place.name}:{begin + 1}" for place, begin, _ in sorted(places, key=lambda p: (p[0].name, p[1]))]
        found.append("\n".join([" = ".join(where), *lines]))
    return sorted(found)


def main() -> None:
    """Print every repeat of the product; the exit status is 1 if there is one."""
    paths = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py"))
    found = repeats({str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths})
    print("\n\n".join([*found, f"{len(found)} repeats in {len(paths)} files"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
