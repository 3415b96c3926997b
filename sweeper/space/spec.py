"""The structure of a search space file: strict pydantic models, short forms, and pydantic's errors as faults.

`SweepSpec` is what the rest of the project reads; `sweeper.space.loading` builds it from a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Annotated, get_args

from pydantic import BaseModel, Field, GetPydanticSchema, ValidationError
from pydantic_core import ErrorDetails, PydanticKnownError, core_schema

from sweeper.core.domains import Fields, parse, plain
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.ids import ReplicateSeeds
from sweeper.core.json_types import Plain, Values, join_path, part_of
from sweeper.journal.best import Objective as Goal
from sweeper.scheduling import Scheduler
from sweeper.scheduling.base import WITHIN
from sweeper.scheduling.strata import stratified
from sweeper.space import parts
from sweeper.space.configurations import configurations
from sweeper.space.file import SHORT_FORMS
from sweeper.space.parts import Part
from trainables.registry import entry_label
from trainables.registry.names import CROSS_FITTED, hint, measured_as

MAXIMUM_CONFIGURATIONS = 1_000_000

#: Keys that may stand in a file with nothing below them.
MAY_BE_EMPTY = ("header", "objective", "resources", "evaluation", "keep", "replicates", "searcher", "training")

#: Lists, by part and key, that may be written as their only member.
LISTS = (("keep", "per"), ("scheduler", WITHIN.name))


class Header(Part):
    """The purpose of a search space file; shown by `sweeper spaces`.

    Attributes:
        question: what the sweep answers.
        source: where the question and the recipe come from.
        expected: the expected outcome, with numbers to compare the result with.
        cost: time and hardware in words; `sweeper plan` computes it.
        command: how to run it.
        paper: short name of the paper whose experiment this is.
        tables: the published tables and figures whose cells this sweep can fill, e.g. `mukhoti-1`.
        claims: the claims that its results can be judged by.
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
    """What a sweep may spend; see `sweeper.execution.driver.steering` for what happens when it is spent.

    Attributes:
        gpu_hours: hours of whole cards that trials take, as Σ trial's hours · its share of GPUs.
        wall_hours: hours that drivers work, pauses between them left out.
        cost: GPU-hours and core-hours at the two prices.
        gpu_hour_price: of one whole GPU; `null` takes the environment's `SWEEPER_GPU_HOUR_PRICE`.
        cpu_hour_price: of one core.
    """

    gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    wall_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gpu_hour_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    cpu_hour_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class Tracking(Part):
    """How trackers show a sweep.

    Attributes:
        experiment: MLflow's experiment, `/Users/me/calibration` on Databricks; the sweep's name if `null`. Several
            sweeps may share one.
    """

    experiment: str | None = Field(default=None, pattern=r"^[^\x00-\x1f\x7f]{1,250}$")


def _tree(space: object) -> Fields:
    """Return a space as the tree that checking made of it; values of a resolved file are parsed."""
    if isinstance(space, Fields):
        return space
    if not isinstance(space, dict):
        raise PydanticKnownError("dict_type")
    faults: list[Fault] = []
    tree = Fields({key: parse(part, key, faults) for key, part in space.items()})
    if faults:
        raise InvalidSearchSpace(faults)
    return tree


_TREE = core_schema.no_info_plain_validator_function(
    _tree, serialization=core_schema.plain_serializer_function_ser_schema(plain)
)


class SweepSpec(Part):
    """A checked search space file, every default filled in.

    Attributes:
        dataset: `{name: …, option: value}`.
        loop: the import path of a training loop of the user's own, see `trainables.training.own_loop`.
        objectives: several of them, of which the first is `objective`; empty for that one alone.
        constraints: what trials must keep to.
        space: the tree of domains below `loss`, `architecture` and `optimizer`, parsed and resolved once.
        samples: configurations drawn a grid point.
        searcher: how they are chosen.
        retries: how often a crashed trial is tried again.
        trial_timeout: seconds that one try of a trial may train for, looked at after each epoch; `null` for no limit.
            With `packing: trials` it holds for each replicate, from one rung to the next.
        hang_timeout: seconds without any work of a trial's process after which it is ended and its try has failed, as a
            data loader's deadlock would; ten minutes is far above any wait for storage. `null` for no limit.
        checkpoint: how often a running trial's checkpoint is written between rungs, and how many are kept.
        budget: what may be spent; `null` for no limit.
        keep: whose checkpoints are kept at the end.
        max_concurrent: trials of this sweep at once; `null` for as many as fit.
        tracking: how trackers show the sweep.
        which: hyperparameters of the loss, of which the final stage trains a line of values each.
        rehearsal: what `--rehearse` changes beyond its general rules, written like the file itself.
        rehearsed: what a rehearsal changed, a sentence each; empty for the real thing.
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
        """Whether this is a scaled-down run on stand-in data, whose numbers answer no question."""
        return bool(self.rehearsed)

    @property
    def schedule(self) -> Scheduler:
        """The scheduler, with the objective it compares."""
        chosen, goal = self.scheduler, self.objective
        within = chosen.settings.get(WITHIN.name)
        scheduler = chosen.built(goal.metric, goal.mode)
        if self.objectives or self.constraints:
            goals = tuple(Goal(each.metric, each.mode) for each in self.objectives or (goal,))
            scheduler = scheduler.comparing(goals, tuple(each.constraint for each in self.constraints)) or scheduler
        if not isinstance(within, list):
            return scheduler
        known = None if self.searcher.learns else configurations(self)
        return stratified(scheduler, [str(path) for path in within], known)

    @property
    def cross_fitted(self) -> list[str]:
        """The labels of the post-hoc methods whose metrics on validation data are compared, and so are cross-fitted."""
        objectives = [each.metric for each in (self.objective, *self.objectives)]
        columns = [measured_as(each)[1] for each in (*objectives, *(guard.metric for guard in self.constraints))]
        labels = [entry_label(method) for method in self.evaluation.posthoc]
        return [label for label in labels if any(c.startswith(f"{CROSS_FITTED}{label}_") for c in columns)]

    @property
    def replicate_seeds(self) -> ReplicateSeeds:
        """The seeds of every configuration's replicates."""
        return ReplicateSeeds(self.seed, self.replicates.count, self.replicates.common_seeds)

    def resolved(self) -> dict[str, Plain]:
        """Return the file's values with every default written out, ready for YAML; loading it gives this spec again."""
        return self.model_dump(mode="json")


def written_out(values: Mapping[str, Plain]) -> dict[str, Plain]:
    """Return the file's values with the short forms outside the space written out."""
    # A key with nothing below it is as good as none.
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
    """Return the specification of a resolved search space, for those who only read it: names are not looked up.

    Raises InvalidSearchSpace for values that are not of a resolved search space.
    """
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
    """Return the rules of `SweepSpec` that a file's values break."""
    return [_from_pydantic(detail) for detail in error.errors(include_url=False)]


def _from_pydantic(detail: ErrorDetails) -> Fault:
    keys = [key for key in detail["loc"] if not str(key).startswith(("function-", "dict[", "literal["))]
    path = reduce(join_path, keys, "")
    if detail["type"] == "extra_forbidden":
        names = tuple(_model_at(keys[:-1]).model_fields)
        return Fault(path, f"unknown key {keys[-1]!r}", hint(str(keys[-1]), names))
    if detail["type"] == "missing":
        return Fault(path, "missing")
    rule = detail["msg"].removeprefix("Value error, ")
    rule = re.sub("Input should be a valid dictionary or instance of .*", "must be a mapping of keys to values", rule)
    rule = rule.replace("Input should be", "must be")
    return Fault(path, rule if "=" in rule else f"{repr(detail['input'])[:60]} {rule}")


def _model_at(keys: Sequence[str | int]) -> type[BaseModel]:
    """Return the model for the mapping at `keys`."""
    model: type[BaseModel] = SweepSpec
    for key in (key for key in keys if isinstance(key, str)):  # members of a list are all alike
        annotation = model.model_fields[key].annotation
        model = next(a for a in (annotation, *get_args(annotation)) if isinstance(a, type) and issubclass(a, BaseModel))
    return model
