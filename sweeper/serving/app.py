"""The server's pages: all sweeps, one sweep live, one trial, two sweeps compared, rows as CSV, a stream of events."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sweeper.core.display import format_table
from sweeper.core.errors import SweeperError
from sweeper.reporting.figures.drawing import javascript
from sweeper.reporting.html import FILES, page_text
from sweeper.reporting.page import trial_parts
from sweeper.results.queries import LARGE_TABLES, VIEWS
from sweeper.results.results import load
from sweeper.serving.board import LIVE, Board, PageMaker, SweepView, page_file
from trainables.files.stores.base import StoreError

T = TypeVar("T")

#: Seconds between two checks for new events. Together with `LOOK_SECONDS`, a page is at most 1.5 s behind a local
#: journal.
EVENT_SECONDS = 0.5

#: Seconds without events after which an empty event is sent. It detects closed browsers, and keeps proxies from closing
#: an idle connection.
SILENCE_SECONDS = 15.0

#: Largest number of rows of one download. While they are sent, they take tens of megabytes of memory.
MOST_ROWS = 100_000

#: Size of the pieces in which a large answer is sent, so that other requests can be answered in between.
CHUNK_ROWS, CHUNK_BYTES = 5_000, 2**18

#: Largest number of requests that read tables at once. For 10,000 trials, each takes hundreds of megabytes for a
#: second.
HEAVY = 2

#: Number of trial pages kept in memory, for readers who go back and forth.
KEPT_TRIALS = 64

#: The only files that are served by name, so that no path in a request is used to open a file.
STATIC = {**dict.fromkeys(("vega.js", "page.js", "live.js"), "text/javascript"), "live.css": "text/css"}


LOOPBACK = ("127.0.0.1", "localhost", "::1")

HEADERS = {
    # A sweep may come from somebody else. So browsers run only scripts in the server's own files, and contact only this
    # server.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
}


def listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine's loopback. Raises SweeperError if the port is taken."""
    try:
        return socket.create_server((LOOPBACK[0], port))
    except OSError as error:
        raise SweeperError(f"cannot listen on port {port}: {error.strerror}", "give another --port") from error


def serve(output: str, taken: socket.socket, compare: Callable[..., object]) -> None:
    """Serve the sweeps of `output` on a socket of this machine's loopback until interrupted.

    Args:
        output: a folder or a store.
        taken: a listening socket.
        compare: the function of the command `compare`.
    """
    app = Guard(Pages(output, compare).app())
    # A graceful shutdown would wait for event streams, which never end. So it waits only one second.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    # After its shutdown uvicorn (0.29 and later) raises the signal again. Ctrl-C is how this server is meant to end.
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[taken])


class Guard:
    """Passes requests from browsers and programs on this machine to an application, and adds headers."""

    def __init__(self, app: ASGIApp) -> None:
        """Guard `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update({name: text for name, text in HEADERS.items() if name not in headers})
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (refusal(Request(scope, receive)) or self._app)(scope, receive, send_guarded)


def refusal(request: Request) -> Response | None:
    """Return a refusal for a request from another site's page; None for a request from this machine."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname
    except ValueError:  # e.g. `[`, half an IPv6 address
        host = None
    if host not in LOOPBACK:
        # DNS rebinding: if a foreign name resolved to 127.0.0.1, that site's page could read what is served here.
        return PlainTextResponse("this server answers to localhost only\n", 421)
    # Other sites may link to these pages, but must not load them as a frame, a picture or a script.
    page = request.headers.get("sec-fetch-mode") == "navigate" and request.headers.get("sec-fetch-dest") == "document"
    if request.headers.get("sec-fetch-site") == "cross-site" and not page:
        return PlainTextResponse("a request from another site was refused\n", 403)
    return None


class Pages:
    """Answers requests about the sweeps of one output."""

    def __init__(self, output: str, compare: Callable[..., object]) -> None:
        """Prepare to serve `output`. Raises SweeperError if it is neither a folder nor a store."""
        self._board, self._compare = Board(output), compare
        self._page_maker = PageMaker(output, self._board.outdated)
        self._heavy = anyio.CapacityLimiter(HEAVY)
        self._trial = functools.lru_cache(KEPT_TRIALS)(self._trial_text)

    def app(self) -> Starlette:
        """Return the application."""
        one = "/sweeps/{name}"
        routes = {
            "/": self.sweeps, "/events": self.events, f"{one}/": self.sweep, f"{one}/events": self.events,
            f"{one}/trials/{{trial}}": self.trial, f"{one}/rows/{{table}}.csv": self.rows,
            "/compare": self.compare, "/static/{file}": self.static,
        }  # fmt: skip
        refused: Any = {HTTPException: sentence, SweeperError: sentence, StoreError: sentence}
        served = [Route(path, answer) for path, answer in routes.items()]
        return Starlette(routes=served, lifespan=self._running, exception_handlers=refused)

    @asynccontextmanager
    async def _running(self, app: Starlette) -> AsyncIterator[None]:
        """Read journals in a thread and make pages while the server runs."""
        stop = threading.Event()

        def read() -> None:
            while not stop.is_set():
                self._board.look()
                stop.wait(self._board.seconds)

        threading.Thread(target=read, daemon=True).start()  # a daemon, so that a long read does not delay the exit
        painting = asyncio.create_task(self._page_maker.work())
        try:
            yield
        finally:
            stop.set()
            painting.cancel()
            await asyncio.gather(painting, return_exceptions=True)  # its process is gone before the loop is

    async def _in_thread(self, work: Callable[..., T], *given: object, **named: object) -> T:
        return await anyio.to_thread.run_sync(functools.partial(work, *given, **named), limiter=self._heavy)

    def _seen(self, name: str) -> SweepView:
        if name not in self._board.seen:
            raise HTTPException(404, f"there is no sweep {name!r} here")
        return self._board.seen[name]

    async def sweeps(self, request: Request) -> Response:
        """Answer with the table of all sweeps."""
        facts = f"{len(self._board.seen)} in {self._board.output}"
        return page("sweeps", "Sweeps", facts=facts, live=self._board.rows)

    async def sweep(self, request: Request) -> Response:
        """Answer with a sweep's page: its latest report, which includes the journal's current state."""
        seen = self._seen(request.path_params["name"])
        part, file = self._board.parts.get(seen.name, ""), page_file(self._board.output, seen.name)
        if not seen.page.key or not file.is_file():
            fault = "There is no report." if seen.fault else self._page_maker.faults.get(seen.name, "")
            return page("sweep", seen.name, seen.name, live=part, fault=fault)
        before, _, after = await anyio.to_thread.run_sync(split_page, file, seen.page.key)

        def pieces() -> Iterator[bytes]:
            yield before + page_text("live_part.html", part=part, key=seen.page.key).encode()
            yield from (after[at : at + CHUNK_BYTES] for at in range(0, len(after), CHUNK_BYTES))

        return StreamingResponse(pieces(), media_type="text/html")

    async def events(self, request: Request) -> Response:
        """Answer with an endless stream of events. Each has the live part and the report's key after a change."""
        name = self._seen(request.path_params["name"]).name if "name" in request.path_params else ""
        return StreamingResponse(self._events(name), media_type="text/event-stream")

    async def _events(self, name: str) -> AsyncIterator[str]:
        sent: dict[str, str] = {}
        silent = 0.0
        self._board.watchers[name] += 1  # pages that somebody watches are made first
        try:
            yield "retry: 1000\n\n"
            while not name or name in self._board.seen:
                now = {"part": self._board.parts.get(name, "") if name else self._board.rows}
                if name:
                    now["report"] = self._board.seen[name].page.key
                for kind, text in now.items():
                    if sent.get(kind) != text:
                        sent[kind], silent = text, 0.0
                        yield "\n".join([f"event: {kind}", *(f"data: {line}" for line in text.splitlines()), "\n"])
                silent += EVENT_SECONDS
                if silent > SILENCE_SECONDS:
                    silent = 0.0
                    yield ":\n\n"
                await asyncio.sleep(EVENT_SECONDS)
        finally:
            self._board.watchers[name] -= 1

    async def trial(self, request: Request) -> Response:
        """Answer with a trial's page."""
        seen = self._seen(request.path_params["name"])
        trial = request.path_params["trial"][:20]  # an error message repeats it
        return HTMLResponse(await self._in_thread(self._trial, seen.name, trial, seen.key))

    def _trial_text(self, name: str, trial: str, key: str) -> str:
        """Return a trial's page. `key` only serves as part of the cache's key, so a changed sweep gets a new page."""
        parts, said = trial_parts(load(name, self._board.output), trial), self._board.seen[name].page.answers
        return page_text("trial.html", served=True, said=said, **parts)

    async def rows(self, request: Request) -> Response:
        """Answer with rows of a table as CSV: all, or `limit` rows from `offset`, at most MOST_ROWS."""
        name, table = self._seen(request.path_params["name"]).name, request.path_params["table"]
        if table not in VIEWS or table in LARGE_TABLES:
            served = ", ".join(name for name in VIEWS if name not in LARGE_TABLES)
            raise HTTPException(404, f"{table!r} is not a table that this page serves; tables: {served}")
        asked = request.query_params
        numbers = [asked.get("limit", str(MOST_ROWS + 1)), asked.get("offset", "0")]
        if not all(text.isascii() and text.isdigit() and len(text) < 16 for text in numbers):
            raise HTTPException(400, "limit and offset must be numbers of rows")
        limit, offset = map(int, numbers)
        # One row more than allowed shows that there are too many. With a fixed order, successive pages contain every
        # row once.
        query = f"SELECT * FROM {table} ORDER BY ALL LIMIT {min(limit, MOST_ROWS + 1)} OFFSET {offset}"
        table_rows = await self._in_thread(load(name, self._board.output).sql, query)
        if limit > MOST_ROWS + 1 or table_rows.num_rows > MOST_ROWS:
            raise HTTPException(
                413,
                f"a download has at most {MOST_ROWS:,} rows: read pages with ?limit={MOST_ROWS}&offset=0, or run "
                f"sweeper results {name} --format csv --sql 'SELECT * FROM {table}'",
            )

        def pieces() -> Iterator[str]:
            for at in range(0, max(1, table_rows.num_rows), CHUNK_ROWS):
                text = str(format_table(table_rows.slice(at, CHUNK_ROWS), "csv"))
                yield text if at == 0 else text.partition("\n")[2]  # the header line only once

        saved = {"content-disposition": f'attachment; filename="{name}-{table}.csv"'}
        return StreamingResponse(pieces(), headers=saved, media_type="text/csv")

    async def compare(self, request: Request) -> Response:
        """Answer with two sweeps side by side: their reports' answers, and the output of the command `compare`."""
        sides = [self._seen(request.query_params[side]) for side in "ab" if request.query_params.get(side)]
        comparison = None
        if len(sides) == 2:
            names = (side.name for side in sides)
            comparison = await self._in_thread(self._compare, *names, output=self._board.output)
        facts = "Two sweeps over the configurations that both have."
        return page("compare", "Compare", facts=facts, names=[*self._board.seen], sides=sides, found=comparison)

    async def static(self, request: Request) -> Response:
        """Answer with a script or a style; browsers may keep it for an hour, since Vega's is megabytes."""
        file = request.path_params["file"]
        if file not in STATIC:
            raise HTTPException(404, "there is no such file")
        text = javascript() if file == "vega.js" else FILES.joinpath(file).read_text("utf-8")
        return Response(text, media_type=STATIC[file], headers={"cache-control": "private, max-age=3600"})


@functools.lru_cache(4)
def split_page(file: Path, key: str) -> tuple[bytes, bytes, bytes]:
    """Return a page's bytes before the live part, its mark, and the bytes after; cached for all readers."""
    return file.read_bytes().partition(LIVE.encode())


def page(kind: str, title: str, name: str = "", *, status: int = 200, **shown: object) -> Response:
    """Return one of the pages of `sweeps.html`."""
    given = {"facts": "", **shown}
    return HTMLResponse(page_text("sweeps.html", served=True, kind=kind, title=title, name=name, **given), status)


async def sentence(request: Request, error: Exception) -> Response:
    """Return a page that states why a request cannot be answered."""
    status, text = (error.status_code, error.detail) if isinstance(error, HTTPException) else (404, str(error))
    return page("sentence", str(status), text=text, status=status)
