"""Read a search space file: bytes → plain values, with the line of every key, and `--set` overrides.

Any bytes give either a mapping or faults, never another exception. Only plain YAML is accepted (null, booleans,
numbers, text, lists, mappings with text keys): no tags, no merge keys, at most `MAXIMUM_BYTES` bytes, `MAXIMUM_VALUES`
values after aliases are expanded, and `MAXIMUM_DEPTH` levels, so a file cannot exhaust memory, the stack or time.
`parse_written` reads the `sweep.yaml` of a results folder, which can come from somebody else.

`--set path=value` changes one value of a file before the file is checked. Paths are written as in faults, e.g.
`space.loss.one_of[2].coverage`; the value is YAML. Short forms on the path are expanded. For example,
`--set replicates.packing=lanes` turns `replicates: 2` into `{count: 2, packing: lanes}`. Later checks report unknown
keys, with the nearest valid key. The key `rehearsal` of a file holds such changes too, path → value; `--rehearse`
applies them.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from search_spaces import packaged_files
from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault
from trainables.registry.names import nearest

#: Far above the largest shipped file.
MAXIMUM_BYTES = 1_000_000
MAXIMUM_VALUES = 50_000
#: Python's recursion limit is 1000, and PyYAML takes several frames per level.
MAXIMUM_DEPTH = 40
#: Largest size of a resolved search space relative to a file. It is larger because it contains every default of every
#: branch.
WRITTEN_FACTOR = 4

#: Path → key that a scalar at this path stands for. Below `space`, `sweeper.space.components` expands short forms.
SHORT_FORMS = {"objective": "metric", "keep": "best", "replicates": "count"} | dict.fromkeys(
    ("dataset", "scheduler", "searcher", "space.loss", "space.architecture", "space.optimizer"), "name"
)

_INTEGER_LIMIT = 2**63  # a table column holds int64

#: Names of types for messages.
_TYPE_NAMES: dict[type, str] = {bool: "boolean", int: "number", float: "number", str: "text", list: "list"}

_SCALARS = {"int": "a whole number of at most 64 bits", "float": "a number", "bool": "true or false"}

_TAG = "tag:yaml.org,2002:"


class _LimitedLoader(yaml.CSafeLoader):
    """CSafeLoader with limits and YAML 1.1's plain scalars, which PyYAML writes in a resolved search space."""

    most_values = WRITTEN_FACTOR * MAXIMUM_VALUES
    depth = 0
    nodes = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: object) -> None:
        """Begin a node as PyYAML does, but refuse a file that is too deep or too long."""
        # Limits are checked while composing, so deep nesting or a billion-laughs file fails before it takes memory.
        self.depth += 1
        self.nodes += 1
        if self.depth > MAXIMUM_DEPTH or self.nodes > self.most_values:
            deep = f"nested more than {MAXIMUM_DEPTH} levels deep"
            problem = deep if self.depth > MAXIMUM_DEPTH else f"more than {self.most_values} keys and values"
            raise yaml.MarkedYAMLError(None, None, problem, None if current_node is None else current_node.start_mark)
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        """End a node as PyYAML does."""
        self.depth -= 1
        super().ascend_resolver()


class _PlainLoader(_LimitedLoader):
    """A limited loader with YAML 1.2's plain scalars: `1e-3` is a number; `no`, `on`, `12:30` and dates are text."""

    # YAML 1.1 reads 1e-3 as text and a loss named `no` as False: both are common mistakes in a search space.

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
        values: the file's mapping; empty if it could not be read.
        lines: path → line of the file (from 1), e.g. `space.loss` → 14.
        overridden: paths set by `--set`. They and all paths below them have no line.
        faults: faults of the text itself: unreadable, not YAML, duplicate keys, a bad override.
    """

    values: dict[str, Plain] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    overridden: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)

    def line_of(self, path: str) -> int | None:
        """Return the line of `path`; if it has none, the line of the nearest enclosing part of the file."""
        enclosing = [path]
        while path := path[: max(path.rfind("."), path.rfind("["), 0)]:
            enclosing.append(path)
        if self.overridden.intersection(enclosing):
            return None
        return next((self.lines[place] for place in enclosing if place and place in self.lines), None)


def read_document(path: Path) -> Document:
    """Read the file at `path`; every error becomes a fault of the document.

    Example:
        >>> read_document(Path("no_such_file.yaml")).faults[0].rule
        "cannot read 'no_such_file.yaml': No such file or directory"
    """
    try:
        if not path.is_file() and path.exists() and not path.is_dir():
            raise OSError(errno.EINVAL, "it is not a regular file, and reading a pipe can block forever")
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)  # one byte more tells a file at the limit from a longer one
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        near = nearest(path.stem, packaged_files()) if isinstance(error, FileNotFoundError) else ""
        remedy = f"give the path of a YAML file, or a name that `sweeper spaces` lists{near}"
        return Document(faults=[Fault("", f"cannot read {str(path)!r}: {reason}", remedy)])
    return parse_document(content)


def parse_document(content: bytes) -> Document:
    """Parse a file's bytes as one YAML mapping.

    Example:
        >>> document = parse_document(b"samples: 4")
        >>> document.values, document.line_of("samples")
        ({'samples': 4}, 1)
    """
    if len(content) > MAXIMUM_BYTES:
        return Document(faults=[Fault("", f"larger than {MAXIMUM_BYTES} bytes", "a search space is a short YAML file")])
    try:
        text = content.decode("utf-8-sig")  # Windows editors begin a file with a byte order mark
    except UnicodeDecodeError as error:
        return Document(faults=[Fault("", f"not UTF-8 text (byte {error.start})", "a search space is a YAML file")])
    document = Document()
    value = _parse_yaml(text, "", document)
    if document.faults:
        return document
    if not isinstance(value, dict):
        kind = "empty" if value is None else f"a {_TYPE_NAMES[type(value)]}"
        keys = "dataset, objective, scheduler, samples, space …"
        document.faults.append(Fault("", f"the file is {kind}, not a mapping", f"write keys such as {keys}"))
        return document
    document.values = value
    return document


def parse_written(content: bytes) -> dict[str, Plain]:
    """Parse a `sweep.yaml` that a sweep wrote.

    Raises:
        ValueError: the bytes are anything but one such mapping.
    """
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
    """Parse one YAML text; faults and lines are added to `document`."""
    loader: _LimitedLoader | None = None
    try:
        loader = kind(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        document.faults.append(Fault(path, f"not valid YAML: {error.problem or error.context}", line=line))
        return None
    except (yaml.YAMLError, ValueError) as error:  # UnicodeEncodeError: an argument's bytes were not UTF-8
        document.faults.append(Fault(path, f"not valid YAML: {str(error).splitlines()[0]}"))
        return None
    finally:
        if loader is not None:
            loader.dispose()  # PyYAML's loaders hold reference cycles
    return None if node is None else _Builder(document, kind.most_values).build(node, path)


class _Builder:
    """Turns PyYAML's nodes into values, and records lines, duplicate keys and excessive aliases."""

    # PyYAML's own constructor keeps the last of two equal keys and knows no lines.

    def __init__(self, document: Document, most_values: int) -> None:
        self.document = document
        self.most = self.remaining = most_values
        self.open: set[int] = set()

    def build(self, node: yaml.Node, path: str) -> Plain:
        line = node.start_mark.line + 1
        self.document.lines.setdefault(path, line)
        self.remaining -= 1
        if self.remaining <= 0:
            if self.remaining == 0:  # report it once
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
                self._fault(path, "a key is a list or mapping", "write keys as plain text", line)
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
            self._fault(path, f"{shown!r} is not {_SCALARS[kind]}", "", line)
            return None
        self._fault(path, f"the tag {node.tag!r} is not allowed", "remove the tag", line)
        return None

    def _fault(self, path: str, rule: str, remedy: str, line: int) -> None:
        self.document.faults.append(Fault(path, rule, remedy, line))


_PATH = re.compile(r"[^.\[\]]+|\[\d+\]")


def apply_overrides(document: Document, overrides: Sequence[str]) -> None:
    """Apply overrides to `document` in order. An invalid override becomes a fault.

    Example:
        >>> document = parse_document(b"replicates: 2")
        >>> apply_overrides(document, ["replicates.packing=lanes", "seed=3"])
        >>> document.values
        {'replicates': {'count': 2, 'packing': 'lanes'}, 'seed': 3}
    """
    for override in overrides:
        path, equals, text = override.partition("=")
        path, read = path.strip(), Document()
        if not equals or _split_path(path) is None:
            rule = f"--set {override!r} is not of the form key=value"
            document.faults.append(Fault("", rule, "write e.g. --set scheduler.max_epochs=9"))
            continue
        value = _parse_yaml(text, path, read)
        faults = [Fault(path, fault.rule, fault.remedy) for fault in read.faults] or _change(document, path, value)
        document.faults += [replace(fault, rule=f"--set: {fault.rule}") for fault in faults]
        document.overridden.add(path)


def apply_rehearsal(document: Document) -> None:
    """Apply the changes of the key `rehearsal`, and list them under `rehearsed`. Each invalid change becomes a fault.

    Example:
        >>> document = parse_document(b"{samples: 9, rehearsal: {samples: 2}}")
        >>> apply_rehearsal(document)
        >>> document.values
        {'samples': 2, 'rehearsed': ['samples = 2']}
    """
    changes = document.values.pop("rehearsal", None)
    if not isinstance(changes, dict) or not changes:
        example = "rehearsal: {scheduler.max_epochs: 2, dataset: digits_stand_in}"
        remedy = f"write smaller settings, path: value, e.g. {example}; or run without --rehearse and with --set"
        document.faults.append(Fault("rehearsal", "the file does not say what its rehearsal changes", remedy))
        return
    document.values["rehearsed"] = [f"{path} = {json.dumps(value)}" for path, value in changes.items()]
    for path, value in changes.items():
        faults = _change(document, path, value)
        document.faults += [replace(fault, path=join_path("rehearsal", path)) for fault in faults]
    # A later fault of a changed value is on the line of the change.
    document.lines |= {place.removeprefix("rehearsal."): line for place, line in document.lines.items()}


#: Keys of a file that are no settings of its sweep.
_NO_SETTINGS = ("rehearsal", "rehearsed")


def _change(document: Document, path: str, value: Plain) -> list[Fault]:
    """Set the value at `path`; returns faults."""
    keys = _split_path(path)
    if keys is None or keys[0] in _NO_SETTINGS:
        return [Fault(path, f"{path!r} is not the path of a setting", "write e.g. scheduler.max_epochs")]
    return _set(document.values, keys, "", value)


def _split_path(path: str) -> list[str | int] | None:
    """Return the keys of a path such as `a.b[2].c`, or `None` if it is not a path."""
    parts = _PATH.findall(path)
    keys: list[str | int] = [int(part[1:-1]) if part.startswith("[") else part for part in parts]
    if not keys or isinstance(keys[0], int):
        return None
    # The pattern skips text that it does not match (`a..b`, a lone bracket). Joining the keys again detects this.
    return keys if reduce(join_path, keys, "") == path else None


def _set(node: Plain, keys: Sequence[str | int], path: str, value: Plain) -> list[Fault]:
    """Set the value at `keys` below `node`, whose path is `path`. Creates missing mappings; returns faults."""
    key, *below = keys
    place = join_path(path, key)
    if isinstance(key, int) and (not isinstance(node, list) or key >= len(node)):
        size = f"a list of {len(node)}" if isinstance(node, list) else "not a list"
        return [Fault(place, f"{path} is {size}", "indices count from 0")]
    if isinstance(key, str) and not isinstance(node, dict):
        known = "a list; use [index]" if isinstance(node, list) else f"{node!r}, not a mapping"
        return [Fault(place, f"{path} is {known}")]
    level: Any = node
    if not below:
        level[key] = value
        return []
    if isinstance(key, str):
        inner = {} if level.get(key) is None else level[key]
        short = place in SHORT_FORMS and not isinstance(inner, (dict, list))
        level[key] = {SHORT_FORMS[place]: inner} if short else inner
    return _set(level[key], below, place, value)
