"""A search space file gives a spec with every default filled in, or all of its faults at once."""

import copy
import pickle
import re

import pytest
import yaml

from search_spaces import locate, packaged_files
from sweeper.core.errors import InvalidSearchSpace
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.median_stopping import MedianStopping
from sweeper.space.checks import _line_path
from sweeper.space.configurations import configurations_of
from sweeper.space.loading import build_spec, load_spec
from sweeper.space.spec import lines_of
from tests.sweeper.searches import SPACE, searched_spec
from tests.sweeper.small_registries import MINIMAL, REGISTRIES

TEMPERATURE = {"name": "temperature"}


def _with(**changes):
    return {**copy.deepcopy(MINIMAL), **changes}


def _space(**parts):
    return {**copy.deepcopy(MINIMAL["space"]), **parts}


def _faults(values):
    with pytest.raises(InvalidSearchSpace) as caught:
        build_spec(values, REGISTRIES)
    return {fault.path: f"{fault.rule} | {fault.remedy}" for fault in caught.value.faults}


def test_defaults_are_filled_in():
    spec = build_spec(MINIMAL, REGISTRIES)
    assert spec.dataset == {"name": "digits", "image_size": 8}
    space = spec.resolved()["space"]
    assert space["loss"] == {"name": "focal", "gamma": 3.0}
    assert space["optimizer"] == {"name": "sgd", "lr": 0.1, "momentum": 0.9, "schedule": "constant"}
    assert (spec.samples, spec.replicates.count, spec.replicates.packing) == (1, 1, "sequential")
    assert (spec.objective.metric, spec.objective.mode) == ("val_nll", "min")
    assert spec.evaluation.curvature == {"lanczos_steps": 32, "losses": ["cross_entropy", "training"]}
    assert spec.schedule.rungs == (1, 3, 9)


@pytest.mark.parametrize(
    ("posthoc", "objective", "metric"),
    [
        (["temperature"], None, "val_posthoc_temperature_nll"),
        (["vector", {"name": "temperature", "label": "t"}], {"margin": 0.01}, "val_posthoc_t_nll"),
        (["temperature"], "val_accuracy", "val_accuracy"),
        ([{"name": "temperature", "objective": "ece"}], None, "val_nll"),
        ([{"name": "temperature", "fitted_on": "test"}], None, "val_nll"),
        (["vector"], None, "val_nll"),
    ],
)
def test_without_an_objective_it_is_the_nll_after_temperature_scaling_where_that_is_fitted(posthoc, objective, metric):
    spec = build_spec({**MINIMAL, "evaluation": {"posthoc": posthoc}, "objective": objective})
    assert spec.objective.metric == metric and spec.objective.mode == ("max" if metric == "val_accuracy" else "min")
    assert spec.cross_fitted == ([metric.split("_")[2]] if "posthoc" in metric else [])
    assert build_spec(spec.resolved()) == spec


def test_short_forms():
    evaluation = {"posthoc": "temperature", "curvature": False, "bootstrap": False}
    spec = build_spec(
        _with(replicates=4, scheduler={"name": "none", "max_epochs": 5}, evaluation=evaluation), REGISTRIES
    )
    assert (spec.replicates.count, spec.scheduler.name, spec.schedule.rungs) == (4, "none", (5,))
    assert spec.evaluation.posthoc == [{"name": "temperature", "objective": "nll"}]
    assert (spec.evaluation.curvature, spec.evaluation.bootstrap) == (False, 0)
    named = build_spec(_with(objective="val_accuracy"), REGISTRIES).objective
    assert (named.metric, named.mode) == ("val_accuracy", "max")


def test_schedulers_have_settings_of_their_own_with_defaults():
    ordered = {"order": "canonical", "width": 32}
    median = build_spec(_with(scheduler={"name": "median_stopping", "max_epochs": 9, "grace_epochs": 2}), REGISTRIES)
    assert median.schedule == MedianStopping("val_nll", "min", 9, 2)
    written = {"name": "median_stopping", "max_epochs": 9, "grace_epochs": 2, "min_competitors": 3}
    assert median.resolved()["scheduler"] == written | ordered
    assert build_spec(median.resolved(), REGISTRIES) == median
    asha = build_spec(_with(), REGISTRIES)
    written = {"name": "asha", "max_epochs": 9, "grace_epochs": 1, "reduction_factor": 3}
    assert asha.resolved()["scheduler"] == written | ordered and asha.schedule == Halving("val_nll", "min", 9)


def test_an_order_of_arrival_has_no_width():
    arrival = {"max_epochs": 9, "order": "arrival"}
    spec = build_spec(_with(scheduler=arrival), REGISTRIES)
    assert spec.scheduler.width is None and spec.order(spec.schedule.begin()) is None
    assert build_spec(spec.resolved(), REGISTRIES) == spec
    with pytest.raises(InvalidSearchSpace) as refused:
        build_spec(_with(scheduler={**arrival, "width": 8}), REGISTRIES)
    assert [fault.path for fault in refused.value.faults] == ["scheduler.width"]


def test_a_scheduler_that_stops_nothing_takes_no_notice_of_others_settings():
    old = {"name": "none", "max_epochs": 5, "grace_epochs": 1, "reduction_factor": 3}
    spec = build_spec(_with(scheduler=old), REGISTRIES)
    assert spec == build_spec(_with(scheduler={"name": "none", "max_epochs": 5}), REGISTRIES)
    assert spec.resolved()["scheduler"] == {"name": "none", "max_epochs": 5, "order": "canonical", "width": 32}


def test_numbers_take_their_hyperparameters_type():
    space = _space(
        loss={"name": "focal", "gamma": {"choice": [1, 2]}},
        architecture={"name": "mlp", "width": {"quniform": [16.0, 64, 16]}},
        optimizer={"name": "sgd", "lr": {"randint": [1, 3]}, "milestones": [3, 6]},
    )
    spec = build_spec(_with(space=space, samples=2), REGISTRIES)
    space = spec.resolved()["space"]
    members = space["loss"]["gamma"]["choice"]
    assert [type(m) for m in members] == [float, float]
    assert [type(v) for v in space["architecture"]["width"]["quniform"]] == [int, int, int]
    assert [type(v) for v in space["optimizer"]["lr"]["randint"]] == [float, float]
    assert space["optimizer"]["milestones"] == [3.0, 6.0]


def test_null_lets_the_component_decide():
    spec = build_spec(_with(space=_space(optimizer={"name": "sgd", "lr": 0.1, "milestones": None})), REGISTRIES)
    assert "milestones" not in spec.resolved()["space"]["optimizer"]


RICH_SPACE = {
    "loss": {
        "one_of": [
            "cross_entropy",
            {"name": "focal", "gamma": {"uniform": [0.5, 10]}},
            {"name": "selective_risk", "nu": {"loguniform": [0.01, 0.3]}, "score": {"choice": ["msp", "margin"]}},
        ]
    },
    "architecture": {"grid": ["resnet8", {"name": "mlp", "width": {"grid": [8, 16]}}]},
    "optimizer": {"name": "sgd", "lr": {"quniform": [0.1, 0.5, 0.1]}, "schedule": "step", "milestones": [3, 6]},
}


def test_the_resolved_file_gives_the_same_spec(tmp_path):
    spec = build_spec(_with(space=RICH_SPACE, samples=2, header={"question": "why?"}), REGISTRIES)
    file = tmp_path / "sweep.yaml"
    file.write_text(yaml.safe_dump(spec.resolved(), sort_keys=False))
    again = load_spec(file, registries=REGISTRIES)
    assert again == spec
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_every_fault_at_once_with_nearest_names():
    values = _with(
        dataset={"name": "digit"},
        seed=1.5,
        retry=3,
        objective={"metric": "val_nil", "mode": "minimum"},
        scheduler={"grace_epochs": 0, "max_epochs": 9, "reduction_facto": 3},
        evaluation={"curvature": {"lanczos_steps": 0, "lanczos_step": 3}, "posthoc": ["temprature"]},
        resources={"gpu": 1.5},
        space={
            "loss": {
                "one_of": [
                    {"name": "focal", "gama": {"uniform": [1, 2]}},
                    {"name": "inverse_focal", "gamma": {"uniform": [1, 5]}},
                    {"name": "selective_risk", "coverage": {"unifrom": [0.1, 1]}, "nu": {"loguniform": [0, 1]}},
                ]
            },
            "architecture": {"choice": ["mpl", {"name": "mlp", "width": {"uniform": [1, 5]}}]},
            "optimiser": "sgd",
            "optimizer": {"name": "sgd", "schedule": "step"},
        },
    )
    expected = {
        "dataset": "unknown data set 'digit' | did you mean 'digits'?",
        "seed": "1.5 must be a valid integer",
        "retry": "did you mean 'retries'?",
        "objective.metric": "did you mean 'val_nll'?",
        "objective.mode": "'minimum' must be 'min' or 'max'",
        "scheduler.grace_epochs": "grace_epochs = 0 is outside [1, inf): a trial has no value before its first epoch",
        "scheduler.reduction_facto": "did you mean 'reduction_factor'?",
        "evaluation.curvature.lanczos_steps": "lanczos_steps = 0 is outside [1, inf): each step is one product",
        "evaluation.curvature.lanczos_step": "did you mean 'lanczos_steps'?",
        "evaluation.posthoc[0]": "did you mean 'temperature'?",
        "resources.gpu": "must be a whole number",
        "space.loss.one_of[0].gama": "did you mean 'gamma'?",
        "space.loss.one_of[1].gamma.uniform": "outside [0, 3.5911]: beyond it the gradient changes sign",
        "space.loss.one_of[2].coverage": "did you mean 'uniform'?",
        "space.loss.one_of[2].nu.loguniform": "low = 0 must be above 0",
        "space.architecture.choice[0]": "did you mean 'mlp'?",
        "space.architecture.choice[1].width": "use randint",
        "space.optimiser": "did you mean 'optimizer'?",
        "space.optimizer.lr": "sgd needs lr",
    }
    found = _faults(values)
    assert found.keys() == expected.keys()
    for path, words in expected.items():
        assert words in found[path], path


@pytest.mark.parametrize(
    ("gamma", "path", "words"),
    [
        ({"uniform": [3, 1]}, ".uniform", "low = 3 must be below high = 1"),
        ({"uniform": [1]}, ".uniform", "needs a list of 2 numbers"),
        ({"uniform": [0, "1"]}, ".uniform", "needs finite numbers"),
        ({"uniform": [0, float("inf")]}, ".uniform", "needs finite numbers"),
        ({"quniform": [0, 1, 0.3]}, ".quniform", "evenly"),
        ({"quniform": [0, 1, 0]}, ".quniform", "step = 0 must be above 0"),
        ({"quniform": [0, 1, 1e-9]}, ".quniform", "more than a million"),
        ({"randint": [0, 1.5]}, ".randint", "needs whole numbers"),
        ({"choice": []}, ".choice", "at least one member"),
        ({"choice": [1, -1]}, ".choice[1]", "gamma = -1 is outside [0, inf)"),
        ({"grid": [1, 1]}, ".grid[1]", "appears twice"),
        ({"uniform": [0, 1], "grid": [1]}, "", "only key"),
        ({"choice": [{"uniform": [0, -1]}]}, ".choice[0].uniform", "below high"),
        ({"choice": [{"low": 1}]}, ".choice[0]", "a mapping but not a domain"),
        ({}, "", "a mapping but not a domain"),
        ("high", "", "must be a number"),
        (True, "", "must be a number"),
        (None, "", "must be a number"),
        ([[1]], "", "plain values only"),
    ],
)
def test_faults_of_a_hyperparameter(gamma, path, words):
    found = _faults(_with(space=_space(loss={"name": "focal", "gamma": gamma}), samples=2))
    assert words in found[f"space.loss.gamma{path}"], found


@pytest.mark.parametrize(
    ("loss", "path", "words"),
    [
        ({"grid": ["focal", {"name": "focal", "gamma": 3.0}]}, ".grid[1]", "appears twice"),  # 3 is the default
        ({"name": {"choice": ["focal"]}}, ".name", "a name is plain text"),
        ({"gamma": 3}, "", "the loss has no name"),
        ({"one_off": ["focal"]}, "", "did you mean 'one_of'?"),
        ({"uniform": [0, 1]}, "", "the domain uniform does not name a loss"),
        ({"one_of": [{"name": "focal", "gamma": {"grid": [1, 2]}}]}, ".one_of[0]", "a grid inside one_of"),
        ({"one_of": [3]}, ".one_of[0]", "one_of chooses among mappings"),
        (None, "", "None does not name a loss"),
        ([], "", "[] does not name a loss"),
    ],
)
def test_faults_of_a_loss(loss, path, words):
    assert words in _faults(_with(space=_space(loss=loss), samples=2))[f"space.loss{path}"]


def test_rules_over_several_hyperparameters_see_every_member():
    optimizer = {"name": "sgd", "lr": {"uniform": [0.1, 1]}, "schedule": {"choice": ["cosine", "step"]}}
    found = _faults(_with(space=_space(optimizer=optimizer), samples=2))
    assert "schedule = step needs milestones" in found["space.optimizer.schedule.choice[1]"]


MEDIAN = {"name": "median_stopping", "max_epochs": 9}
LABELLED = {**TEMPERATURE, "label": "t"}
THOUSAND = {"name": "focal", "gamma": {"grid": list(range(1001))}}


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"samples": 0}, "samples", "greater than or equal to 1"),
        ({"samples": "48"}, "samples", "valid integer"),
        ({"samples": True}, "samples", "valid integer"),
        ({"replicates": 0}, "replicates.count", "greater than or equal to 1"),
        ({"replicates": {"packing": "fused"}}, "replicates.packing", "'auto', 'lanes', 'sequential'"),
        ({"replicates": {"count": 3, "seeds": [1, 1, 2]}}, "replicates", "must be count = 3 different seeds"),
        (
            {"scheduler": {"max_epochs": 9, "reduction_factor": 1}},
            "scheduler.reduction_factor",
            "outside [2, inf): below",
        ),
        ({"scheduler": {"name": "ahsa", "max_epochs": 9}}, "scheduler.name", "did you mean 'asha'?"),
        ({"scheduler": "asha"}, "scheduler.max_epochs", "asha needs max_epochs"),
        ({"scheduler": {"max_epochs": 9, "grace_epochs": 30}}, "scheduler.grace_epochs", "is above max_epochs = 9"),
        ({"scheduler": {"max_epochs": 0}}, "scheduler.max_epochs", "outside [1, 100000]"),
        ({"scheduler": {"max_epochs": {"grid": [3, 9]}}}, "scheduler.max_epochs", "the same for the whole sweep"),
        ({"scheduler": {**MEDIAN, "grace_epoch": 3}}, "scheduler.grace_epoch", "did you mean 'grace_epochs'?"),
        ({"scheduler": {**MEDIAN, "reduction_factor": 3}}, "scheduler.reduction_factor", "median_stopping takes no"),
        (
            {"scheduler": {**MEDIAN, "min_competitors": 0}},
            "scheduler.min_competitors",
            "outside [1, inf): a median needs",
        ),
        ({"scheduler": {"name": "none", "max_epochs": 9, "grace": 3}}, "scheduler.grace", "no hyperparameter 'grace'"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"resources": {"cpu": 0}}, "resources.cpu", "greater than 0"),
        ({"resources": {"gpu": "all"}}, "resources.gpu", "must be auto or a number"),
        ({"resources": 3}, "resources", "mapping"),
        ({"dataset": {"grid": ["digits"]}}, "dataset", "the same for the whole sweep"),
        ({"dataset": {"name": "digits", "image_size": {"randint": [8, 16]}}}, "dataset.image_size", "choice or grid"),
        ({"dataset": {"name": "digits", "image_size": 4}}, "dataset.image_size", "outside [8, inf)"),
        ({"evaluation": {"posthoc": ["temperature", TEMPERATURE]}}, "evaluation.posthoc[1]", "given twice"),
        ({"evaluation": {"posthoc": [LABELLED] * 2}}, "evaluation.posthoc[1]", "t is given twice"),
        ({"evaluation": {"posthoc": {**TEMPERATURE, "label": "By-ECE"}}}, "evaluation.posthoc[0].label", "lower-case"),
        (
            {"evaluation": {"posthoc": {**TEMPERATURE, "fitted_on": "v"}}},
            "evaluation.posthoc[0].fitted_on",
            "no split 'v'",
        ),
        ({"evaluation": {"posthoc": 3}}, "evaluation.posthoc", "list"),
        ({"evaluation": {"curvature": "yes"}}, "evaluation.curvature", ""),
        ({"evaluation": {"bins": 0}}, "evaluation.bins", "greater than or equal to 1"),
        ({"space": []}, "space", ""),
        ({"space": {"loss": "focal", "optimizer": {"name": "sgd", "lr": 1}}}, "space.architecture", "no architecture"),
        ({"space": _space(loss={"name": "focal", "gamma": {"uniform": [0, 1]}})}, "samples", "how many configurations"),
        ({"space": _space(loss=THOUSAND), "samples": 1000}, "samples", "more than 1000000"),
    ],
)
def test_faults_outside_the_loss(changes, path, words):
    assert words in _faults(_with(**changes))[path]


def test_faults_carry_lines_in_the_files_order(tmp_path):
    file = tmp_path / "wrong.yaml"
    file.write_text(
        "dataset: digit\nscheduler: {max_epochs: 9}\nspace:\n  loss:\n    name: focal\n    gama: 3\n"
        "  architecture: mlp\n  optimizer:\n    name: sgd\n"
    )
    with pytest.raises(InvalidSearchSpace) as caught:
        load_spec(file, ["seed=-1"], REGISTRIES)
    assert [(f.line, f.path) for f in caught.value.faults] == [
        (1, "dataset"),
        (6, "space.loss.gama"),
        (8, "space.optimizer.lr"),
        (None, "seed"),
    ]
    text = str(caught.value)
    assert text.startswith(f"{file}: 4 errors, nothing was started\n  line 1: dataset: unknown data set 'digit'")
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def test_several_cards_a_process_are_refused_but_a_sweep_begun_so_can_be_read(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(yaml.safe_dump(_with(resources={"gpu": 1})))
    assert load_spec(file, registries=REGISTRIES).resources.gpu == 1
    with pytest.raises(InvalidSearchSpace) as caught:
        load_spec(file, ["resources.gpu=8"], REGISTRIES)
    (fault,) = caught.value.faults
    assert (fault.path, fault.rule) == (
        "resources.gpu",
        "gpu = 8 would reserve 8 GPUs for each process, which trains on one of them",
    )
    assert "set gpu: 1" in fault.remedy
    assert build_spec(_with(resources={"gpu": 8}), REGISTRIES).resources.gpu == 8


def test_shipped_files_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate("quickstart") == locate("quickstart.yaml") == packaged_files()["quickstart"]
    assert locate("tutorials/first_sweep") == locate("tutorials/first_sweep.yaml")
    assert locate("tutorials/first_sweep").is_file() and not locate("tutorials/no_such").is_file()
    (tmp_path / "quickstart.yaml").write_text("")
    assert locate("quickstart.yaml").name == str(locate("quickstart.yaml"))  # one's own file comes first


@pytest.mark.parametrize("name", sorted(packaged_files()))
def test_shipped_files_are_valid(name):
    spec = load_spec(name)
    # the file's `rehearsal` does not belong to the sweep
    assert build_spec(spec.resolved()) == spec.model_copy(update={"rehearsal": None})
    header = spec.header
    assert all((header.question, header.source, header.expected, header.cost))
    command = rf"sweeper (run|cluster submit) search_spaces/(papers/)?{name}\.yaml( --|, then | && |$)"
    assert re.match(command, header.command), header.command


def test_unknown_hyperparameters_are_named_in_the_files_order():
    unknown = [f"unknown_{letter}" for letter in "hcagbfed"]
    faults = _faults(_with(space=_space(loss={"name": "focal", **dict.fromkeys(unknown, 1)})))
    assert [path for path in faults if "unknown" in path] == [f"space.loss.{name}" for name in unknown]


FINITE = {
    "loss": {"one_of": ["cross_entropy", {"name": "focal", "gamma": {"quniform": [1, 2, 0.5]}}]},
    "architecture": {"name": "mlp", "width": {"randint": [8, 9]}},
    "optimizer": {"name": "sgd", "lr": {"choice": [0.1, 0.2]}, "momentum": {"grid": [0.0, 0.9]}},
}


def _spec(searcher, space=FINITE, **changes):
    return build_spec({**MINIMAL, "space": space, "searcher": searcher, **changes}, REGISTRIES)


def _searcher_faults(searcher, space=FINITE, **changes):
    with pytest.raises(InvalidSearchSpace) as raised:
        _spec(searcher, space, **changes)
    return {fault.path: (fault.rule, fault.remedy) for fault in raised.value.faults}


def test_grid_takes_every_member_of_every_domain_in_turn():
    spec = _spec("grid")
    drawn = [values.text for values in configurations_of(spec, None)]
    assert len(drawn) == len(set(drawn)) == (1 + 3) * 2 * 2 * 2
    assert spec.samples == 1
    again = build_spec(spec.resolved(), REGISTRIES)
    assert again == spec and [v.text for v in configurations_of(again, None)] == drawn


def test_grid_names_each_domain_without_members():
    found = _searcher_faults("grid", SPACE)
    places = ("loss.one_of[1].gamma.uniform", "loss.one_of[2].nu.loguniform", "optimizer.lr.loguniform")
    assert found.keys() == {f"space.{place}" for place in (*places, "optimizer.momentum.uniform")}
    rule, remedy = found["space.optimizer.lr.loguniform"]
    assert rule == "loguniform has no finite list of members for the searcher grid"
    assert remedy == "write grid or choice with the values to try, or searcher: random"


def test_grid_refuses_members_that_stand_twice_and_steps_too_fine():
    space = {**FINITE, "optimizer": {"name": "sgd", "lr": {"choice": [0.1, 0.1]}}}
    assert _searcher_faults("grid", space)["space.optimizer.lr.choice[1]"][0] == "0.1 appears twice"
    space = {**FINITE, "optimizer": {"name": "sgd", "lr": {"quniform": [0.0001, 2, 0.0001]}}}
    rule, _ = _searcher_faults("grid", space)["space.optimizer.lr.quniform"]
    assert rule == "quniform has 20,000 members, more than a grid's 10,000"


def test_optuna_refuses_grids_wherever_they_stand():
    space = {
        "loss": {"grid": ["cross_entropy", {"name": "focal", "gamma": {"grid": [1, 2]}}]},
        "architecture": "mlp",
        "optimizer": {"name": "sgd", "lr": {"loguniform": [0.01, 1]}},
    }
    found = _searcher_faults("optuna", space, samples=4)
    assert found.keys() == {"space.loss.grid", "space.loss.grid[1].gamma.grid"}
    assert found["space.loss.grid"][1] == "write choice instead of grid, or searcher: grid"


def test_optuna_needs_something_to_choose_and_a_number_of_samples():
    rule, _ = _searcher_faults("optuna", MINIMAL["space"])["searcher"]
    assert rule == "optuna has nothing to search: every value of the space is fixed"
    assert "samples" in _searcher_faults("optuna", SPACE)


def test_options_belong_to_optuna_and_have_defaults():
    assert searched_spec(startup=None).searcher.settings == {"startup": 10}
    assert _searcher_faults({"name": "random", "startup": 3}, samples=2).keys() == {"searcher.startup"}
    assert "searcher.startup" in _searcher_faults({"name": "optuna", "startup": 0}, SPACE, samples=2)
    _, remedy = _searcher_faults({"name": "optuna", "startups": 3}, SPACE, samples=2)["searcher.startups"]
    assert remedy.startswith("did you mean 'startup'")


def test_searchers_come_back():
    assert _spec(None, samples=3) == _spec("random", samples=3)
    spec = searched_spec()
    assert spec.resolved()["searcher"] == {"name": "optuna", "startup": 4}
    assert build_spec(spec.resolved(), REGISTRIES) == spec


def test_replicates_may_have_seeds_of_ones_own():
    assert build_spec(_with(replicates={"count": 2, "seeds": [11, 7]}), REGISTRIES).replicate_seeds.of(3) == [11, 7]


def test_a_line_on_each_network_needs_networks_and_a_setting_that_is_not_theirs() -> None:
    spec = load_spec("quickstart", ["which={gamma: each, lr: winner}"])
    assert [line.question for line in lines_of(spec)] == ["loss.gamma on mlp", "loss.gamma on resnet8", "optimizer.lr"]
    assert build_spec(spec.resolved()) == spec
    wrongs = {"{gama: each}": "gama", "{architecture: each}": "architecture", "{gamma: all}": "loss.gamma"}
    for wrong, place in wrongs.items():
        with pytest.raises(InvalidSearchSpace) as raised:
            load_spec("quickstart", [f"which={wrong}"])
        assert [fault.path for fault in raised.value.faults] == [f"which.{place}"]
    with pytest.raises(InvalidSearchSpace) as raised:
        load_spec("quickstart", ["which={gamma: each}", "space.architecture=mlp"])
    assert [fault.path for fault in raised.value.faults] == ["which.gamma"]


def test_which_names_a_path_or_what_fits_only_one() -> None:
    spec = load_spec("quickstart", ["which=[gamma, lr, loss]"])
    assert [*spec.which] == ["loss.gamma", "optimizer.lr", "loss.name"] and {*spec.which.values()} == {"winner"}
    assert load_spec("quickstart", ["which=score"]).which == {"loss.score": "winner"}
    assert spec.cross_entropy_at_zero == {"focal": ["gamma", "smoothing"]}
    with pytest.raises(InvalidSearchSpace) as raised:
        load_spec("quickstart", ["which=[gama, momentum, lr, optimizer.lr]"])
    assert [fault.path for fault in raised.value.faults] == ["which[0]", "which[1]"]
    assert "'gamma'" in raised.value.faults[0].remedy and "coverage" in raised.value.faults[1].remedy
    with pytest.raises(InvalidSearchSpace) as raised:
        load_spec("quickstart", ["which=[lr, optimizer.lr]"])
    assert [fault.path for fault in raised.value.faults] == ["which[1]"]
    alpha = "space.loss.one_of=[{name: label_smoothing, alpha: {uniform: [0, 0.2]}}, {name: brier}]"
    assert load_spec("quickstart", [alpha, "which=alpha"]).which == {"loss.alpha": "winner"}
    rule, remedy = _line_path("width", ["loss.width", "architecture.width"])
    assert "loss.width and architecture.width" in rule and remedy == "write loss.width"
