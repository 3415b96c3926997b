"""The structure of a search space file, after checking: pydantic models, strict and closed.

`SweepSpec` is what the rest of the project reads; `sweeper.space.loading` builds it from a file.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema
from pydantic_core import PydanticKnownError, core_schema

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.ids import ReplicateSeeds
from sweeper.core.plain import Plain
from sweeper.scheduling import DEFAULT, SCHEDULERS, Scheduler
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import TOO_SMALL, WITHIN
from sweeper.scheduling.multi_objective import ranked
from sweeper.scheduling.ranking import Constraint, Goal, constraint_of
from sweeper.scheduling.strata import stratified
from sweeper.search.base import SEARCHERS, SearchMethod
from sweeper.space.domains.domains import Fields, parse, plain
from trainables.registry import entry_label
from trainables.registry.measured import CROSS_FITTED, measured_as

MAXIMUM_CONFIGURATIONS = 1_000_000

LEFT_OUT_IF_EMPTY = ("constraints", "header", "notify", "objectives", "rehearsal", "rehearsed", "searcher")
"""Keys that a resolved search space holds only where they say something."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Header(_Part):
    """The purpose of a search space file; shown by `sweeper spaces`.

    Attributes:
        question: what the sweep answers.
        source: where the question and the recipe come from.
        expected: the expected outcome, with numbers to compare the result with.
        cost: time and hardware in words; `sweeper plan` computes it.
        command: how to run it.
        paper: short name of the paper whose experiment this is.
        tables: the published tables and figures whose cells this sweep can fill, e.g. `mukhoti-1`.
        claims: the claims that are judged at the end of the sweep, names of `sweeper.analysis.claims.CLAIMS`.
    """

    question: str = ""
    source: str = ""
    expected: str = ""
    cost: str = ""
    command: str = ""
    paper: Literal["", "curvature", "properness", "mukhoti", "posterior", "selective"] = ""
    tables: list[str] = Field(default_factory=list)
    claims: list[str] = Field(default_factory=list)


class Objective(_Part):
    """What the scheduler compares: one metric's mean over the replicates that have not diverged.

    A trial of which some replicates diverged continues with the others; every decision on it names those left out.
    """

    metric: str = "val_nll"
    mode: Literal["min", "max"] = "min"


class Guard(_Part):
    """What a trial must keep to, to continue before those that do not and to be the best.

    Attributes:
        metric: what is looked at, as an objective names it.
        within: at most so far from the best trial at the same rung; `0.5 points of the best` are 0.005.
        min: at least so much.
        max: at most so much.
        mode: which direction of the metric is good, for `within`; by its name where none is given.
    """

    metric: str
    within: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    min: float | None = Field(default=None, allow_inf_nan=False)
    max: float | None = Field(default=None, allow_inf_nan=False)
    mode: Literal["min", "max"] | None = None

    @property
    def constraint(self) -> Constraint:
        """The same, as schedulers know it."""
        return constraint_of(self.model_dump())


Setting = str | bool | int | float | list[float] | list[str] | None
"""A plug-in's setting as YAML writes it."""


class _PlugIn(_Part):
    """A plug-in's name and settings. They were checked against its registry, which also filled in the defaults."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Setting] = Field(init=False)

    @property
    def settings(self) -> dict[str, Setting]:
        """The plug-in's own settings, without those that all of its kind have."""
        return dict(self.__pydantic_extra__)


class SchedulerSettings(_PlugIn):
    """How long trials run, and which stop early: a name of `sweeper.scheduling.SCHEDULERS` and its settings."""

    name: str = DEFAULT
    max_epochs: int


class SearcherSettings(_PlugIn):
    """How configurations are chosen: a name of `sweeper.search.SEARCHERS` and its settings.

    Attributes:
        warm_start: names of earlier sweeps whose finished configurations a searcher that learns has observed when it
            begins.
    """

    name: str = "random"
    warm_start: list[str] = Field(default_factory=list)

    @property
    def method(self) -> SearchMethod:
        """The searcher with its settings."""
        method: SearchMethod = SEARCHERS.build(self.name, **self.settings)
        return method

    @property
    def learns(self) -> bool:
        """Whether a configuration depends on what was observed before, so that none is known in advance."""
        return self.method.learns


class Keep(_Part):
    """Whose checkpoints are kept when trials have ended, for `sweeper export`.

    Attributes:
        best: how many trials; of each stratum where `per` names paths.
        per: paths of the space that divide trials, as `scheduler.within`, e.g. `[loss]`.
    """

    best: int = Field(default=1, ge=1)
    per: list[str] = Field(default_factory=list)


class Replicates(_Part):
    """How many seeds each configuration is trained with, and how they share a processor.

    `sequential` trains one after the other, `fused` all at once as lanes of one network; `auto` measures both for a
    few steps and keeps the faster for the sweep. `trials`, for networks that fill a GPU, gives each replicate a
    process of its own from one rung to the next, with all of `resources`; the scheduler still judges their mean. Lanes
    round otherwise than a network alone, and a measurement may choose differently on another machine; so `sequential`,
    whose numbers repeat everywhere, is the default.

    `cohort` trains the replicates of several configurations together, as lanes of one network that are refilled as
    trials end: on this machine, with the local executor. `lanes` says how many; `auto` measures how many are fastest,
    and a network that is faster alone trains alone, one replicate after the other. `packing: auto` chooses cohorts,
    too, where they are measured to be faster.

    Each configuration has seeds of its `own`, or all have them in `common`: then a seed's luck falls out of the
    difference of two configurations, and what holds for these seeds says less about others.
    """

    count: int = Field(default=1, ge=1, le=1000)
    packing: Literal["auto", "cohort", "fused", "sequential", "trials"] = "sequential"
    lanes: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    seeds: Literal["own", "common"] = "own"

    @property
    def common_seeds(self) -> bool:
        """Whether replicate r has the same seed in every configuration."""
        return self.seeds == "common"


def _gpu(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"gpu = {value!r} must be auto or a number of at least 0")
    if value > 1 and value != int(value):
        raise ValueError(f"gpu = {value!r}: more than one card must be a whole number of cards")
    return value


class Resources(_Part):
    """What one process of a trial needs, and how many processes train a trial together.

    `gpu: 0.25` packs four on a GPU, `gpu: auto` takes, where there is a GPU, the share that its memory was measured
    to need. Either way a trial that runs out of a GPU's memory is tried again on twice its share.

    `workers: 4` trains each trial by four processes, each with these `cpu` and `gpu` and with its share of every batch:
    `batch_size` is the whole batch's, and four compute what one would. A trial may be resumed with another number.
    """

    cpu: float = Field(default=1, gt=0, allow_inf_nan=False)
    gpu: Annotated[float | Literal["auto"], BeforeValidator(_gpu)] = "auto"
    workers: int = Field(default=1, ge=1, le=1024)

    @property
    def cards_fault(self) -> Fault | None:
        """What is wrong with a process's share of cards, or `None`: of several it would use one."""
        if self.gpu == "auto" or self.gpu in (0, 1):
            return None
        if self.gpu > 1:
            rule = f"gpu = {self.gpu:g} would reserve {self.gpu:g} cards for each process, which trains on one of them"
            together = f"set gpu: 1 and workers: {self.gpu:g}, and {self.gpu:g} processes train each trial together"
            return Fault(
                "resources.gpu", rule, f"{together}; or set gpu: 1 alone, and the other cards train other trials"
            )
        if self.workers == 1:
            return None
        rule = f"gpu = {self.gpu:g}, but workers = {self.workers} wait for each other in every step and share no card"
        return Fault("resources.gpu", rule, "set gpu: 1, or workers: 1")


class Trajectory(_Part):
    """What is measured after each epoch besides the usual, as further columns of the table `epochs`.

    Attributes:
        splits: where losses, entropies and norms are measured.
        every: epochs from one measurement to the next.
        gradient_norms: epochs after which the training samples' gradient norms are counted (mukhoti Fig. 4).
    """

    splits: list[str] = ["train", "test"]
    every: int = Field(default=1, ge=1)
    gradient_norms: list[Annotated[int, Field(ge=1)]] = []


class Checkpoint(_Part):
    """How often a running trial's checkpoint is written; see `trainables.worker.checkpoint_writer`.

    Attributes:
        every_seconds: between two checkpoints: at most so much training is lost with a process, and what it did since
            its last report. At 0 each report has one, every 10 s or epoch, written before it goes out, as each rung
            has.
        keep: how many of a running trial stay; a second one is there should the newest be damaged.
    """

    every_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    keep: int = Field(default=1, ge=1, le=1000)


class Budget(_Part):
    """What a sweep may spend; see `sweeper.execution.controllers.budget` for what happens when it is spent.

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


class Notification(_Part):
    """Whom to notify of what, see `sweeper.notifications`; the short form is the address or command alone.

    Attributes:
        webhook: an http or https address that takes a JSON POST. `${NAME}` stands for a variable of the driver's
            environment: that is where secrets belong, and a literal address that may hold one is refused.
        command: a program and its arguments, run without a shell; it reads the same JSON from its standard input.
        on: events: the sweep's `end`, the `failure` of a trial or of the sweep, a spent `budget`.
    """

    webhook: str | None = None
    command: list[str] | None = None
    on: list[Literal["end", "failure", "budget"]] = ["end", "failure", "budget"]


class Training(_Part):
    """How training steps are computed, see `trainables.training.acceleration`; evaluations always are in float32.

    The defaults are what every result repeats under. The others are meant for a GPU's tensor cores. On a CPU with
    bfloat16 instructions they speed up convolutions (resnet8 1.2 to 1.3 times) and slow small matrices down (mlp 0.7
    times), measured on a busy machine, n = 3; `make bench-training` measures them on yours.
    """

    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    data: Literal["auto", "device", "host"] = "auto"
    deterministic: bool = False
    graphs: bool = False
    sync_batch_norm: bool = True


class Evaluation(_Part):
    """What an evaluation measures.

    Attributes:
        bins: bins of the calibration errors; 15 as in Guo et al. 2017 (arXiv:1706.04599), section 5.
        posthoc: calibration methods fitted on validation data, each `{name: …, option: value}`.
        curvature: settings of the curvature measurement, or `False` for none.
        bootstrap: resamples for the calibration errors' standard errors; 0 for none.
        trajectory: what to measure after each epoch (mukhoti Figs. 2 to 4); `null` for nothing but the usual.
        metrics: what is measured besides, the project's further metrics or your own, each `{name: …, option: value}`.
        splits: the data set's splits to measure on by name, among them `val`, which post-hoc methods are fitted on; and
            shifts, which finished networks are measured on, each `{name: …, option: value}`.
    """

    bins: int = Field(default=15, ge=1, le=1000)
    posthoc: list[dict[str, Any]] = Field(default_factory=list)
    curvature: dict[str, Any] | Literal[False] = Field(default_factory=dict)
    bootstrap: int = Field(default=100, ge=0, le=100_000)
    trajectory: Trajectory | None = None
    metrics: list[dict[str, Any]] = Field(default_factory=list)
    splits: list[str | dict[str, Any]] = ["val", "test"]

    @property
    def own_splits(self) -> list[str]:
        """The data set's splits that every evaluation measures on."""
        return [each for each in self.splits if isinstance(each, str)]

    @property
    def shifts(self) -> list[dict[str, Any]]:
        """The splits beyond the data set's own, which the last evaluation measures on."""
        return [each for each in self.splits if isinstance(each, dict)]


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


class SweepSpec(_Part):
    """A checked search space file, every default filled in.

    Attributes:
        dataset: `{name: …, option: value}`.
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
        notify: who is notified of the end, of failures and of an exhausted budget.
        priority: among sweeps on one cluster: none starts a trial while one of higher priority has trials waiting.
        rehearsal: what `--rehearse` changes beyond its general rules, written like the file itself.
        rehearsed: what a rehearsal changed, a sentence each; empty for the real thing.
    """

    header: Header = Header()
    dataset: dict[str, Any]
    objective: Objective = Objective()
    objectives: list[Objective] = Field(default_factory=list)
    constraints: list[Guard] = Field(default_factory=list)
    scheduler: SchedulerSettings
    samples: int = Field(ge=1, le=MAXIMUM_CONFIGURATIONS)
    searcher: SearcherSettings = SearcherSettings()
    replicates: Replicates = Replicates()
    seed: int = Field(default=0, ge=0)
    space: Annotated[Fields, GetPydanticSchema(lambda source, handler: _TREE)]
    resources: Resources = Resources()
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    retries: int = Field(default=2, ge=0, le=100)
    trial_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    hang_timeout: float | None = Field(default=600.0, gt=0, allow_inf_nan=False)
    checkpoint: Checkpoint = Checkpoint()
    budget: Budget | None = None
    keep: Keep = Keep()
    max_concurrent: int | None = Field(default=None, ge=1)
    priority: int = Field(default=0, ge=-1000, le=1000)
    notify: list[Notification] = Field(default_factory=list)
    rehearsal: dict[str, Any] | None = None
    rehearsed: list[str] = Field(default_factory=list)

    @property
    def is_rehearsal(self) -> bool:
        """Whether this is a scaled-down run on stand-in data, whose numbers answer no question."""
        return bool(self.rehearsed)

    @property
    def schedule(self) -> Scheduler:
        """The scheduler, with the objective it compares."""
        chosen, goal = self.scheduler, self.objective
        settings = chosen.settings
        within = settings.pop(WITHIN.name, None)
        settings.pop(TOO_SMALL.name, None)
        scheduler: Scheduler = SCHEDULERS.build(
            chosen.name, goal.metric, goal.mode, max_epochs=chosen.max_epochs, **settings
        )
        if (self.objectives or self.constraints) and isinstance(scheduler, Halving):
            goals = tuple(Goal(each.metric, each.mode) for each in self.objectives or (goal,))
            scheduler = ranked(scheduler, goals, tuple(each.constraint for each in self.constraints))
        if not isinstance(within, list):
            return scheduler
        from sweeper.space.configurations import configurations  # which needs this module

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
        values = self.model_dump(mode="json")
        values["header"] = {key: text for key, text in values["header"].items() if text}
        if not self.replicates.common_seeds:
            del values["replicates"]["seeds"]  # so that the same file resolves to what it always did
        if self.replicates.lanes == "auto":
            del values["replicates"]["lanes"]  # likewise
        if self.evaluation.splits == Evaluation().splits:
            del values["evaluation"]["splits"]  # likewise
        if self.resources.workers == 1:
            del values["resources"]["workers"]  # likewise
        if self.training.sync_batch_norm:
            del values["training"]["sync_batch_norm"]  # likewise
        if self.checkpoint == Checkpoint():
            del values["checkpoint"]
        if self.keep == Keep():
            del values["keep"]  # likewise
        if self.searcher == SearcherSettings():
            del values["searcher"]
        elif not self.searcher.warm_start:
            del values["searcher"]["warm_start"]
        return {key: v for key, v in values.items() if v or key not in LEFT_OUT_IF_EMPTY}
