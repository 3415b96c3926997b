"""One trial on one screen, with the numbers of the tables."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from sweeper.core.errors import SweeperError
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.trial_facts import trial_facts, trial_view
from tests.sweeper.changed_tables import change
from tests.sweeper.tables_by_pandas import frame


def printed(folder: Path, asked: str, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(trial_view(trial_facts(Results(folder), asked)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_finished_trial_on_one_screen(quickstart_folder: Path) -> None:
    best = leaderboard(Results(quickstart_folder)).best
    assert best is not None
    text = printed(quickstart_folder, str(best["trial"]))
    lines = text.splitlines()
    assert len(lines) <= 45 and all(len(line) <= 100 for line in lines)
    assert lines[0].startswith(f"quickstart · {best['trial']} · finished after 27 epochs")
    assert "2 replicates, seeds " in text and str(best["loss"]) in text
    decisions = frame(quickstart_folder, "decisions").query("trial == @best['trial']")
    assert text.count(" continue ") + text.count(" complete ") == len(decisions) == 3
    last = frame(quickstart_folder, "evaluations").query("trial == @best['trial'] and epoch == 27")
    for _, rows in last.groupby("split"):
        assert f"{rows['nll'].mean():.3f}"[:4] in text
    assert "post-hoc, test data" in text and "uncalibrated" in text and "temperature" in text
    assert "val, epoch 9" in text and "val, epoch 27" in text and "test, epoch 27" in text and "…" not in text


def test_a_method_that_could_not_be_fitted_says_why_and_a_weighted_metric_is_no_method(
    quickstart_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(quickstart_folder, folder, symlinks=True)
    nothing = {f"posthoc_temperature_{name}": math.nan for name in ("ece", "nll")}
    change(folder, "evaluations", lambda rows: rows.assign(posthoc_temperature_unavailable="all of class 0", **nothing))
    name = str(leaderboard(Results(quickstart_folder)).best["trial"])  # type: ignore[index]
    before, after = (trial_facts(Results(path), name).posthoc for path in (quickstart_folder, folder))
    assert before is not None and after is not None
    assert "reason" not in before.headings and not any("weighted" in row[0] for row in before.rows)
    reasons = {row[0]: row[after.headings.index("reason")] for row in after.rows}
    assert reasons["temperature"] == "all of class 0" and not reasons["uncalibrated"]


def test_a_failed_trial_says_why(quickstart_folder: Path) -> None:
    failed = frame(quickstart_folder, "trials").query("status == 'failed'").iloc[0]
    text = printed(quickstart_folder, failed["trial"])
    assert " · failed after " in text and "NonFiniteLoss" in text


def test_its_number_will_do_and_another_name_is_refused(quickstart_folder: Path) -> None:
    assert " · c00007 · " in printed(quickstart_folder, "7")
    with pytest.raises(SweeperError, match="quickstart has no trial 'c00099'") as raised:
        trial_facts(Results(quickstart_folder), "c00099")
    assert "c00000 … c00047" in str(raised.value)
    with pytest.raises(SweeperError, match="no trial '99'"):
        trial_facts(Results(quickstart_folder), "99")
