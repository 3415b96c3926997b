"""The view of replays in a terminal: a line for each candidate, and what the figures mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sweeper.analysis.replay.curves import read_curves
from sweeper.analysis.replay.replaying import Estimate, Kept, replay
from sweeper.analysis.replay.request import candidates, described, varying_names
from sweeper.results import Results

SAID = ("scheduler", "within", "objective")
"""What a candidate is; what all candidates agree in is said once, below the table."""

MEASURED = ("epochs", "winner kept", "strata kept", "their winners", "regret")


@dataclass(frozen=True)
class Replayed:
    """What replays gave, and how it is shown."""

    kept: list[Kept]
    look: RenderableType


def what_if(
    results: Results,
    schedulers: Sequence[str] = (),
    within: Sequence[str] = (),
    objectives: Sequence[str] = (),
    *,
    orders: int = 200,
    trials: int | None = None,
    workers: int = 2,
    by: str | None = None,
    judge: str | None = None,
    seed: int = 0,
) -> Replayed:
    """Replay a fully trained sweep.

    Args:
        results: its tables.
        schedulers: what to replay, as YAML; see `candidates`.
        within: strata to replay, paths with commas or `none`.
        objectives: metrics to compare by.
        orders: how many random orders.
        trials: of each order; all by default.
        workers: trials that run at once.
        by: the paths that make the strata counted here, with commas; by default architecture and loss, where they vary.
        judge: what a trial is worth.
        seed: of the orders.

    Raises:
        SweeperError: the sweep cannot be replayed so; the sentence says why.
    """
    with results.snapshot() as found:
        what = candidates(found, schedulers, within, objectives)
        curves, strata = read_curves(found), tuple(by.split(",")) if by else varying_names(found)
        kept = replay(curves, what, by=strata, orders=orders, samples=trials, workers=workers, seed=seed, judge=judge)
        size, valued = trials or len(curves.trials), curves.judge(judge)
    return Replayed(kept, view(kept, orders=orders, size=size, by=strata, judge=valued, left_out=curves.left_out))


def view(
    kept: Sequence[Kept], *, orders: int, size: int, by: Sequence[str], judge: str, left_out: int
) -> RenderableType:
    """Return replays as text for a terminal.

    Args:
        kept: of each candidate.
        orders: how many were played.
        size: trials of each.
        by: what makes strata here.
        judge: what trials are worth.
        left_out: trials that failed or never ended.
    """
    said = [tuple(described(each.candidate)) for each in kept]
    common = [len(set(column)) == 1 and len(kept) > 1 for column in zip(*said, strict=True)]
    table = Table(box=None, pad_edge=False)
    for name, same in zip(SAID, common, strict=True):
        if not same:
            table.add_column(name, overflow="fold")
    for heading in MEASURED:
        table.add_column(heading, no_wrap=True, justify="right")
    for each, words in zip(kept, said, strict=True):
        table.add_row(
            *(text for text, same in zip(words, common, strict=True) if not same),
            f"{each.epochs.mean:,.0f} ({each.share:.0%})",
            *(percent(estimate) for estimate in (each.winner, each.strata, each.winners)),
            f"{each.regret.mean:.4f} ± {each.regret.high - each.regret.mean:.4f}",
        )
    shared = [f"{name}: {text}" for name, text, same in zip(SAID, said[0], common, strict=True) if same]
    failed = f"; {left_out} trials that failed or never ended are left out" if left_out else ""
    notes = (
        *(["; ".join(shared) + "."] if shared else []),
        f"{orders} random orders of {size} trials, the same for each line; in parentheses 95 % intervals over orders, "
        f"not over seeds or data{failed}.",
        f"Winner: the trial with the best {judge} at its end; kept: it reaches the last epoch. "
        f"Strata: {', '.join(by)}.",
        f"Regret: the difference in {judge} between the survivor with the best objective and the winner.",
    )
    return Group(table, *(Text(note, style="dim") for note in notes))


def percent(estimate: Estimate) -> str:
    """Return e.g. `47 % (40–54)`."""
    low, high = max(0.0, estimate.low), min(1.0, estimate.high)
    return f"{estimate.mean * 100:.0f} % ({low * 100:.0f}–{high * 100:.0f})"


def plain(kept: Kept) -> dict[str, Any]:
    """Return what a candidate kept as plain JSON values."""
    candidate = kept.candidate

    def of(estimate: Estimate) -> dict[str, float]:
        return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}

    return {
        "scheduler": dict(candidate.scheduler),
        "within": list(candidate.within),
        "objective": {"metric": candidate.metric, "mode": candidate.mode},
        "epochs": of(kept.epochs),
        "share_of_full_training": kept.share,
        "winner_kept": of(kept.winner),
        "strata_kept": of(kept.strata),
        "strata_winners_kept": of(kept.winners),
        "regret": of(kept.regret),
        "winner_kept_by_stratum": {name: of(each) for name, each in kept.by_stratum.items()},
    }
