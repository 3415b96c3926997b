"""The pages of a server that users start: what they say and refuse, when they are drawn, and results far away."""

import asyncio
import shutil
import signal
from pathlib import Path

import pytest

from sweeper.journal.journal import Journal
from sweeper.serving.app import MOST_ROWS
from sweeper.serving.board import LIVE, PageContent, make_page, page_content, page_file
from tests.patience import patient
from tests.running import SPACE, sweeper
from tests.sweeper.journal.test_state import Script
from tests.sweeper.reporting.browser import chromium
from tests.sweeper.reporting.test_status import Driven
from tests.sweeper.serving.server import Served, served
from tests.sweeper.synthetic_sweep import write_sweep

NAME = "small"


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory):
    """A sweep that this test drives, one with tables alone and a link to it, and one whose file is damaged."""
    made = Driven(tmp_path_factory.mktemp("served"))
    script = Script().attempt(1).report(0, 1, "early_stopped", rung=1).report(1, 3, objective=0.25)
    made.write(script)
    write_sweep(made.output / "tables", configurations=6, samples=30, failures=0)
    (made.output / "linked").symlink_to(made.output / "tables")
    (made.output / "damaged").mkdir()
    (made.output / "damaged" / "sweep.yaml").write_text("samples: [")
    return made


@pytest.fixture(scope="module")
def server(sweeps, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache") / "none"
    cache.write_text("no folder: nothing is drawn")
    with sweeps.lease, served(sweeps.output, cache) as up:
        yield up


def test_all_sweeps_are_in_one_table_and_one_that_is_damaged_says_so(server: Served):
    page = server.wait_for("/", "1 of 6")
    assert "process" in page and "val_nll 0.2500 so far" in page and 'href="/sweeps/small/"' in page
    assert "cannot be read" in page
    assert "1 of 1 running trials, 4 waiting" in page, "who has how much of what runs here"


def test_a_sweeps_page_says_what_the_journal_says(server: Served):
    page = server.wait_for("/sweeps/small/", "Stopped last")
    assert "c00001" in page and "val_nll 0.2500" in page and "running towards" in page


def test_a_linked_sweep_has_its_pages_under_the_links_name(server: Served):
    assert 'href="/sweeps/linked/"' in server.wait_for("/", "linked")
    for path in ("", "trials/c00001", "rows/trials.csv"):
        assert server.ask(f"/sweeps/linked/{path}").status == 200


def test_events_follow_the_journal(server: Served, sweeps):
    events = server.events("/sweeps/small/events")
    assert "1 stopped early" in next(events)[1]
    Journal(sweeps.paths.journal, clock=lambda: 104.0, durable=False).append(
        Script().report(2, 1, "early_stopped", rung=1).records[0].body
    )
    assert any("2 stopped early" in text for _, text in events)


def test_a_trial_has_a_page_and_an_unknown_one_a_sentence(server: Served):
    server.wait_for("/", "tables")
    page = server.ask("/sweeps/tables/trials/0")
    assert page.status == 200 and "c00000" in page.text and "<script>" not in page.text
    unknown = server.ask("/sweeps/tables/trials/c99999")
    assert unknown.status == 404 and "its trials are c00000" in unknown.text


def test_rows_come_as_csv_and_too_many_with_a_sentence(server: Served):
    server.wait_for("/", "tables")
    found = server.ask("/sweeps/tables/rows/epochs.csv")
    assert found.headers["content-type"].startswith("text/csv") and len(found.text.splitlines()) > 20
    assert "tables-epochs.csv" in found.headers["content-disposition"]
    first, part = (server.ask(f"/sweeps/tables/rows/epochs.csv?limit={page}") for page in ("5", "3&offset=2"))
    assert part.text.splitlines()[1:] == first.text.splitlines()[3:]
    refused = server.ask("/sweeps/tables/rows/epochs.csv?limit=1000000")
    assert refused.status == 413 and f"at most {MOST_ROWS:,}" in refused.text
    assert server.ask("/sweeps/tables/rows/epochs.csv?limit=-1").status == 400
    assert server.ask("/sweeps/tables/rows/predictions.csv").status == 404
    assert server.ask("/sweeps/tables/rows/trials;drop.csv").status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/sweeps/..%2f..%2fetc/", "/sweeps/%2e%2e/", "/sweeps/../../etc/passwd", "/static/..%2fpage.py",
        "/sweeps/small/trials/..%2f..%2fx", "/sweeps/small%00/", "/sweeps/nothing/", "/sweeps/small/report.html",
    ],
)  # fmt: skip
def test_a_path_out_of_the_output_is_not_found(server: Served, path):
    server.wait_for("/", "small")
    answer = server.ask(path)
    assert answer.status == 404 and "root:" not in answer.text


def test_two_sweeps_are_compared(server: Served):
    server.wait_for("/", "tables")
    assert "<select" in server.ask("/compare").text
    both = server.ask("/compare?a=tables&b=tables")
    assert both.status == 200 and "tables and tables" in both.text
    assert server.ask("/compare?a=tables&b=../x").status == 404


def test_an_empty_output_fills_and_markup_in_what_others_wrote_is_text(sweeps, tmp_path):
    output = tmp_path / "results"
    with served(output, tmp_path / "cache") as up:
        up.wait_for("/", "There are no sweeps here yet")
        shutil.copytree(sweeps.output / NAME, output / NAME)
        (output / NAME / "manifest.json").write_text('{"submitter": "<script>alert(1)</script>"}')
        (output / "<img src=x onerror=alert(1)>").mkdir()
        (output / "<img src=x onerror=alert(1)>" / "sweep.yaml").write_text("{}")
        page = up.wait_for("/", "alert(1)")
        assert "<script>alert" not in page and "onerror" not in page
        policy = up.ask("/").headers["content-security-policy"]
        assert "script-src 'self'" in policy and "unsafe-inline" not in policy.partition("style-src")[0]


@pytest.mark.integration
def test_servers_of_one_folder_say_the_same_at_once_and_after_one_was_killed(sweeps, tmp_path):
    texts = []
    with served(sweeps.output, tmp_path / "cache") as one:
        for _ in range(2):
            with served(sweeps.output, tmp_path / "cache") as other:
                for up in (one, other):
                    up.wait_for("/sweeps/small/", "val_nll 0.2500")
                    up.wait_for("/", "tables")
                    texts.append(up.ask("/sweeps/tables/rows/epochs.csv").text)
                other.process.send_signal(signal.SIGKILL)
    assert len(set(texts)) == 1


def test_requests_under_other_names_or_from_other_sites_are_refused(server: Served):
    assert server.ask("/", host=f"evil.example:{server.port}").status == 421
    assert server.ask("/", host=f"localhost:{server.port}").status == server.ask("/").status == 200
    assert server.ask("/compare", sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
    fetched = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert server.ask("/compare", **fetched, sec_fetch_dest="document").status == 200
    for framed in ("iframe", "frame", "embed", "object", "image"):
        assert server.ask("/compare", **fetched, sec_fetch_dest=framed).status == 403
    for broken in ("[", "[::1", "]:80", "\x7f", ""):
        assert server.ask("/", host=broken, origin="http://[").status in (400, 421)


@pytest.mark.parametrize("path", ["/", "/sweeps/small/", "/sweeps/small/steer", "/login"])
def test_nothing_can_be_written(server: Served, path):
    assert server.ask(path, "POST", "verb=stop").status in (404, 405)


def test_a_page_has_a_place_for_what_is_live_and_says_its_answers(sweeps, tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_CACHE", str(tmp_path))
    output, name = str(sweeps.output), "tables"
    assert page_content(output, name) == PageContent()
    before = {path: path.stat().st_mtime_ns for path in (sweeps.output / name).rglob("*")}
    make_page(name, output, "7")
    said = page_content(output, name)
    assert said.key == "7" and said.answers and all(sentence.endswith(".") for sentence in said.answers)
    assert said.best == "" or (" … " in said.best and "`" not in said.best), "an interval, or none that says anything"
    page = page_file(output, name).read_text("utf-8")
    assert page.count(LIVE) == 1 and 'href="rows/trials.csv"' in page and "<script>" not in page
    assert {path: path.stat().st_mtime_ns for path in (sweeps.output / name).rglob("*")} == before, (
        "nothing is written there"
    )
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


def test_ctrl_c_ends_it_as_it_says_without_a_failure(tmp_path: Path) -> None:
    with served(tmp_path, tmp_path / "cache") as site:
        assert site.ask("/").status == 200
        site.process.send_signal(signal.SIGINT)
        assert site.process.wait(patient(20)) == 0
