"""What the first screen says of single trials, as data: for the tags of trackers and the cards of exported models.

Both come from the screen's own answers, so they cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.judging.question import LEVEL, Verdict
from sweeper.reporting.answering.answers import Answer, Finalist, FirstScreen
from sweeper.reporting.first_screen import first_screen
from sweeper.results import Results
from sweeper.results.leaderboard import leaderboard
from sweeper.results.listing import overview

#: Value of a tag without a verdict, and the tags of a run that is no finalist any more.
NONE = "none"
NO_FINALIST = {"verdict": NONE, "verdict_deployed": NONE}

#: Fields of a verdict on a card.
SHOWN = ("code", "rival", "estimate", "low", "high", "limited_by", "seeds_needed")


@dataclass(frozen=True)
class Standing:
    """What the first screen says of one finalist.

    Attributes:
        place: setting of the data set; empty if it does not vary.
        metric: the objective, by which finalists are compared.
        code: the finalist's standing by it: best, alike, same, worse, stopped or unknown.
        most_lost: for the leader, how much another finalist can be better; None if unknown.
        relative: whether `most_lost` is a share.
        finalists: number of finalists.
        seeds: smallest number of seeds of a finalist.
        fresh: whether these seeds selected nothing.
        level: how sure the codes are.
        scaled: whether the second question, on test NLL, is asked with temperature scaling.
        deployed: the standing by test NLL; empty without stored predictions.
        verdict: the judge's verdict by test NLL against the nearest rival; None without.
    """

    place: str
    metric: str
    code: str
    most_lost: float | None
    relative: bool
    finalists: int
    seeds: int
    fresh: bool
    level: float
    scaled: bool
    deployed: str
    verdict: Verdict | None

    @property
    def tags(self) -> dict[str, str]:
        """The tags of a finalist's run."""
        return {"verdict": self.code, "verdict_deployed": self.deployed or NONE}

    @property
    def facts(self) -> dict[str, object]:
        """The standing as plain JSON values; a verdict without a rival has none."""
        facts = {name: value for name, value in vars(self).items() if name != "verdict"}
        if self.verdict is None or not self.verdict.rival:
            return {**facts, "verdict": None}
        shown = {name: getattr(self.verdict, name) for name in SHOWN}
        return {**facts, "verdict": {**shown, "seeds": len(self.verdict.seeds)}}


def standings(screen: FirstScreen) -> dict[str, Standing]:
    """Return the standing of each finalist, by trial."""
    return {one.trial: _standing(answer, one) for answer in screen.answers for one in answer.finalists}


def standings_of(results: Results) -> Mapping[str, Standing]:
    """Return the standings on the first screen of a sweep."""
    with results.snapshot() as frozen:
        return standings(first_screen(frozen, leaderboard(frozen), overview(frozen)))


def _standing(answer: Answer, finalist: Finalist) -> Standing:
    judged, leads = answer.deployed, finalist.trial == answer.leader.trial
    known = judged is not None and finalist.used is not None
    return Standing(
        answer.place, answer.objective.metric, finalist.standing, answer.most_lost if leads else None,
        answer.relative, len(answer.finalists), answer.seeds, answer.fresh, LEVEL,
        judged is not None and judged.scaled, finalist.used.standing if known and finalist.used else "",
        judged.verdicts.of.get(finalist.trial) if judged is not None else None,
    )  # fmt: skip
