"""Paths that divide trials are checked against the space, and strata against what their scheduler takes."""

import pytest

from sweeper.core.errors import InvalidSearchSpace
from sweeper.planning.plan import plan
from sweeper.space.checks import samples_needed, size_faults, stratum_sizes
from sweeper.space.loading import load_spec

SPACE = {
    "dataset": "digits",
    "scheduler": {"name": "asha", "max_epochs": 9, "grace_epochs": 1, "within": ["architecture", "loss"]},
    "samples": 5,
    "space": {
        "loss": {
            "grid": [
                "cross_entropy",
                {"name": "selective_risk", "coverage": 0.8, "nu": 0.1, "score": {"grid": ["msp", "margin"]}},
            ]
        },
        "architecture": {"grid": ["mlp", "resnet8"]},
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 0.3]}},
    },
}


def refused(*overrides: str) -> str:
    with pytest.raises(InvalidSearchSpace) as caught:
        load_spec(SPACE, overrides)
    assert len(caught.value.faults) == 1
    return str(caught.value.faults[0])


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("scheduler.within=[network]", "'network' is not a path of the space"),
        ("scheduler.within=[losss]", "did you mean 'loss'"),
        ("scheduler.within=[loss.skore]", "no loss of the space has 'skore'"),
        ("scheduler.within=[optimizer.lr]", "every trial would be its own stratum"),
        ("scheduler.within=[loss, loss]", "'loss' is named twice"),
        ("scheduler.within=[]", "within names no path"),
        ("scheduler.within=3", "must be a list of texts"),
        ("keep={best: 0}", "must be greater than or equal to 1"),
        ("keep={best: 2, per: [losss]}", "did you mean 'loss'"),
        ("keep={per: [optimizer.lr]}", "drawn from a range"),
        ("keep={per: [loss, loss]}", "'loss' is named twice"),
        ("keep={best: 2, by: [loss]}", "unknown key 'by'"),
    ],
)
def test_a_path_that_divides_nothing_is_refused(setting, sentence):
    assert sentence in refused(setting)


def test_strata_that_are_too_small_are_refused_with_their_size():
    text = refused("samples=1", "scheduler.within=[architecture, loss.score]")
    assert "the stratum mlp, no score has 1 trial (and 5 more of 6 strata)" in text
    assert "asha with these settings needs 3 to compare" in text


def test_the_number_of_samples_that_suffices_is_named():
    settings = ["scheduler.within=[architecture, loss.score]"]
    too_few = load_spec(SPACE, settings).model_copy(update={"samples": 1})
    needed = samples_needed(too_few)
    assert needed is not None and f"raise samples to {needed}, " in refused("samples=1", *settings)
    for samples, small in ((needed, False), (needed - 1, True)):
        assert bool(size_faults(too_few.model_copy(update={"samples": samples}))) is small


def test_sizes_are_exact_where_configurations_follow_from_the_space():
    assert stratum_sizes(load_spec(SPACE)) == {
        "mlp, cross_entropy": 5,
        "resnet8, cross_entropy": 5,
        "mlp, selective_risk": 10,
        "resnet8, selective_risk": 10,
    }


def test_one_path_may_be_written_as_text_and_a_resolved_file_gives_the_same_sweep():
    spec = load_spec(SPACE, ["scheduler.within=loss"])
    assert spec.scheduler.settings["within"] == ["loss"]
    assert load_spec(spec.resolved()) == spec
    assert "within" not in load_spec(SPACE, ["scheduler={max_epochs: 9}"]).resolved()["scheduler"]


def test_a_plan_counts_the_survivors_of_each_stratum():
    found = plan(load_spec(SPACE))
    assert list(found.strata) == list(stratum_sizes(load_spec(SPACE)))
    last = max(found.reaching)
    assert sum(s.reaching[last].mean for s in found.strata.values()) == pytest.approx(found.reaching[last].mean)
    assert all(stratum.reaching[last].low >= 1 for stratum in found.strata.values())
    said = dict(found.lines())
    assert said["within mlp, cross_entropy"].startswith("5 trials, ") and said["within mlp, cross_entropy"].endswith(
        "reach epoch 9"
    )
    assert not plan(load_spec(SPACE, ["scheduler={max_epochs: 9}"])).strata


def test_a_plan_of_a_searched_space_takes_random_configurations_for_its_strata():
    space = {**SPACE["space"], "loss": {"choice": ["cross_entropy", "brier"]}, "architecture": "mlp"}
    spec = load_spec({**SPACE, "space": space, "searcher": "optuna", "samples": 30})
    sizes = stratum_sizes(spec)
    assert sum(sizes.values()) == pytest.approx(30) and set(sizes) == {"mlp, cross_entropy", "mlp, brier"}
    assert set(plan(spec).strata) == set(sizes)


@pytest.mark.parametrize("keep", ["3", "{best: 3}", "{best: 2, per: loss}", "{per: [loss, architecture]}"])
def test_what_is_kept_is_written_down_and_read_again(keep):
    spec = load_spec(SPACE, [f"keep={keep}"])
    assert load_spec(spec.resolved(), []).keep == spec.keep
    assert spec.keep.best == (1 if keep.startswith("{per") else 2 if "2" in keep else 3)
