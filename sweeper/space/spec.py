"""The structure of a search space file: strict pydantic models, short forms, and pydantic's errors as faults.

The rest of the project reads a `SweepSpec`; `sweeper.space.loading` builds it from a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Annotated, get_args

from pydantic import BaseModel, Field, GetPydanticSchema, ValidationError
from pydantic_core import ErrorDetails, PydanticKnownError, core_schema

from sweeper.core.domains import Fields, Plain, Values, join_path, parse, part_of, plain
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.ids import ReplicateSeeds
from sweeper.journal.best import Objective as Goal
from sweeper.scheduling import Scheduler
from sweeper.scheduling.base import WITHIN
from sweeper.scheduling.contenders import PARTS, FinalStage, Groups, TrialValues
from sweeper.scheduling.strata import stratified
from sweeper.space import parts
from sweeper.space.configurations import configurations, line_domains, named_components
from sweeper.space.file import SHORT_FORMS
from sweeper.space.parts import Part
from trainables.registry import FITTED_ON, entry_label
from trainables.registry.names import CROSS_FITTED, hint, measured_as

#: The driver keeps the state of every trial in memory.
MAXIMUM_CONFIGURATIONS = 1_000_000

#: Keys that can be empty, for example because all lines below them are commented out.
MAY_BE_EMPTY = ("header", "objective", "resources", "evaluation", "keep", "replicates", "searcher", "training")

#: (Part, key) of lists for which a single member can be written without brackets.
LISTS = (("keep", "per"), ("scheduler", WITHIN.name))


class Header(Part):
    """The purpose of a search space file; shown by `sweeper spaces`.

    Attributes:
        question: the question that the sweep answers.
        source: source of the question and of the recipe.
        expected: the expected outcome, with numbers to compare the result with.
        cost: time and hardware in words; `sweeper plan` computes it.
        command: the command that runs it.
        paper: short name of the paper whose experiment this is.
        tables: published tables and figures whose cells this sweep can fill, e.g. `mukhoti-1`.
        claims: claims that its results can support or refute.
    """

    question: str = ""
    source: str = ""
    expected: str = ""
    cost: str = ""
    command: str = ""
    paper: str = ""
    tables: list[str] = Field(default_factory=list)
    claims: list[str] = Field(default_factory=list)


class Budget(Part):
    """The budget of a sweep; `sweeper.execution.driver.steering` acts when it is spent.

    Attributes:
        gpu_hours: GPU-hours of all trials, the sum of a trial's hours times its share of GPUs.
        wall_hours: hours that drivers run, without the pauses between them.
    """

    gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    wall_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Tracking(Part):
    """How trackers show a sweep.

    Attributes:
        experiment: MLflow experiment, e.g. `/Users/me/calibration` on Databricks; `null` uses the sweep's name. Several
            sweeps can share one.
    """

    # MLflow's SQL store has room for 256 characters.
    experiment: str | None = Field(default=None, pattern=r"^[^\x00-\x1f\x7f]{1,250}$")


def _tree(space: object) -> Fields:
    """Return the tree of a space; the values of a resolved file are parsed, a tree is returned unchanged."""
    if isinstance(space, Fields):
        return space
    if not isinstance(space, dict):
        raise PydanticKnownError("dict_type")
    faults: list[Fault] = []
    tree = Fields({key: parse(part, key, faults) for key, part in space.items()})
    if faults:
        raise InvalidSearchSpace(faults)
    return tree


# pydantic has no type for trees of domains. So a plain validator keeps the parsed object, and dumping writes it as YAML
# values.
_TREE = core_schema.no_info_plain_validator_function(
    _tree, serialization=core_schema.plain_serializer_function_ser_schema(plain)
)


class SweepSpec(Part):
    """A checked search space file with every default filled in.

    Attributes:
        dataset: the data set, `{name: …, option: value}`.
        loop: import path of the user's training loop, see `trainables.training.own_loop`.
        objectives: several objectives; the first is `objective`. Empty if there is only one.
        constraints: constraints that trials must satisfy.
        space: tree of domains below `loss`, `architecture` and `optimizer`, parsed and resolved once.
        samples: number of configurations drawn per grid point.
        searcher: method that chooses the configurations.
        retries: number of times that a crashed trial is retried.
        trial_timeout: largest training time in seconds per try of a trial, checked after each epoch; `null` for no
            limit. With `packing: trials` it applies to each replicate, from one rung to the next.
        hang_timeout: seconds without any work in a trial's process, as in a data loader's deadlock. The process is then
            killed, and the try counts as failed. The default, ten minutes, is far above any wait for storage. `null`
            for no limit.
        checkpoint: how often a running trial's checkpoint is written between rungs, and how many are kept.
        budget: budget of the sweep; `null` for no limit.
        keep: trials whose checkpoints are kept at the end.
        max_concurrent: largest number of trials that run at once; `null` for as many as fit.
        tracking: how trackers show the sweep.
        which: hyperparameters of the loss. For each, the final stage trains several values.
        rehearsal: changes that `--rehearse` makes beyond its general rules, written like the file itself.
        rehearsed: changes that a rehearsal made, one sentence each; empty for a real sweep.

    Example:
        >>> from sweeper.space.loading import build_spec
        >>> spec = build_spec({"dataset": "digits", "scheduler": {"max_epochs": 9}, "samples": 2, "space": {
        ...     "loss": "focal", "architecture": "mlp", "optimizer": {"name": "sgd", "lr": {"uniform": [0.1, 0.3]}}}})
        >>> spec.schedule.rungs, spec.resolved()["space"]["loss"]["name"]
        ((1, 3, 9), 'focal')
    """

    header: Header = Header()
    dataset: Values
    loop: str | None = None
    objective: parts.Objective = parts.Objective()
    objectives: list[parts.Objective] = Field(default_factory=list)
    constraints: list[parts.Guard] = Field(default_factory=list)
    scheduler: parts.SchedulerSettings
    samples: int = Field(ge=1, le=MAXIMUM_CONFIGURATIONS)
    searcher: parts.SearcherSettings = parts.SearcherSettings()
    replicates: parts.Replicates = parts.Replicates()
    seed: int = Field(default=0, ge=0)
    space: Annotated[Fields, GetPydanticSchema(lambda *_: _TREE, lambda *_: {"type": "object"})]
    resources: parts.Resources = parts.Resources()
    training: parts.Training = parts.Training()
    evaluation: parts.Evaluation = parts.Evaluation()
    retries: int = Field(default=2, ge=0, le=100)
    trial_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hang_timeout: float | None = Field(default=600.0, gt=0, allow_inf_nan=False)
    checkpoint: parts.Checkpoint = parts.Checkpoint()
    budget: Budget | None = None
    keep: parts.Keep = parts.Keep()
    max_concurrent: int | None = Field(default=None, ge=1)
    tracking: Tracking = Tracking()
    which: list[str] = Field(default_factory=list)
    rehearsal: Values | None = None
    rehearsed: list[str] = Field(default_factory=list)

    @property
    def is_rehearsal(self) -> bool:
        """Whether this is a scaled-down run on stand-in data, whose results mean nothing."""
        return bool(self.rehearsed)

    @property
    def schedule(self) -> Scheduler:
        """The scheduler, with the objective it compares."""
        chosen, goal = self.scheduler, self.objective
        within = chosen.settings.get(WITHIN.name)
        scheduler = chosen.built(goal.metric, goal.mode)
        if self.objectives or self.constraints:
            goals = tuple(Goal(objective.metric, objective.mode) for objective in self.objectives or (goal,))
            guards = tuple(guard.constraint for guard in self.constraints)
            # The check refused a scheduler that cannot do this. A file that is only read falls back to one objective.
            scheduler = scheduler.comparing(goals, guards) or scheduler
        if not isinstance(within, list):
            return scheduler
        known = None if self.searcher.learns else configurations(self)
        return stratified(scheduler, [str(path) for path in within], known)

    @property
    def cross_fitted(self) -> list[str]:
        """Labels of the post-hoc methods that are cross-fitted, because their validation metrics are compared.

        Without a split `test`, all that are fitted on `val` are.
        """
        # If methods were fitted and measured on the same samples, more parameters would always look better.
        goals: list[parts.Objective | parts.Guard] = [self.objective, *self.objectives, *self.constraints]
        columns = [measured_as(goal.metric)[1] for goal in goals]
        labels = [entry_label(method) for method in self.evaluation.posthoc]
        if "test" not in self.evaluation.splits:
            return [entry_label(method) for method in self.evaluation.posthoc if method.get(FITTED_ON, "val") == "val"]
        return [label for label in labels if any(c.startswith(f"{CROSS_FITTED}{label}_") for c in columns)]

    @property
    def replicate_seeds(self) -> ReplicateSeeds:
        """Seeds of every configuration's replicates."""
        return ReplicateSeeds(self.seed, self.replicates.count, self.replicates.common_seeds)

    def resolved(self) -> dict[str, Plain]:
        """Return the file's values with every default filled in, ready for YAML. Loading them gives an equal spec."""
        return self.model_dump(mode="json")


def written_out(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Expand the short forms outside the space.

    Example:
        >>> written_out({"dataset": "digits", "replicates": 2, "keep": None})
        {'dataset': {'name': 'digits'}, 'replicates': {'count': 2}}
    """
    empty = {key for key in MAY_BE_EMPTY if key in values and values[key] is None}
    written = {key: value for key, value in values.items() if key not in empty}
    for key, inner in SHORT_FORMS.items():
        if key in written and not isinstance(written[key], (dict, list)):
            written[key] = {inner: written[key]}
    for part, key in LISTS:
        if isinstance(alone := part_of(written, part, key), str):
            written[part] = {**part_of(written, part), key: [alone]}
    return written


def spec_of(values: Mapping[str, Plain], source: str) -> SweepSpec:
    """Build the specification of a resolved search space for reading; component names are not looked up.

    Raises:
        InvalidSearchSpace: the values are not a resolved search space.
    """
    # Reports and status must work for sweeps whose own components are not installed, and without importing torch.
    try:
        spec = SweepSpec.model_validate(values)
    except ValidationError as error:
        raise InvalidSearchSpace(structural_faults(error), source) from error
    faults = [] if "loss" in spec.space.nodes else [Fault("space.loss", "missing")]
    if not isinstance(spec.dataset.get("name"), str):
        faults.append(Fault("dataset.name", "missing"))
    if faults:
        raise InvalidSearchSpace(faults, source)
    return spec


def structural_faults(error: ValidationError) -> list[Fault]:
    """Convert pydantic's errors on `SweepSpec` to faults."""
    return [_from_pydantic(detail) for detail in error.errors(include_url=False)]


def _from_pydantic(detail: ErrorDetails) -> Fault:
    # pydantic adds the branch of a union to the location. It is not a key of the file.
    keys = [key for key in detail["loc"] if not str(key).startswith(("function-", "dict[", "literal["))]
    path = reduce(join_path, keys, "")
    if detail["type"] == "extra_forbidden":
        names = tuple(_model_at(keys[:-1]).model_fields)
        return Fault(path, f"unknown key {keys[-1]!r}", hint(str(keys[-1]), names))
    if detail["type"] == "missing":
        return Fault(path, "missing")
    # Replace pydantic's Python terms (2.x) with YAML's.
    rule = detail["msg"].removeprefix("Value error, ")
    rule = re.sub("Input should be a valid dictionary or instance of .*", "must be a mapping of keys to values", rule)
    rule = rule.replace("Input should be", "must be")
    # Our own validators write `key = value` themselves. Other values are cut to 60 characters, enough to recognise
    # them.
    return Fault(path, rule if "=" in rule else f"{repr(detail['input'])[:60]} {rule}")


def _model_at(keys: Sequence[str | int]) -> type[BaseModel]:
    """Return the model for the mapping at `keys`."""
    model: type[BaseModel] = SweepSpec
    for key in (key for key in keys if isinstance(key, str)):  # indices do not change the model
        annotation = model.model_fields[key].annotation
        model = next(a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel))
    return model


def final_stage(spec: SweepSpec) -> FinalStage | None:
    """Return the sweep's final stage, which chooses fresh seeds; None if the sweep has none."""
    if spec.replicates.at_most is None:
        return None
    from sweeper.core.statistics.racing import open_questions  # commands that only read a space do not need it

    mode, margin = spec.objective.mode, spec.objective.margin
    # `objective.margin` is a difference in ECE, so for another objective it would have the wrong unit.
    if not spec.objective.metric.endswith("ece"):
        margin = None

    def judge(values: TrialValues, groups: Groups, first: int) -> Collection[str]:
        return open_questions(values, groups, mode, margin, first=first).units

    domains = line_domains(spec.space)
    return FinalStage(
        spec.schedule,
        spec.replicate_seeds,
        spec.replicates.at_most,
        judge,
        # A part with a single component has nothing to compare.
        [part for part in PARTS if part in spec.space.nodes and len(named_components(spec.space.nodes[part])) > 1],
        {name: {loss: domain[name] for loss, domain in domains.items() if name in domain} for name in spec.which},
    )
