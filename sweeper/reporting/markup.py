"""HTML as nested function calls: text is escaped unless it is already `Markup`."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re

PACKED_FROM = 200_000
"""Characters of JSON from which it stands in the page compressed: a page of small data can be read by any browser, and
one of large data is a fifth of its size and is not parsed before it is needed."""

VOID = frozenset({"meta", "link", "input", "br", "hr"})


class Markup(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return `<name attributes>children</name>`.

    Children that are None or "" are left out; attributes that are None or False too, True is written without a value.
    `class_` and `for_` stand for the reserved words, other underscores become hyphens.
    """
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"')
    opening = f"<{name}{''.join(written)}>"
    return Markup(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Return the children one after the other, text escaped."""
    kept = [child for child in children if child is not None and child != ""]
    return Markup("".join(c if isinstance(c, Markup) else html.escape(str(c), quote=False) for c in kept))


def data_script(identifier: str, text: str) -> Markup:
    """Return JSON text as an inert script element that no `</script>` or `<!--` in it can end; large text packed."""
    if len(text) >= PACKED_FROM:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup(f'<script type="application/gzip" id="{html.escape(identifier)}">{packed}</script>')
    safe = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{html.escape(identifier)}">{safe}</script>')


def json_text(value: object) -> str:
    """Return compact JSON; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=str)


def finite(value: object) -> object:
    """Return the value with every NaN and infinity in it replaced by None."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def pretty(text: str) -> Markup:
    """Return text as HTML: λ_max with its subscript, and no line broken at a `=` or `±`."""
    unbroken = re.sub(r" ([=±]) ", "\u00a0\\1\u00a0", text)
    return Markup(join(unbroken).replace("λ_max", "λ<sub>max</sub>"))
