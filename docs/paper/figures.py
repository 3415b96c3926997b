"""Draw the paper's figures from the project's measured tables into PNG files: `python docs/paper/figures.py`."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # before pyplot is imported: no display is needed
from matplotlib import pyplot

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent / "guides" / "measured.md"
STATISTICS = HERE.parents[1] / "tests" / "benchmarks" / "STATISTICS.md"


def peers() -> dict[str, tuple[float, float, float]]:
    """Return median, minimum and maximum of each tool's wall time [s]."""
    text = MEASURED.read_text("utf-8").partition("| tool | wall time |")[2]
    rows = re.findall(r"^\| ([^|]+) \| ([\d.]+) s \(([\d.]+) … ([\d.]+)\)", text, re.MULTILINE)
    return {re.sub(r", two processes.*", "", name): (float(a), float(b), float(c)) for name, a, b, c in rows}


def power() -> dict[int, dict[int, float]]:
    """Return seeds → spreads by which three quarters are worse → share of these that was found to be worse."""
    text = STATISTICS.read_text("utf-8").partition("## best set")[2].partition("\n## ")[0]
    condition = r"equal spreads, k = 8, n = (\d); three quarters worse by (\d) spreads"
    pattern = condition + r" \| [\d,]+ \|[^|]*\| holds \| ([\d.]+)"
    shares: dict[int, dict[int, float]] = {}
    for seeds, spreads, share in re.findall(pattern, text):
        shares.setdefault(int(seeds), {})[int(spreads)] = float(share)
    return shares


def main() -> None:
    """Draw both figures."""
    figure, axes = pyplot.subplots(figsize=(6.5, 2.4), layout="constrained")
    for at, (median, low, high) in enumerate(reversed(peers().values())):
        axes.barh(at, median, xerr=[[median - low], [high - median]], color="#4c78a8", capsize=3)
    axes.set_yticks(range(len(peers())), list(reversed(peers())))
    axes.set(xlabel="wall time [s]", xlim=(0, None))
    _save(figure, "peers.png")
    figure, axes = pyplot.subplots(figsize=(5, 2.8), layout="constrained")
    for seeds, shares in sorted(power().items()):
        axes.plot(list(shares), list(shares.values()), marker="o", label=f"{seeds} seeds")
    axes.set(xscale="log", xlabel="worse by [standard deviations of a seed]", ylabel="share found", ylim=(0, 1.03))
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    _save(figure, "power.png")


def _save(figure: pyplot.Figure, name: str) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(
        HERE / name, dpi=160, metadata={"Software": None}
    )  # the same bytes with every version of matplotlib that draws alike
    pyplot.close(figure)


if __name__ == "__main__":
    main()
