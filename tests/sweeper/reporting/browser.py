"""Drives Debian's Chromium, headless and without a network, over its own debugging protocol."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--enable-unsafe-swiftshader",
    "--remote-debugging-port=0", "--proxy-server=127.0.0.1:9",
)  # fmt: skip
"""The proxy does not exist: whatever the page tried to load would fail and be recorded."""


class NavigatedError(Exception):
    """The page went away while it was asked."""


class Tab:
    """One browser tab: calls of the protocol, and the events that came in between."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.number = 0
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call one method and return its result."""
        self.number += 1
        await self.socket.send_json({"id": self.number, "method": method, "params": parameters})
        while True:
            message = await self.socket.receive_json(timeout=60)
            if message.get("id") == self.number:
                if "navigated" in str(message.get("error", "")):
                    raise NavigatedError
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, expression: str, seconds: float = 30) -> None:
        """Wait until an expression is true."""
        for _ in range(int(seconds / 0.05)):
            with suppress(NavigatedError):
                if await self.evaluate(expression):
                    return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never true: {expression}")

    async def open(self, page: Path | str, *, width: int, height: int, dark: bool = False) -> None:
        """Open a page from the disk, or at an address of this machine, in a window of this size."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        await self.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def complaints(self) -> list[str]:
        """Return errors of the console, uncaught exceptions, and requests that left the disk."""
        found: list[str] = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters)[:400])
            elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
                found.append(parameters["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "assert"):
                found.append(json.dumps(parameters["args"])[:400])
            elif method == "Network.requestWillBeSent":
                address = parameters["request"]["url"]
                if not address.startswith(("file:", "data:", "blob:", "http://127.0.0.1:")):
                    found.append(address)
        return found


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Tab]:
    """Give a tab of a fresh browser whose profile lies in `profile`; the browser ends with the block."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "DevTools listening" in line)
        port = line.partition("127.0.0.1:")[2].partition("/")[0]
        try:
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    target = next(item for item in await answer.json() if item["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Tab(socket)
        finally:
            process.terminate()
