"""The sources of a figure or table: SQL, its rows as CSV, and the Parquet files."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field

from sweeper.reporting.markup import Markup, join, tag
from sweeper.results import Results
from sweeper.text.labels import plural
from sweeper.text.tables import format_table

MOST_BYTES = 2**20
"""Rows of a query that take more than this in memory, 1 MiB, are not put into the page: it is to stay quick to open.
Of figures over 1,000 trials all are; 10,000 trials took 18 MiB in a dozen files, and the query gives them from the
sweep's tables."""


@dataclass(frozen=True)
class Sources:
    """What says where numbers come from, for all parts of one page: rows of the same query are held once.

    Attributes:
        results: what the queries are asked of.
        held: query → the link's identifier.
    """

    results: Results
    held: dict[str, str] = field(default_factory=dict)

    def section(self, key: str, sql: Sequence[str], tables: Sequence[str]) -> Markup:
        """Return the collapsed queries, their rows as files inside the page, and links to the Parquet files."""
        links = [join(tag("a", name, href=f"tables/{name}/"), " ") for name in tables]
        names = [f"{key}-{at + 1}" if len(sql) > 1 else key for at in range(len(sql))]
        rows = [join(self.link(name, query), " ") for name, query in zip(names, sql, strict=True)]
        return tag(
            "div",
            tag("details", tag("summary", "SQL behind the data"), tag("pre", ";\n\n".join(sql))),
            tag("span", "Data: ", *rows),
            tag("span", "Parquet: ", *links),
            class_="sources",
        )

    def link(self, name: str, query: str) -> Markup:
        """Return a link that saves the rows of a query as CSV, held compressed in the page itself."""
        if query in self.held:
            return tag("a", "same CSV as above", href=f"#{self.held[query]}")
        table = self.results.sql(query)
        size = plural(table.num_rows, "row")
        if table.nbytes > MOST_BYTES:
            return join(
                f"{size}, too many for this page; export: `sweeper results {self.results.name} --format csv --sql …`"
            )
        text = format_table(table, "csv")
        assert isinstance(text, str)
        packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
        self.held[query] = f"data-{name}"
        return tag(
            "a", f"CSV ({size})", id=self.held[query], href=f"data:application/gzip;base64,{packed}",
            download=f"{self.results.name}-{name}.csv.gz", class_="data-link",
        )  # fmt: skip
