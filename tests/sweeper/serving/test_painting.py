"""A sweep's report on a server: made beside it, in a real browser, and newer as the journal grows."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sweeper.serving.board import LIVE, PageContent, make_page, page_content, page_file
from tests.patience import patient
from tests.running import SPACE, sweeper
from tests.sweeper.reporting.browser import chromium
from tests.sweeper.serving.server import served


def test_a_page_has_a_place_for_what_is_live_and_says_its_answers(gamma_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path))
    output, name = str(gamma_folder.parent), gamma_folder.name
    assert page_content(output, name) == PageContent()
    before = {path: path.stat().st_mtime_ns for path in gamma_folder.rglob("*")}
    make_page(name, output, "7")
    said = page_content(output, name)
    assert said.key == "7" and said.answers and all(sentence.endswith(".") for sentence in said.answers)
    assert said.best == "" or (" … " in said.best and "`" not in said.best), "an interval, or none that says anything"
    page = page_file(output, name).read_text("utf-8")
    assert page.count(LIVE) == 1 and 'href="rows/trials.csv"' in page and "<script>" not in page
    assert {path: path.stat().st_mtime_ns for path in gamma_folder.rglob("*")} == before, "nothing is written there"
    assert page_file(output, name).parent.stat().st_mode & 0o077 == 0


@pytest.mark.integration
def test_a_sweep_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SPACE)
    output = tmp_path / "results"
    sweeper("run", str(tmp_path / "small.yaml"), "--output", str(output), "--no-mlflow", cwd=tmp_path)
    (output / "small" / "report.html").write_text("<script>document.title = 'somebody else'</script>")
    shutil.copytree(output / "small", output / "other", symlinks=True)

    async def look(address: str) -> None:
        async with chromium(tmp_path / "profile") as tab:
            for width, dark in ((1400, False), (390, True)):
                await tab.open(address, width=width, height=900, dark=dark)
                await tab.wait_for("document.querySelectorAll('#live tr').length === 2")
                assert await tab.evaluate("document.documentElement.dataset.theme") == ("dark" if dark else "light")
                assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            await tab.evaluate("document.querySelector('#live a').click()")  # the report appears by itself
            await tab.wait_for("document.querySelectorAll('.plot svg').length > 5", patient(120))
            assert "finished" in await tab.evaluate("document.querySelector('#live').textContent")
            await tab.evaluate("document.querySelector('#live a').click()")
            await tab.wait_for("location.pathname.includes('/trials/c0') && document.readyState === 'complete'")
            await tab.wait_for("document.querySelector('.plot svg') !== null")
            await tab.evaluate("setTimeout(() => history.back())")  # it has to answer before the page goes
            await tab.wait_for(
                "!location.pathname.includes('trials') && document.querySelector('#live .answers') !== null"
            )
            assert await tab.evaluate("document.title") != "somebody else"
            assert [each for each in tab.complaints() if "net::ERR_ABORTED" not in each] == []

    with served(output, tmp_path / "cache") as up:
        asyncio.run(look(up.address))
