"""Data and text inside the page: JSON that no browser takes for markup, and sentences with subscripts."""

from __future__ import annotations

import base64
import gzip
import json
import re

from markupsafe import Markup, escape

PACKED_FROM = 200_000
"""Characters of JSON from which it is compressed in the page: a page of small data can be read by any browser, and
one of large data is a fifth of its size and is not parsed before it is needed."""


def data_script(identifier: str, text: str) -> Markup:
    """Return JSON text as an inert script element that no `</script>` or `<!--` in it can end; large text packed."""
    if len(text) >= PACKED_FROM:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup(f'<script type="application/gzip" id="{escape(identifier)}">{packed}</script>')
    safe = text.replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(identifier)}">{safe}</script>')


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
    return Markup(str(escape(unbroken)).replace("λ_max", "λ<sub>max</sub>"))
