"""Reading a search space file: bytes → plain values, with the line of every key, and `--set` overrides.

Any bytes give either a mapping or faults, never another exception. Only plain YAML is read (null, booleans, numbers,
text, lists, mappings with text keys): no tags, no merge keys, at most `MAXIMUM_BYTES` bytes, `MAXIMUM_VALUES` values
after aliases are written out and `MAXIMUM_DEPTH` levels, so a file cannot exhaust memory, the stack or patience. A
`sweep.yaml` in a results folder, which somebody else may have sent, is read here as well (`parse_written`).

`--set path=value` changes one place of a file before it is checked. A path is written as faults write it,
`space.loss.one_of[2].coverage`; the value is YAML. Short forms are written out when a path goes through them:
`--set replicates.packing=fused` makes `replicates: 2` into `{count: 2, packing: fused}`. Whether the key exists is the
later checks' business, which name the nearest valid one.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from search_spaces import packaged_files
from sweeper.core.errors import Fault
from sweeper.core.json_types import Plain, join_path
from trainables.registry.names import nearest

MAXIMUM_BYTES = 1_000_000
MAXIMUM_VALUES = 50_000
MAXIMUM_DEPTH = 40
#: A resolved search space may be so many times as large: every default of every branch is written out.
WRITTEN_FACTOR = 4

#: What a scalar at these paths is short for; below `space`, `sweeper.space.components` writes them out.
SHORT_FORMS = {
    "dataset": "name",
    "objective": "metric",
    "keep": "best",
    "scheduler": "name",
    "searcher": "name",
    "replicates": "count",
    "space.loss": "name",
    "space.architecture": "name",
    "space.optimizer": "name",
}

_INTEGER_LIMIT = 2**63  # what a table column holds

#: What a file may be instead of a mapping.
_TYPE_NAMES: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "text", list: "list"}

_TAG = "tag:yaml.org,2002:"


class _LimitedLoader(yaml.SafeLoader):
    """SafeLoader with limits. Its plain scalars are YAML 1.1's, as PyYAML writes a resolved search space."""

    most_values = WRITTEN_FACTOR * MAXIMUM_VALUES
    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose as PyYAML does, refusing what is too deep or too long before the stack or patience ends."""
        self.depth += 1
        self.nodes += 1
        if self.depth > MAXIMUM_DEPTH or self.nodes > self.most_values:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it so
            deep = f"nested more than {MAXIMUM_DEPTH} levels deep"
            problem = deep if self.depth > MAXIMUM_DEPTH else f"more than {self.most_values} keys and values"
            raise yaml.MarkedYAMLError(None, None, problem, mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _PlainLoader(_LimitedLoader):
    """The same with YAML 1.2's plain scalars: `1e-3` is a number; `no`, `on`, `12:30` and dates are text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own hook
    most_values = MAXIMUM_VALUES


_PlainLoader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_PlainLoader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_PlainLoader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?[0-9][0-9_]*$"), list("-+0123456789"))
_PlainLoader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^(?:[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)


@dataclass
class Document:
    """A search space file as plain values.

    Attributes:
        values: the file's mapping; empty when it could not be read.
        lines: path → line of the file (from 1), e.g. `space.loss` → 14.
        overridden: paths that `--set` gave a value; they and what is below have no line.
        faults: what is wrong with the text itself: unreadable, not YAML, duplicate keys, a bad override.
    """

    values: dict[str, Plain] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: str) -> int | None:
        """Return the line of `path`, or of the nearest part of the file that encloses it."""
        enclosing = [path]
        while path := path[: max(path.rfind("."), path.rfind("["), 0)]:
            enclosing.append(path)
        if self.overridden.intersection(enclosing):
            return None
        return next((self.lines[each] for each in enclosing if each and each in self.lines), None)


def read_document(path: Path) -> Document:
    """Read the file at `path`; whatever is wrong with it becomes a fault of the document."""
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is not a regular file, and reading a pipe may block forever")
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        near = nearest(path.stem, packaged_files()) if isinstance(error, FileNotFoundError) else ""
        remedy = f"give the path of a YAML file, or a name that `sweeper spaces` lists{near}"
        return Document(faults=[Fault("", f"cannot read {str(path)!r}: {reason}", remedy)])
    return parse_document(content)


def parse_document(content: bytes) -> Document:
    """Parse a file's bytes as one YAML mapping."""
    if len(content) > MAXIMUM_BYTES:
        return Document(faults=[Fault("", f"larger than {MAXIMUM_BYTES} bytes", "a search space is a short YAML file")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Document(faults=[Fault("", f"not UTF-8 text (byte {error.start})", "a search space is a YAML file")])
    document = Document()
    value = _parse_yaml(text, "", document)
    if document.faults:
        return document
    if not isinstance(value, dict):
        found = "empty" if value is None else f"a {_TYPE_NAMES[type(value)]}"
        keys = "dataset, objective, scheduler, samples, space …"
        document.faults.append(Fault("", f"the file is {found}, not a mapping", f"write keys such as {keys}"))
        return document
    document.values = value
    return document


def parse_written(content: bytes) -> dict[str, Plain]:
    """Return the mapping that a file written by a sweep holds, `sweep.yaml`. Raises ValueError for any other bytes."""
    if len(content) > WRITTEN_FACTOR * MAXIMUM_BYTES:
        raise ValueError(f"it is larger than {WRITTEN_FACTOR * MAXIMUM_BYTES} bytes")
    document = Document()
    value = _parse_yaml(content.decode("utf-8"), "", document, _LimitedLoader)
    if document.faults:
        raise ValueError(str(document.faults[0]).splitlines()[0])
    if not isinstance(value, dict):
        raise ValueError("it is not a mapping")
    return value


def _parse_yaml(text: str, path: str, document: Document, kind: type[_LimitedLoader] = _PlainLoader) -> Plain:
    """Return the values of one YAML text; faults and lines go to `document` (lines only for a whole file)."""
    loader: _LimitedLoader | None = None
    try:
        loader = kind(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        document.faults.append(Fault(path, f"not valid YAML: {error.problem or error.context}", line=line))
        return None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        document.faults.append(Fault(path, f"not valid YAML: {str(error).splitlines()[0]}"))
        return None
    finally:
        if loader is not None:
            loader.dispose()
    return None if node is None else _Builder(document, kind.most_values).build(node, path)


class _Builder:
    """Turns PyYAML's nodes into values, noting lines, duplicate keys and runaway aliases."""

    def __init__(self, document: Document, most_values: int) -> None:
        self.document = document
        self.most = self.remaining = most_values
        self.open: set[int] = set()

    def build(self, node: yaml.Node, path: str) -> Plain:
        line = node.start_mark.line + 1
        self.document.lines.setdefault(path, line)
        self.remaining -= 1
        if self.remaining <= 0:
            if self.remaining == 0:
                rule = f"more than {self.most} values after expanding aliases"
                self._fault(path, rule, "a search space is a short file", line)
            return None
        if id(node) in self.open:
            self._fault(path, "an alias that contains itself", "write the values out", line)
            return None
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path, line)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._fault(path, f"the tag {node.tag!r} is not allowed", "remove the tag", line)
            return None
        self.open.add(id(node))
        value: Plain
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path)
        else:
            value = [self.build(member, join_path(path, index)) for index, member in enumerate(node.value)]
        self.open.discard(id(node))
        return value

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Plain]:
        values: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(path, "a key that is a list or mapping", "keys are plain text", line)
                continue
            key = key_node.value
            if key in values:
                first = self.document.lines.get(join_path(path, key))
                self._fault(join_path(path, key), f"given twice (first on line {first})", "keep one of the two", line)
                continue
            self.document.lines.setdefault(join_path(path, key), line)
            values[key] = self.build(value_node, join_path(path, key))
        return values

    def _scalar(self, node: yaml.ScalarNode, path: str, line: int) -> Plain:
        kind = node.tag.removeprefix(_TAG)
        text: str = node.value
        try:
            if kind == "str":
                return text
            if kind == "null":
                return None
            if kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            if kind == "int":
                number = int(text)
                if abs(number) >= _INTEGER_LIMIT:
                    raise ValueError(text)
                return number
            if kind == "float":
                return float(text.replace(".inf", "inf").replace(".nan", "nan"))
        except (ValueError, KeyError):
            shown = text if len(text) <= 40 else f"{text[:37]}..."
            self._fault(path, f"{shown!r} is not a {kind} of at most 64 bits", "", line)
            return None
        self._fault(path, f"the tag {node.tag!r} is not allowed", "remove the tag", line)
        return None

    def _fault(self, path: str, rule: str, remedy: str, line: int) -> None:
        self.document.faults.append(Fault(path, rule, remedy, line))


_PATH = re.compile(r"[^.\[\]]+|\[\d+\]")


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Change `document` as the overrides say, in their order; each one that cannot be followed becomes a fault."""
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = _split_path(path.strip())
        if not equals or keys is None:
            rule = f"--set {override!r} is not of the form key=value"
            document.faults.append(Fault("", rule, "write e.g. --set scheduler.max_epochs=9"))
            continue
        read = Document()
        value = _parse_yaml(text, path.strip(), read)
        faults = [Fault(path.strip(), f"--set: {fault.rule}", fault.remedy) for fault in read.faults]
        faults = faults or _set(document.values, keys, "", value)
        document.faults += faults
        if not faults:
            document.overridden.add(path.strip())


def _split_path(path: str) -> list[str | int] | None:
    """Return the keys of a path such as `a.b[2].c`, or `None` when it is not one."""
    parts = _PATH.findall(path)
    keys: list[str | int] = [int(part[1:-1]) if part.startswith("[") else part for part in parts]
    if not keys or isinstance(keys[0], int):
        return None
    return keys if reduce(join_path, keys, "") == path else None


def _set(here: Plain, keys: Sequence[str | int], path: str, value: Plain) -> list[Fault]:
    """Set the value at `keys` below `here`, the mapping at `path`, creating mappings; return why that cannot be."""
    key, *below = keys
    place = join_path(path, key)
    if isinstance(key, int) and (not isinstance(here, list) or key >= len(here)):
        size = f"a list of {len(here)}" if isinstance(here, list) else "not a list"
        return [Fault(place, f"--set: {path} is {size}", "indices count from 0")]
    if isinstance(key, str) and not isinstance(here, dict):
        known = "a list; use [index]" if isinstance(here, list) else f"{here!r}, not a mapping"
        return [Fault(place, f"--set: {path} is {known}")]
    level: Any = here
    if not below:
        level[key] = value
        return []
    if isinstance(key, str):
        inner = {} if level.get(key) is None else level[key]
        short = place in SHORT_FORMS and not isinstance(inner, (dict, list))
        level[key] = {SHORT_FORMS[place]: inner} if short else inner
    return _set(level[key], below, place, value)
