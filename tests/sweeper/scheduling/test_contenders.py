"""Seeds that join a sweep: which configurations get which."""

import itertools
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sweeper.core.domains.choice import OneMember
from sweeper.core.domains.loguniform import LogUniform
from sweeper.core.domains.nodes import Constant
from sweeper.core.domains.randint import RandInt
from sweeper.core.domains.uniform import Uniform
from sweeper.core.errors import SweeperError
from sweeper.core.ids import FIRST_ADDED, ReplicateSeeds
from sweeper.journal.records import Added, AddedSeed, Attempt, Body, Decision, Drawn, Record, Reported
from sweeper.journal.state import SweepState
from sweeper.scheduling.contenders import FIRST_SEEDS, FinalStage, audit_rounds, requested, trainings
from sweeper.scheduling.lines import LINE_SEEDS, Line, spread
from sweeper.space.loading import build_spec
from sweeper.space.spec import final_stage
from trainables.registry.configuration import Configuration
from trainables.worker.trial_reports import TrialReport

SEEDS = ReplicateSeeds(0, 1, common=True)


def ended(configuration: int, value: float, status: str = "completed") -> Reported:
    kind = {"completed": "complete", "early_stopped": "stop", "failed": "fail"}[status]
    report = TrialReport(configuration=configuration, epoch=9, objective=value, device="cpu", wall_seconds=1.0)
    return Reported(report, 1, status, Decision(kind, "test", 9, value))  # type: ignore[arg-type]


def sweep(*bodies: Body, count: int = 4) -> SweepState:
    state = SweepState(count)
    values = [Configuration({"loss": {"name": "focal"}, "place": index}) for index in range(count)]
    for sequence, body in enumerate([Drawn(0, values), *bodies]):
        state.apply(Record(sequence, 0.0, body))
    return state


def follow(state: SweepState, *bodies: Body) -> None:
    for body in bodies:
        state.apply(Record(state.sequence + 1, 0.0, body))


def test_those_that_reached_the_end_get_what_they_lack_and_no_more() -> None:
    state = sweep(ended(0, 0.1), ended(1, 0.2, "early_stopped"), ended(2, 0.3), ended(3, 0.4, "failed"))
    for wanted in (3, 5, 5):
        bodies = requested(state, SEEDS, wanted)
        follow(state, *bodies)
        had = sorted((each.added.trial, each.added.replicate) for each in state.added if each.added)
        assert had == sorted(itertools.product((0, 2), range(1, wanted)))
    seeds = {(s.trial, s.replicate): s for each in state.added if (s := each.added)}
    assert [each.configuration for each in state.added] == [FIRST_ADDED + at for at in range(8)]
    for replicate in range(1, 5):
        one, other = seeds[0, replicate], seeds[2, replicate]
        assert one.seed == other.seed == ReplicateSeeds(0, 5, common=True).of(0)[replicate]
        assert (one.values, other.values) == (state.configurations[0], state.configurations[2])
    assert requested(state, SEEDS, 4) == []


def test_named_ones_get_them_wherever_they_ended() -> None:
    state = sweep(ended(0, 0.1), ended(1, 0.2, "early_stopped"))
    (body,) = requested(state, SEEDS, 2, [1])
    assert isinstance(body, Added) and [seed.trial for seed in body.seeds] == [1]
    with pytest.raises(SweeperError, match="c00009"):
        requested(state, SEEDS, 2, [9])


SPACE = {
    "dataset": "digits",
    "scheduler": {"name": "none", "max_epochs": 9},
    "samples": 16,
    "replicates": {"count": 1, "at_most": 6, "seeds": "common"},
    "which": ["gamma"],
    "space": {
        "loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"uniform": [0.5, 10]}}]},
        "architecture": {"choice": ["mlp", "resnet8"]},
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "batch_size": 128},
    },
}


WIDE = {
    "loss": {
        "one_of": [
            "cross_entropy",
            {"name": "focal", "gamma": {"uniform": [0.5, 10]}, "smoothing": {"uniform": [0.02, 0.2]}},
        ]
    },
    "architecture": {"choice": ["mlp", "resnet8"]},
    "optimizer": {
        "name": "sgd", "lr": {"loguniform": [0.01, 0.3]}, "schedule": {"choice": ["cosine", "constant"]},
        "batch_size": 128,
    },
}  # fmt: skip


class Played:
    """A sweep whose trials are not trained: their values are drawn, networks and losses differing by factors."""

    def __init__(
        self, seed: int, resnet: float = 0.5, focal: float = 3.0, which: Sequence[str] | Mapping[str, str] = ()
    ) -> None:
        self.rng, self.factors = random.Random(seed), {"resnet8": resnet, "focal": focal}
        self.wide = bool(which)
        self.spec = build_spec({**SPACE, "seed": seed, **({"which": which, "space": WIDE} if which else {})})
        self.stage = final_stage(self.spec)
        self.state, self.records = SweepState(self.spec.samples), list[Record]()
        drawn = [self.configuration() for _ in range(self.spec.samples)]
        self.add(Attempt(1, "here", 1, space=self.spec.resolved()), Drawn(0, drawn))
        for index, values in enumerate(drawn):
            status = self.rng.choice(["completed", "completed", "early_stopped", "failed"])
            self.add(ended(index, self.value(values), status))

    def configuration(self) -> Configuration:
        gamma = {"name": "focal", "gamma": self.rng.uniform(0.5, 10)}
        if self.wide:
            gamma["smoothing"] = self.rng.uniform(0.02, 0.2)
        loss = self.rng.choice([{"name": "cross_entropy"}, gamma])
        optimizer = {"name": "sgd", "lr": self.rng.random(), "schedule": "cosine"}
        network = {"name": self.rng.choice(["mlp", "resnet8"])}
        return Configuration({"loss": loss, "architecture": network, "optimizer": optimizer})

    def value(self, values: object) -> float:
        named = [part["name"] for part in values.values() if isinstance(part, Configuration)]  # type: ignore[attr-defined]
        worth = 0.1 * self.factors.get(named[0], 1) * self.factors.get(named[1], 1)
        return worth * self.rng.lognormvariate(0, 0.1)

    def add(self, *bodies: Body) -> None:
        for body in bodies:
            self.records.append(Record(len(self.records), 0.0, body))
            self.state.apply(self.records[-1])

    def play(self) -> list[list[AddedSeed]]:
        """Train round after round; return them."""
        rounds = list[list[AddedSeed]]()
        while bodies := self.stage.next(self.state):  # type: ignore[union-attr]
            (body,) = bodies
            self.add(body)
            rounds.append([*body.seeds])
            for seed in body.seeds:
                self.add(ended(seed.configuration, self.value(seed.values)))
        return rounds


@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_each_level_get_common_seeds_until_questions_are_settled(seed: int) -> None:
    played = Played(seed)
    trials, rounds = dict(played.state.trials), played.play()
    best: dict[str, tuple[int, float, int]] = {}
    for index, trial in trials.items():
        rank = (trial.status != "completed", trial.objective or 0.0, index)
        for part in ("architecture", "loss"):
            name = played.state.configurations[index][part]["name"]
            if trial.status != "failed" and rank < best.get(name, (2, 0.0, 0)):
                best[name] = rank
    contenders = {index for *_, index in best.values()}
    assert {added.trial for added in rounds[0]} == contenders and len(best) == 4
    assert len(rounds[0]) == FIRST_SEEDS * len(contenders)
    line = [added for added in rounds[1] if added.question == "loss.gamma"]
    gammas = {added.values["loss"].get("gamma", 0.0) for added in line}
    assert len(gammas) == 3 and 0.0 in gammas and len({str({**a.values, "loss": 0}) for a in line}) == 1
    had, seeds = defaultdict[int, list[int]](list), dict[int, int]()
    for added in itertools.chain(*rounds):
        had[added.trial].append(added.replicate)
        assert seeds.setdefault(added.replicate, added.seed) == added.seed, "common to all"
    assert all(sorted(numbers) == [*range(1, 1 + len(numbers))] for numbers in had.values())
    assert max(map(len, had.values())) <= 5 and {len(had[a.trial]) for a in line} <= {*range(LINE_SEEDS, 6)}
    _, most = trainings([2, 2], [3], 5)
    assert sum(map(len, rounds)) <= most


def test_what_is_far_behind_is_out_after_the_first_seeds_and_stays_out() -> None:
    for seed in range(3):
        played = Played(seed, resnet=0.2, focal=1.0)
        rounds = played.play()
        worse = {added.trial for added in rounds[0] if added.values["architecture"]["name"] == "mlp"}
        losses = {added.values["loss"]["name"] for added in rounds[0] if added.trial in worse}
        more = [added for added in itertools.chain(*rounds[1:]) if added.question == "network"]
        later = [added for added in more if added.trial in worse]
        assert losses and not later


def test_the_best_of_a_line_counts_for_its_loss_and_network() -> None:
    """A γ of the line can lead; a race of contenders alone would not know that network and loss are still open."""
    played, asked = Played(0), list[dict[str, dict[str, list[str]]]]()

    def racing(values, questions):  # type: ignore[no-untyped-def]
        asked.append(questions)
        return ()

    played.stage = replace(played.stage, racing=racing)  # type: ignore[type-var]
    played.play()
    line = {trial for trials in asked[-1]["loss.gamma"].values() for trial in trials}
    for question in ("loss", "network"):
        assert line <= {trial for trials in asked[-1][question].values() for trial in trials}


def test_each_setting_of_the_data_has_a_race_of_its_own() -> None:
    played = Played(1)
    known = played.state.configurations
    for index, values in known.items():
        known[index] = values.replaced("dataset", {"name": "digits", "label_noise": (0.0, 0.3)[index % 2]})
    rounds = played.play()
    fresh = {added.trial for added in rounds[0]}
    settings = {added.values["dataset"]["label_noise"] for added in rounds[0]}
    assert settings == {0.0, 0.3}
    for question in ("architecture", "loss"):
        for setting in settings:
            own = [a.values for a in rounds[0] if a.values["dataset"]["label_noise"] == setting]
            assert len({values[question]["name"] for values in own}) == 2
    assert len(rounds[0]) == FIRST_SEEDS * len(fresh)
    lines = {added.values["dataset"]["label_noise"] for added in rounds[1] if added.question == "loss.gamma"}
    assert lines == {0.0, 0.3}


def test_every_round_follows_from_the_records_before_it() -> None:
    played = Played(0, resnet=0.9, focal=1.05)
    rounds = played.play()
    assert len(rounds) > 2, "a close race takes further seeds"
    records = [Record.from_bytes(record.to_bytes()) for record in played.records]
    stage_of = lambda space: final_stage(build_spec(space))  # noqa: E731
    assert audit_rounds(stage_of, records, played.spec.samples) == (len(rounds), [])
    moved = [
        r if not isinstance(r.body, Added) else Record(r.sequence, 0.0, replace(r.body, seeds=r.body.seeds[::-1]))
        for r in records
    ]
    checked, differences = audit_rounds(stage_of, moved, played.spec.samples)
    assert checked == len(rounds) and differences


def test_values_are_spread_over_a_domain() -> None:
    assert spread(Uniform(0.0, 6.0), [0.9], 2) == [5.0, 3.0]
    assert spread(LogUniform(1e-3, 1e3), [0.0, 900.0], 1) == [0.01]


def test_several_lines_each_with_all_else_equal() -> None:
    played = Played(3, which=["loss", "gamma", "smoothing", "lr", "schedule"])
    played.play()
    by_question = defaultdict[str, dict[int, AddedSeed]](dict)
    for state in played.state.added:
        if state.added is not None:
            by_question[state.added.question].setdefault(state.added.trial, state.added)
    for path in ("loss.gamma", "loss.smoothing", "optimizer.lr", "optimizer.schedule", "loss.name"):
        line, (part, key) = [added.values for added in by_question[path].values()], path.split(".")
        assert line, path
        assert len({str({**values, part: 0}) for values in line}) == 1, "other parts are the winner's"
        if part == "optimizer":
            assert len({str({**values[part], key: 0}) for values in line}) == 1
    zero = [added.values["loss"] for added in by_question["loss.gamma"].values() if added.values["loss"]["gamma"] == 0]
    assert [loss["name"] for loss in zero] == ["focal"] and zero[0]["smoothing"] > 0, "not cross-entropy"
    trained = {str(s.values) for s in (state.added for state in played.state.added) if s is not None}
    assert len(trained) == len({s.trial for state in played.state.added if (s := state.added) is not None})


def test_each_setting_of_the_data_has_lines_of_its_own_even_without_another_question() -> None:
    line = Line("loss.gamma", {"focal": Uniform(0.0, 6.0)})
    values = [
        Configuration({"loss": {"name": "focal", "gamma": 1.0}, "dataset": {"label_noise": at % 2}}) for at in range(4)
    ]
    state = SweepState(4)
    for sequence, body in enumerate([Drawn(0, values), *(ended(at, 0.1 + at) for at in range(4))]):
        state.apply(Record(sequence, 0.0, body))
    apart = FinalStage("min", SEEDS, 6, lambda values, questions: (), (), [line])
    assert [[*of_one.values()] for of_one in apart.contenders(state)] == [[{"best": 0}], [{"best": 1}]]
    together = replace(apart, lines=[line, Line("dataset.label_noise", {"": Uniform(0.0, 1.0)})])
    assert [[*of_one.values()] for of_one in together.contenders(state)] == [[{"best": 0}]]


def test_a_line_of_whole_numbers_and_of_names_has_only_values_of_the_domain() -> None:
    depth = Line("architecture.depth", {"mlp": RandInt(1, 9)})
    start = Configuration({"architecture": {"name": "mlp", "depth": 2}})
    values = [of["architecture"]["depth"] for of in depth.members([start])]
    assert values[0] == 2 and len(values) == 3 and all(isinstance(value, int) for value in values)
    score = Line(
        "loss.score", {"selective_risk": OneMember((Constant("msp"), Constant("margin"), Constant("entropy")))}
    )
    start = Configuration({"loss": {"name": "selective_risk", "score": "margin"}})
    names = [of["loss"]["score"] for of in score.members([start])]
    assert names == ["margin", "msp", "entropy"]
    assert score.members([Configuration({"loss": {"name": "brier"}})]) == []


def test_a_line_on_each_network_has_the_values_of_the_winners_and_all_else_of_its_best() -> None:
    played = Played(3, which={"gamma": "each"})
    played.play()
    added = [state.added for state in played.state.added if state.added is not None]
    lines = {f"loss.gamma on {network}": network for network in ("mlp", "resnet8")}
    tried = dict[str, set[float]]()
    for question, network in lines.items():
        values = [one.values for one in added if one.question == question]
        assert {one["architecture"]["name"] for one in values} == {network}
        assert len({str(one["optimizer"]) for one in values}) == 1, "all else is the network's best"
        tried[network] = {one["loss"].get("gamma", 0.0) for one in values}
    # The winner has first seeds already, so its own value need not be among the added ones.
    assert len(tried["mlp"] & tried["resnet8"]) >= 2


def test_a_line_on_each_network_can_be_asked_for_after_the_line_on_the_winners() -> None:
    played = Played(3, which=["gamma"])
    played.play()
    before = len(played.state.added)
    played.spec = build_spec({**played.spec.resolved(), "which": {"gamma": "each"}})
    played.stage = final_stage(played.spec)
    networks = {seed.values["architecture"]["name"] for of_one in played.play() for seed in of_one}
    assert len(played.state.added) > before and len(networks) >= 1
    assert not played.stage.next(played.state), "the stage comes to an end"  # type: ignore[union-attr]
