"""MLflow's own pages in a real browser: a sweep's tree, three runs compared, a trial's reliability diagram."""

import asyncio
import base64
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from sweeper.tracking import sync as projection
from sweeper.tracking.mlflow.pages import address
from tests.mlflow_stores import Server
from tests.sweeper.random_sweep import RandomSweep
from tests.sweeper.reporting.browser import Tab, chromium
from tests.sweeper.tracking.test_sync import with_tables

pytestmark = pytest.mark.slow

WORDS = "(document.body?.innerText ?? '')"

EXPANDER = "document.querySelector('[role=gridcell] button[data-component-id*=runnamecellrenderer]')"
"""What unfolds the children of a run."""


@dataclass(frozen=True)
class Shown:
    """A sweep in MLflow, and where its pages are."""

    address: str
    experiment: str
    parent: str
    children: list[Any]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("shown")
    sweep = RandomSweep(folder / "shown", 7, count=6)
    sweep.write_spec()
    with_tables(sweep)
    sweep.paths.report.write_text("<html></html>")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    projection.sync(sweep.root, uri)
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("shown")
    (parent,) = client.search_runs([experiment.experiment_id], "tags.configuration = 'sweep'")
    children = client.search_runs([experiment.experiment_id], "tags.trial LIKE 'c%'")
    server = Server(uri, folder)
    server.start()
    try:
        yield Shown(server.uri, experiment.experiment_id, parent.info.run_id, children)
    finally:
        server.signal(signal.SIGKILL)


async def visit(tab: Tab, address: str, *words: str) -> str:
    """Open an address and return the page's text once it holds all of `words`."""
    await tab.call("Page.navigate", url="about:blank")
    await tab.call("Page.navigate", url=address)
    await tab.wait_for(f"{json.dumps(list(words))}.every((word) => {WORDS}.includes(word))", seconds=120)
    return str(await tab.evaluate(WORDS))


async def picture(tab: Tab, path: Path) -> None:
    """Save what the tab shows as PNG."""
    taken = await tab.call("Page.captureScreenshot", format="png")
    path.write_bytes(base64.b64decode(taken["data"]))


async def prepared(tab: Tab) -> None:
    """Make the window large enough for MLflow's tables."""
    await tab.call("Page.enable")
    size = {"width": 1600, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    await tab.call("Emulation.setDeviceMetricsOverride", **size)


def test_mlflow_shows_the_tree_compares_three_runs_and_shows_a_diagram(shown: Shown, tmp_path: Path) -> None:
    names = [run.info.run_name for run in shown.children]
    assert len(names) >= 3

    async def run() -> None:
        async with chromium(tmp_path / "profile") as tab:
            await prepared(tab)
            runs = address(shown.address, shown.experiment)
            await visit(tab, runs, "shown", f"{len(shown.children) + 1} matching runs")
            await tab.wait_for(f"{EXPANDER} !== null")
            await tab.evaluate(f"{EXPANDER}.click()")
            shortened = [name[:8] for name in names]
            words = [*shortened, "digits (", "space.yaml"]
            await tab.wait_for(f"{json.dumps(words)}.every((word) => {WORDS}.includes(word))")
            chosen = [child.info.run_id for child in shown.children[:3]]
            query = f"runs={json.dumps(chosen)}&experiments={json.dumps([shown.experiment])}"
            page = await visit(tab, f"{shown.address}/#/compare-runs?{query}", *names[:3], "Parallel Coordinates")
            assert "config_optimizer_lr" in page, "what varies is there to compare"
            run = f"{shown.address}/#/experiments/{shown.experiment}/runs/{chosen[0]}"
            await visit(tab, f"{run}/artifacts/reliability_diagram.svg", "reliability_diagram.svg")
            image = "[...document.querySelectorAll('img')].some((image) => image.naturalWidth >= 400)"
            await tab.wait_for(image, seconds=60)

    asyncio.run(run())
