"""The rows behind a figure or table, as CSV inside the page."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sweeper.results import Results
from sweeper.text.labels import plural
from sweeper.text.tables import format_table

MOST_BYTES = 2**20
"""Rows of a query that take more than this in memory, 1 MiB, are not put into the page: it is to stay quick to open.
Of figures over 1,000 trials all are; 10,000 trials took 18 MiB in a dozen files, and the query gives them from the
sweep's tables."""


class Link(NamedTuple):
    """A link to rows: its text; its address, where there is something to link to; id and name of a file it saves."""

    text: str
    address: str = ""
    id: str = ""
    file: str = ""


@dataclass(frozen=True)
class Sources:
    """What says where numbers come from, for all parts of one page: rows of the same query are held once.

    Attributes:
        results: what the queries are asked of.
        held: query → the link's identifier.
    """

    results: Results
    held: dict[str, str] = field(default_factory=dict)

    def links(self, key: str, sql: Sequence[str]) -> list[Link]:
        """Return a link for the rows of each query of the figure or table `key`."""
        names = [f"{key}-{at + 1}" if len(sql) > 1 else key for at in range(len(sql))]
        return [self.link(name, query) for name, query in zip(names, sql, strict=True)]

    def link(self, name: str, query: str) -> Link:
        """Return a link that saves the rows of a query as CSV, held compressed in the page itself."""
        if query in self.held:
            return Link("same CSV as above", f"#{self.held[query]}")
        table = self.results.sql(query)
        size = plural(table.num_rows, "row")
        if table.nbytes > MOST_BYTES:
            command = f"sweeper results {self.results.name} --format csv --sql …"
            return Link(f"{size}, too many for this page; export: `{command}`")
        text = format_table(table, "csv")
        assert isinstance(text, str)
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        self.held[query] = f"data-{name}"
        address = f"data:application/gzip;base64,{packed}"
        return Link(f"CSV ({size})", address, self.held[query], f"{self.results.name}-{name}.csv.gz")
