"""The ledger of looks: every comparison on test data that somebody made through the program, and what it may still say.

A look is a file in the folder `looks` of each sweep that it is about, whole or absent, and never written again. Looks
at all sweeps of one output folder are corrected together (`sweeper.analysis.statistics.looks`): who compares many
sweeps there has many chances to find something by luck. Places are given under a lock of that folder; where its file
system has none, two who look in one moment may get the same place. Where nothing can be written, what is looked at is
corrected for the looks that are known, and it is said that this one is not.

Not seen are those who read the tables by other programs, or by `sweeper.results` in Python. Looks at a sweep in a store
are recorded in this user's copy of it, and so only this user's are corrected for.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from rich.table import Table

from sweeper.analysis.comparison import Comparison
from sweeper.analysis.statistics.looks import Finding, Known, Looks, needed
from sweeper.core.errors import SweeperError
from sweeper.core.ids import SweepPaths
from sweeper.journal.fields import Flag, Number, Whole, Written
from sweeper.results import Results
from sweeper.storage.lookup import refuse_links
from sweeper.storage.metadata import user_and_host
from sweeper.text.labels import label, plural
from trainables.files.atomic import write_new_bytes
from trainables.files.locks import lock_open_file
from trainables.metrics.base import larger_is_better

#: The environment's variable that says who looks and steers, where that is not this process's user: an agent's name.
AUTHOR = "SWEEPER_AUTHOR"

#: For another who looks just now: then a place may be given twice.
PATIENCE_SECONDS = 30.0

_READS = re.compile(r"\b(final|evaluations|reliability|predictions|recalibrations)\b", re.IGNORECASE)
_ONLY_VALIDATION = re.compile(r"\bsplit\s*=\s*'val'", re.IGNORECASE)


@dataclass(frozen=True)
class Tested(Written):
    """One metric of a look: its comparison's key, place and level; the pairs that were new; whether it was shown."""

    key: str
    place: Whole
    level: Number
    pairs: Mapping[str, Number]
    shown: Flag
    sentence: str


@dataclass(frozen=True)
class Look(Written):
    """One look.

    Attributes:
        identity: the same in every sweep's folder.
        time: Unix time in seconds.
        by: who looked.
        what: was looked at, in words.
        tests: what was compared.
        tables: sweep → configurations of which test data were shown.
    """

    identity: str
    time: Number
    by: str
    what: str
    tests: Sequence[Tested]
    tables: Mapping[str, Number]


@dataclass(frozen=True)
class Answer:
    """What a look may say: a sentence on each metric and what it rests on, and notes on the ledger itself.

    `earlier` are the metrics in which a difference was shown at an earlier look, and is not at this one.
    """

    sentences: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    found: Mapping[str, Finding] = field(default_factory=dict)
    earlier: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return the sentences on what is shown, and one on all else."""
        left = [name for name, seen in self.found.items() if not seen.shown and name not in self.earlier]
        said = [text for name, text in self.sentences.items() if name not in left]
        if left:
            seen = self.found[left[0]]
            few = f": {seen.n} pairs cannot, {needed(seen.level)} could" if seen.n < needed(seen.level) else ""
            said.append(f"On test data no difference is shown in {', '.join(map(label, left))} (n = {seen.n}){few}")
        return said


def author() -> str:
    """Return who looks or steers: `SWEEPER_AUTHOR`, or this process's user and machine."""
    return os.environ.get(AUTHOR) or user_and_host()


def looks_at(paths: SweepPaths) -> list[Look]:
    """Return the looks at a sweep, in their order. Raises SweeperError for one that is damaged."""
    return sorted((_read(file) for file in paths.looks.glob("*.json")), key=lambda each: each.time)


def _read(file: Path) -> Look:
    try:
        return Look.from_json(json.loads(file.read_bytes()))
    except (ValueError, AttributeError, RecursionError) as error:
        raise SweeperError(
            f"the look {file} is damaged: {error}", "restore it from a backup, or remove it and forget that look"
        ) from error


def all_looks(outputs: Collection[Path]) -> Looks:
    """Return the looks at all sweeps of some output folders, as one account."""
    files = {
        file.name: file for output in {each.resolve() for each in outputs} for file in output.glob("*/looks/*.json")
    }
    account = Looks()
    for look in sorted(map(_read, files.values()), key=lambda each: each.time):
        for name, shown in look.tables.items():
            account.table(name, int(shown))
        for test in look.tests:
            known = account.known.setdefault(test.key, Known(test.place, test.level))
            known.pairs.update(test.pairs)
            known.shown = known.shown or test.shown
    return account


def look_at_comparison(found: Comparison, sweeps: Sequence[Results]) -> Answer:
    """Record a comparison of two sweeps on test data; return what it may say of each metric.

    Nothing is recorded where nothing is new since the last time.
    """
    tested = [each for each in found.metrics if each.split == "test"]
    if not tested:
        return Answer()
    names = [_identity(each) for each in sweeps]
    flips, basis = names[0] > names[1], f"{found.unit} {found.epoch or 'end'}"
    tests, answers, news = dict[str, Tested](), dict[str, Finding](), False
    with _alone(sweeps) as account:
        for each in tested:
            key = f"{' '.join(sorted(names))} {basis} {each.split}_{each.metric}"
            pairs = {unit: -value if flips else value for unit, value in each.pairs.items()}
            before = dict(account.known[key].pairs) if key in account.known else {}
            seen, new = account.compare(key, pairs)
            if flips:
                limits = seen.interval and (-seen.interval[1], -seen.interval[0])
                seen = Finding(-seen.mean, seen.n, seen.level, seen.evidence, seen.shown, limits)
            news, known = news or new, account.known[key]
            better = found.names[(seen.mean > 0) == larger_is_better(each.metric)]
            sentence = _sentence(f"{label(each.split)} {label(each.metric)}", seen, known, better)
            fresh = {unit: value for unit, value in pairs.items() if unit not in before}
            tests[each.metric] = Tested(key, known.place, known.level, fresh, seen.shown, sentence)
            answers[each.metric] = seen
        what = f"compare {' and '.join(found.names)}"
        notes = _record(sweeps, what, [*tests.values()], {}) if news else []
    shown_before = [name for name, test in tests.items() if account.known[test.key].shown and not test.shown]
    return Answer({name: test.sentence for name, test in tests.items()}, notes, answers, shown_before)


def look_at_table(sweeps: Sequence[Results], what: str, configurations: int) -> Answer:
    """Record that test data of so many configurations of sweeps were shown, e.g. as a leaderboard; return notes."""
    shown = {_identity(each): configurations for each in sweeps}
    with _alone(sweeps) as account:
        news = [account.table(name, count) for name, count in shown.items()]
        return Answer(notes=_record(sweeps, what, [], shown) if any(news) else [])


def look_at_rows(sweeps: Sequence[Results], query: str, rows: pa.Table) -> Answer:
    """Record the rows of an SQL query, where it may show test data; return notes."""
    trials = len(rows.column("trial").unique()) if "trial" in rows.column_names else rows.num_rows
    return look_at_table(sweeps, query, trials) if shows_test(query) else Answer()


def shows_test(query: str) -> bool:
    """Return whether an SQL query may show test data: it reads evaluations, and not those on validation data alone."""
    return bool(_READS.search(query)) and (not _ONLY_VALIDATION.search(query) or "'test" in query)


def ledger_table(looks: Sequence[Look]) -> Table:
    """Return the looks at a sweep for a terminal."""
    table = Table("when (UTC)", "by", "looked at", "what it says", box=None, pad_edge=False)
    for look in looks:
        shown = [f"test data of {plural(int(max(look.tables.values())), 'configuration')}"] if look.tables else []
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(look.time))
        table.add_row(when, look.by, look.what, "\n".join([*shown, *(each.sentence for each in look.tests)]))
    return table


def _identity(results: Results) -> str:
    """Return what tells a sweep from a later one of the same name."""
    return f"{results.name}@{results.manifest.get('created', '')}"


def _sentence(metric: str, seen: Finding, known: Known, better: str) -> str:
    """Return what a comparison may say, in one sentence."""
    sure, before = f"{100 * (1 - seen.level):.4g} %", plural(known.place - 1, "comparison")
    limits = "" if seen.interval is None else f"{sure} {seen.interval[0]:+.3g} … {seen.interval[1]:+.3g}, "
    value = f"{seen.mean:+.3g} ({limits}n = {seen.n}; corrected for {before} before it)".replace("-", "−")
    if seen.shown:
        return f"{metric} is better in {better}: {value}"
    if known.shown:
        return f"{metric} was shown to differ at an earlier look; now {value}"
    return f"{metric}: no difference is shown, {value}"


@contextmanager
def _alone(sweeps: Sequence[Results]) -> Iterator[Looks]:
    """Yield the account of all looks so far at sweeps of these output folders.

    Nobody else looks at them meanwhile, where their file systems have locks.
    """
    outputs = {each.folder.parent.resolve() for each in sweeps}
    with ExitStack() as stack:
        for each in sorted(outputs):
            with suppress(OSError):  # NoLocksError is one
                descriptor = os.open(each, os.O_RDONLY)
                stack.callback(os.close, descriptor)
                lock_open_file(descriptor, patience=PATIENCE_SECONDS)
        yield all_looks(outputs)


def _record(sweeps: Sequence[Results], what: str, tests: Sequence[Tested], tables: Mapping[str, float]) -> list[str]:
    """Record a look in every sweep's folder; return where that cannot be, and why."""
    look = Look(secrets.token_hex(8), time.time(), author(), what, tests, tables)
    faults = {paths.name: _written(paths, look) for paths in {each.folder: each.paths for each in sweeps}.values()}
    return [f"this look at test data is not recorded in {name}: {fault}" for name, fault in faults.items() if fault]


def _written(paths: SweepPaths, look: Look) -> str | None:
    """Write a look into a sweep's folder; return why it cannot be."""
    try:
        refuse_links(paths)
        paths.looks.mkdir(exist_ok=True)
        content = json.dumps(look.to_json()).encode()
        write_new_bytes(paths.looks / f"{look.identity}.json", content, durable=True)
    except OSError as error:
        return error.strerror or str(error)
    except SweeperError as error:
        return str(error).partition("\n")[0]
    return None
