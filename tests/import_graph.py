"""Who imports whom, read from the sources: every import counts, those inside functions too.

What type checkers alone see is left out. `python -m tests.import_graph` draws the folders into CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = ("sweeper", "trainables", "search_spaces")
FILES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))
BEGIN, END = "<!-- the graph of folders: make graph -->\n", "<!-- end of the graph -->\n"


def module_name(path: Path, root: Path = ROOT) -> str:
    """Return the dotted name of a file; a package's is that of its folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_name(path: Path, root: Path = ROOT) -> str:
    """Return the dotted name of the folder a file lies in."""
    return ".".join(path.relative_to(root).parts[:-1])


@functools.cache  # a dozen tests ask for each of 340 files
def imported(path: Path, *, in_functions: bool = True) -> list[tuple[str, str | None]]:
    """Return what a file imports as (module, name taken from it); what only type checkers see is left out."""
    waiting, found = list(ast.parse(path.read_text()).body), []
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) and not in_functions:
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [(part.value, None) for part in node.args[:1] if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".discover"):
            found += [(module_name(other), None) for other in path.parent.glob("*.py") if other != path]
        waiting += ast.iter_child_nodes(node)
    return found


def packages(path: Path, *, in_functions: bool = True) -> set[str]:
    """Return the top-level packages that a file imports."""
    return {module.partition(".")[0] for module, _ in imported(path, in_functions=in_functions)}


def imported_modules(path: Path, known: Iterable[str]) -> set[str]:
    """Return those of the `known` modules that a file imports, by themselves or a name of theirs."""
    modules = set(known)
    both = ((module, f"{module}.{name}") for module, name in imported(path))
    return {whole if whole in modules else module for module, whole in both} & modules


def folder_graph(files: list[Path], root: Path = ROOT) -> dict[str, set[str]]:
    """Return folder → the folders of ours that its files import from."""
    folders = {module_name(path, root): folder_name(path, root) for path in files}
    graph: dict[str, set[str]] = defaultdict(set)
    for path in files:
        here = folder_name(path, root)
        graph[here] |= {folders[module] for module in imported_modules(path, folders)} - {here}
    return graph


def file_graph(files: list[Path], root: Path = ROOT) -> dict[str, set[str]]:
    """Return module → the modules of ours that it imports; of a package, those its `__init__` imports."""
    known = {module_name(path, root) for path in files}
    return {module_name(path, root): imported_modules(path, known) for path in files}


def cycle_in(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the folders or files of one cycle, the first again at the end; nothing where there is none."""
    done: set[str] = set()

    def visit(folder: str, path: list[str]) -> list[str]:
        if folder in path:
            return [*path[path.index(folder) :], folder]
        if folder in done:
            return []
        for other in sorted(graph.get(folder, ())):
            if found := visit(other, [*path, folder]):
                return found
        done.add(folder)
        return []

    return next((found for folder in sorted(graph) if (found := visit(folder, []))), [])


def collapsed(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph with every stage drawn as one node; a stage that would close a cycle keeps its sub-folders."""
    whole: set[str] = set()
    while True:
        names = {folder: folder if (top := ".".join(folder.split(".")[:2])) in whole else top for folder in graph}
        small: dict[str, set[str]] = defaultdict(set)
        for folder, others in graph.items():
            small[names[folder]] |= {names[other] for other in others if other in names} - {names[folder]}
        if not (cycle := cycle_in(small)):
            return small
        parted = {node for node in cycle if node not in whole and any(f.startswith(f"{node}.") for f in graph)}
        assert parted, f"the folders themselves have a cycle: {' → '.join(cycle)}"
        whole |= parted


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph without the arrows that longer ways make superfluous; folders of one cycle keep theirs."""

    def reach(folder: str, without: str | None = None, seen: frozenset[str] = frozenset()) -> set[str]:
        found: set[str] = set()
        waiting = [other for other in graph.get(folder, ()) if other != without]
        while waiting:
            if (other := waiting.pop()) not in found:
                found.add(other)
                waiting += graph.get(other, ())
        return found

    return {
        folder: {other for other in others if other not in reach(folder, without=other)}
        for folder, others in graph.items()
    }


def drawing() -> str:
    """Return the graph of folders as a Mermaid flowchart: an arrow means that a folder imports from another."""
    graph = folder_graph([path for path in FILES if path.relative_to(ROOT).parts[0] in OURS[:2]])
    graph = reduced(collapsed({folder: others for folder, others in graph.items() if "." in folder}))
    lines = ["```mermaid", "flowchart TD"]
    for package in OURS[:2]:
        members = sorted(folder for folder in graph if folder.startswith(f"{package}."))
        lines += [
            f"  subgraph {package}",
            *(f"    {folder}[{folder.partition('.')[2]}]" for folder in members),
            "  end",
        ]
    for folder in sorted(graph):
        lines += [f"  {folder} --> {other}" for other in sorted(graph[folder])]
    return "\n".join([*lines, "```"]) + "\n"


def drawn_into(text: str) -> str:
    """Return the text of CONTRIBUTING.md with the drawing between its marks."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + drawing() + END + rest.partition(END)[2]


if __name__ == "__main__":
    place = ROOT / "CONTRIBUTING.md"
    place.write_text(drawn_into(place.read_text("utf-8")), "utf-8")
