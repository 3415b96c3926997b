"""A trial's page has what the terminal shows, and its curves."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sweeper.reporting.trial_page import write_trial_page
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.trial_facts import trial_facts
from tests.sweeper.reporting.test_figures import frame
from tests.sweeper.reporting.test_page import Page


def test_the_best_trial_on_a_page(quickstart_folder: Path, tmp_path: Path) -> None:
    results = Results(quickstart_folder)
    html = write_trial_page(results, None, tmp_path / "trial.html").read_text("utf-8")
    page, facts = Page(html), trial_facts(results, None)
    assert facts.trial == leaderboard(results).best["trial"]  # type: ignore[index]
    for key, grid in (("metrics", facts.metrics), ("posthoc", facts.posthoc), ("decisions", facts.decisions)):
        assert grid is not None
        words = "".join(page.sections[key].split())
        assert all("".join(cell.replace("λ_", "λ").split()) in words for row in grid.rows for cell in row)
    epochs = frame(quickstart_folder, "epochs").query("trial == @facts.trial").sort_values(["replicate", "epoch"])
    first = json.loads(re.search(r'id="panel-0">(.*?)</script>', html)[1])  # type: ignore[index]
    drawn = [line["y"] for line in first["data"]]
    assert drawn == [list(rows["train_loss"]) for _, rows in epochs.groupby("replicate")]
    assert "Test data" in page.sections["curves"]


def test_a_trial_that_waits_has_a_page_without_curves(live_folder: Path, tmp_path: Path) -> None:
    waiting = frame(live_folder, "trials").query("status == 'waiting'").iloc[0]["trial"]
    page = Page(write_trial_page(Results(live_folder), waiting, tmp_path / "trial.html").read_text("utf-8"))
    assert {key for key in page.sections if key} == {"configuration", "files"}
