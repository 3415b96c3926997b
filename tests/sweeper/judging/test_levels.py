"""A level's verdict is that of its candidates."""

import numpy as np

from sweeper.judging.judge import judge
from sweeper.judging.levels import in_play, levels
from sweeper.judging.question import BETTER, NOT_COMPARED, OPEN, WORSE, Data, Question

LOSSES = {"ce": ["a", "d"], "focal": ["b"], "brier": ["c"]}
NETWORKS = {"resnet8": ["a", "b", "c"], "mlp": ["d"]}


def values(means: dict[str, float]) -> dict[str, dict[int, float]]:
    random = np.random.default_rng(1)
    return {name: dict(enumerate((mean + 0.01 * random.standard_normal(4)).tolist())) for name, mean in means.items()}


def test_levels_follow_their_candidates() -> None:
    verdicts = judge(
        Question([*"abcd"], "nll", relative=True), Data(values({"a": 0.2, "b": 0.201, "c": 0.6, "d": 0.5}))
    )
    losses, networks = levels(verdicts, LOSSES), levels(verdicts, NETWORKS)
    assert losses.code == OPEN and {*losses.named(OPEN)} == {"ce", "focal"} and losses.codes["brier"] == WORSE
    assert (networks.leader, networks.code, networks.codes["mlp"]) == ("resnet8", BETTER, WORSE)
    assert {*in_play(verdicts, {"loss": LOSSES, "network": NETWORKS})} == {"a", "b"}
    # A single loss asks nothing about losses, so nothing needs more seeds.
    assert in_play(verdicts, {"network": NETWORKS}) == []
    assert levels(verdicts, {"ce": ["a"]}).code == NOT_COMPARED
