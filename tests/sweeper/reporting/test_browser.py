"""The report in a real browser with the network off: every plot draws and reacts, nothing complains."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.reporting.page import write_report
from tests.sweeper.reporting.browser import Tab, chromium
from tests.sweeper.synthetic_sweep import write_sweep

pytestmark = pytest.mark.slow

PLOTS = "document.querySelectorAll('.plot').length"
DRAWN = "document.querySelectorAll('.plot[data-drawn] svg').length > 0 && [...document.querySelectorAll('.plot')]"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHOWN = "document.querySelectorAll('#curvature-against-gamma .plot .mark-symbol path').length"
ROWS = "document.querySelectorAll('#trials tbody tr').length"
FOUND = "parseInt(document.querySelector('#trials .count').textContent.replace(',', ''))"


PLACE = """
(() => {
  const plot = document.querySelector('#%s .plot');
  plot.scrollIntoView({ block: 'center', behavior: 'instant' });
  const middle = (mark) => (({ x, y, width, height }) => [x + width / 2, y + height / 2])(mark.getBoundingClientRect());
  const marks = [...plot.querySelectorAll('.mark-symbol path')].filter((mark) => mark.ariaLabel.includes('says: c0'));
  return marks.map(middle).find(([x, y], at) => document.elementFromPoint(x, y) === marks[at]);
})()
"""
LABEL = "(document.querySelector('#vg-tooltip-element.visible')?.textContent ?? '')"
SAVED = """
new Promise((settle) => {
  const make = URL.createObjectURL;
  URL.createObjectURL = (blob) => { blob.text().then(settle); return make.call(URL, blob); };
  document.querySelector('#%s .data-link').click();
})
"""
"""The text of the file that the link of a section saves."""
CHOOSE = """
(() => {
  const axis = document.querySelector('[data-axis=x]');
  axis.value = [...axis.options].find((each) => each.text === 'lr').value;
  axis.dispatchEvent(new Event('change'));
})()
"""
AXIS = """
(() => {
  const plot = document.querySelector('#parallel-coordinates .plot');
  plot.scrollIntoView({ block: 'center', behavior: 'instant' });
  const axis = [...plot.querySelectorAll('.role-axis-label text')].find((each) => each.textContent === 'lr');
  const [label, box] = [axis.getBoundingClientRect(), plot.getBoundingClientRect()];
  return [label.x + label.width / 2, label.y + 40, box.y + box.height / 2];
})()
"""
"""Where the axis of learning rates is: x, its upper end, and its middle."""
#: The first place right of an axis, at its middle or below, without a line of a trial, which a click would open.
EMPTY = """
(([x, y]) => {
  const trial = (at, down) => document.elementFromPoint(at, down)?.ariaLabel?.includes('trial');
  const [steps, rows] = [[...Array(60).keys()], [...Array(40).keys()]];
  const places = rows.flatMap((row) => steps.map((step) => [x + 25 + step, y + 5 * row]));
  return places.find(([at, down]) => ![-2, 0, 2].some((by) => trial(at + by, down)));
})([%s, %s])
"""
FADED = (
    "[...document.querySelectorAll('#%s .mark-%s path')].filter((mark) => Number(mark.getAttribute('%s')) < 0.1).length"
)
CHIP = "document.querySelector('#%s .key [data-group]')"


async def hovered(tab: Tab, key: str) -> str:
    """Move the pointer onto the first point of a figure; return what is shown of it."""
    x, y = await tab.evaluate(PLACE % key)
    for step in (3, 0):
        await tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)
    await tab.wait_for(f"{LABEL} !== ''")
    return str(await tab.evaluate(LABEL))


async def check_figure(tab: Tab, key: str) -> None:
    """A plot says what a point is when the pointer is on it, its legend hides a group, its data can be saved."""
    assert "c0" in await hovered(tab, key)
    shown = f"document.querySelectorAll('#{key} .plot .mark-symbol path').length"
    before = await tab.evaluate(shown)
    await tab.evaluate(f"{CHIP % key}.click()")
    await tab.wait_for(f"{shown} < {before}")
    await tab.evaluate(f"{CHIP % key}.click()")
    await tab.wait_for(f"{shown} === {before}")
    saved = await tab.evaluate(SAVED % key)
    assert saved.startswith(("trial,", "rung,")) and saved.count("\n") > 20, saved[:200]


async def check_page(tab: Tab, page: Path, width: int, dark: bool) -> None:
    """Open the page, draw everything, use its filters and sorting, and listen for complaints."""
    await tab.open(page, width=width, height=900, dark=dark)
    await tab.wait_for("document.documentElement.dataset.unpacked === 'yes'")
    await tab.evaluate("drawAll().then(() => true)")
    assert await tab.evaluate(PLOTS) > 8
    assert await tab.evaluate(f"{DRAWN}.every((plot) => plot.dataset.drawn === 'yes' && plot.querySelector('svg'))")
    assert await tab.evaluate(OVERFLOW) <= 0
    background = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 18, 17)") == dark

    points, rows = await tab.evaluate(SHOWN), await tab.evaluate(FOUND)
    await tab.evaluate("document.querySelector('.toolbar [data-status=early_stopped]').click()")
    await tab.wait_for(f"{SHOWN} < {points}")
    assert await tab.evaluate(FOUND) < rows
    await tab.evaluate("document.querySelector('.toolbar [data-status=early_stopped]').click()")
    await tab.wait_for(f"{SHOWN} === {points}")
    assert await tab.evaluate(FOUND) == rows

    for key in ("curvature-against-gamma", "calibration-against-trace", "scheduler-audit"):
        await check_figure(tab, key)

    await check_trials(tab, fine=width > 500)
    first = "document.querySelector('#trials tbody td').textContent"
    await tab.evaluate("document.querySelector('#trials th button').click()")
    assert await tab.evaluate(first) == "c00000"
    await tab.evaluate("document.querySelector('#theme').click()")
    assert await tab.evaluate("document.documentElement.dataset.theme") == ("light" if dark else "dark")
    assert tab.complaints() == []


async def check_trials(tab: Tab, fine: bool) -> None:
    """A click on a point opens its trial, axes can be chosen, and a range on an axis is one of the table of trials."""
    said = await hovered(tab, "calibration-against-trace")
    x, y = await tab.evaluate(PLACE % "calibration-against-trace")
    for event in ("mousePressed", "mouseReleased"):
        await tab.call("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)
    await tab.wait_for("document.querySelector('#trial').open")
    assert said.startswith(await tab.evaluate("document.querySelector('#trial h2').textContent"))
    assert "epoch" in await tab.evaluate("document.querySelector('#trial dl').textContent")
    await tab.evaluate("document.querySelector('#trial .close').click()")
    assert not await tab.evaluate("document.querySelector('#trial').open")
    await tab.evaluate(CHOOSE)
    await tab.wait_for("document.querySelector('#any-two .role-axis-title text').textContent === 'lr'")
    if fine:
        await check_brush(tab)
    assert await tab.evaluate("document.querySelector('#trials td:nth-child(4)').dataset.label") == "epoch"
    assert await tab.evaluate("document.querySelector('#trials thead button').offsetHeight > 0"), "it can be sorted"


async def check_brush(tab: Tab) -> None:
    """A range dragged over one axis leaves its trials in the table and in other plots, until it is clicked away."""
    rows = await tab.evaluate(FOUND)
    some = f"0 < {FOUND} && {FOUND} < {rows}"
    all_of_them = f"{FADED % ('calibration-against-trace', 'symbol', 'opacity')} === 0"
    for _ in range(4):  # figures that are drawn meanwhile move the axis
        x, top, middle = await tab.evaluate(AXIS)
        moves = [("mousePressed", x - 15, top), ("mouseMoved", x, middle - 5), ("mouseMoved", x + 15, middle)]
        for event, across, down in [*moves, ("mouseReleased", x + 15, middle)]:
            place = {"x": across, "y": down, "button": "left", "buttons": 1, "clickCount": 1}
            await tab.call("Input.dispatchMouseEvent", type=event, **place)
        # A second drag would move the range, so the first one gets time to show its effect.
        with suppress(AssertionError):
            await tab.wait_for(some, 8)
            break
    await tab.wait_for(some)
    await tab.wait_for(f"!({all_of_them})")
    beside, level = await tab.evaluate(EMPTY % (x, middle))
    for event in ("mousePressed", "mouseReleased"):
        await tab.call("Input.dispatchMouseEvent", type=event, x=beside, y=level, button="left", clickCount=1)
    await tab.wait_for(f"{FOUND} === {rows} && {all_of_them}")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_the_report_opens_draws_and_reacts(quickstart_folder: Path, tmp_path: Path, width: int, dark: bool) -> None:
    page = quickstart_folder / "report.html"

    async def run() -> None:
        async with chromium(tmp_path / "profile") as tab:
            await check_page(tab, page, width, dark)

    asyncio.run(run())


def test_every_figure_of_the_losses_draws_and_says_its_values(losses_folder: Path, tmp_path: Path) -> None:
    page = losses_folder / "report.html"

    async def run() -> None:
        async with chromium(tmp_path / "profile") as tab:
            await tab.open(page, width=1280, height=900)
            await tab.evaluate("drawAll()")
            assert await tab.evaluate(f"{DRAWN}.every((plot) => plot.querySelector('svg'))")
            for key in ("calibration-against-trace", "trace-regularisation"):
                await check_figure(tab, key)
            cells = "document.querySelectorAll('#coverage-nu-map .mark-rect.role-mark path').length"
            assert await tab.evaluate(cells) == 4 * 9
            bars = "document.querySelectorAll('#importance .mark-rect.role-mark path').length"
            assert await tab.evaluate(bars) == 7
            assert tab.complaints() == []

    asyncio.run(run())


def test_a_report_of_a_thousand_trials_opens_and_draws(tmp_path: Path) -> None:
    page = write_report(write_sweep(tmp_path / "thousand", configurations=1000, keep_predictions="finished"))

    async def run() -> None:
        async with chromium(tmp_path / "profile") as tab:
            await check_page(tab, page, 1280, dark=False)
            scroll = "document.querySelector('#trials .scroll')"
            await tab.evaluate(f"{scroll}.scrollTo(0, {scroll}.scrollHeight)")
            await tab.wait_for(f"{ROWS} > 100")

    asyncio.run(run())
