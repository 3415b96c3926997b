"""The parts of a search space file as pydantic models: plug-ins, what is measured, how trials are trained."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.json_types import Values
from sweeper.journal.best import Mode
from sweeper.scheduling import DEFAULT, SCHEDULERS, Scheduler
from sweeper.scheduling.base import TOO_SMALL, WITHIN
from sweeper.scheduling.ranking import Constraint, constraint_of
from sweeper.search.base import SEARCHERS, SearchMethod
from trainables.registry.hyperparameters import argument_texts

if TYPE_CHECKING:
    from sweeper.space.spec import SweepSpec  # of which these are parts
    from trainables.training.acceleration import TrainingSettings
    from trainables.training.evaluation import EvaluationSettings


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Give each property of a model's JSON schema what the model's docstring says of it."""
    for name, (said, _) in argument_texts(model).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = said


class Part(BaseModel):
    """A mapping of a search space file: no value is converted, and no unknown key is let in."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, json_schema_extra=_describe)


#: A plug-in's setting as YAML writes it.
Setting = str | bool | int | float | list[float] | list[str] | None


class _PlugIn(Part):
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

    def built(self, metric: str, mode: Mode) -> Scheduler:
        """Return the scheduler that compares one objective in one pool.

        Raises InvalidSearchSpace where settings that nobody checked, as of a file that is only read, are not valid.
        """
        apart = (WITHIN.name, TOO_SMALL.name)
        settings = {key: value for key, value in self.settings.items() if key not in apart}
        try:
            scheduler: Scheduler = SCHEDULERS.build(self.name, metric, mode, max_epochs=self.max_epochs, **settings)
        except (ValueError, TypeError) as error:
            raise InvalidSearchSpace([Fault("scheduler", str(error))]) from error
        return scheduler


class SearcherSettings(_PlugIn):
    """How configurations are chosen: a name of `sweeper.search.SEARCHERS` and its settings."""

    name: str = "random"

    @property
    def method(self) -> SearchMethod:
        """The searcher with its settings."""
        method: SearchMethod = SEARCHERS.build(self.name, **self.settings)
        return method

    @property
    def learns(self) -> bool:
        """Whether a configuration depends on what was observed before, so that none is known in advance."""
        return self.method.learns


class Objective(Part):
    """What the scheduler compares: one metric's mean over the replicates that have not diverged.

    A trial of which some replicates diverged continues with the others; every decision on it names those left out.

    Attributes:
        metric: as `sweeper spaces --metrics` names it, after its split.
        mode: whether it should be small or large.
        margin: the largest difference that counts as none, in the first screen and in `compare`; by default 0.01.
    """

    metric: str = "val_nll"
    mode: Literal["min", "max"] = "min"
    margin: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Guard(Part):
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


class TrajectoryCurvature(Part):
    """How λ_max of the training loss's Hessian is measured after epochs, and its product with the learning rate.

    Attributes:
        every: epochs from one measurement to the next.
        samples: how many training samples; by default so many that it costs at most a tenth of an epoch.
        products: the most Hessian-vector products of one measurement, which starts where the last one ended.
    """

    every: int = Field(default=1, ge=1)
    samples: int | None = Field(default=None, ge=1)
    products: int = Field(default=3, ge=1)


class Trajectory(Part):
    """What is measured after each epoch besides the usual, as further columns of the table `epochs`.

    Attributes:
        splits: where losses, entropies and norms are measured.
        every: epochs from one measurement to the next.
        gradient_norms: epochs after which the training samples' gradient norms are counted (mukhoti Fig. 4).
        curvature: how sharpness is measured; `null` for not at all.
    """

    splits: list[str] = Field(default=["train", "test"])
    every: int = Field(default=1, ge=1)
    gradient_norms: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    curvature: TrajectoryCurvature | None = None


class Evaluation(Part):
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
    posthoc: list[Values] = Field(default_factory=list)
    curvature: Values | Literal[False] = Field(default_factory=dict)
    bootstrap: int = Field(default=100, ge=0, le=100_000)
    trajectory: Trajectory | None = None
    metrics: list[Values] = Field(default_factory=list)
    splits: list[str | Values] = Field(default=["val", "test"])

    @property
    def settings(self) -> EvaluationSettings:
        """These settings as trials take them."""
        from trainables.training.evaluation import EvaluationSettings  # brings torch along

        return EvaluationSettings.from_mapping(self.model_dump())

    @property
    def own_splits(self) -> list[str]:
        """The data set's splits that every evaluation measures on."""
        return [each for each in self.splits if isinstance(each, str)]

    @property
    def shifts(self) -> list[Values]:
        """The splits beyond the data set's own, which the last evaluation measures on."""
        return [each for each in self.splits if isinstance(each, dict)]


#: Of one configuration.
MOST_SEEDS = 1000


class Replicates(Part):
    """How many seeds each configuration is trained with, and how they share a processor.

    `sequential` trains one after the other, `fused` all at once as lanes of one network; `auto` measures both for a
    few steps and keeps the faster for the sweep. `trials`, for networks that fill a GPU, gives each replicate a
    process of its own from one rung to the next, with all of `resources`; the scheduler still judges their mean. Lanes
    round otherwise than a network alone, and a measurement may choose differently on another machine; so `sequential`,
    whose numbers repeat everywhere, is the default.

    `cohort` trains the replicates of several configurations together, as lanes of one network that are refilled as
    trials end, in each process of any executor. `lanes` says how many; `auto` measures how many are fastest, and a
    network that is faster alone trains alone, one replicate after the other. `packing: auto` chooses cohorts, too,
    where they are measured to be faster.

    `at_most` begins a final stage after the sweep, see `sweeper.scheduling.contenders`: the best configurations of each
    network and of each loss get fresh seeds, up to so many seeds of one configuration in all.

    Each configuration has seeds of its `own`, or all have them in `common`: then a seed's luck falls out of the
    difference of two configurations, and what holds for these seeds says less about others. A list has these seeds.
    """

    count: int = Field(default=1, ge=1, le=MOST_SEEDS)
    at_most: int | None = Field(default=None, ge=2, le=MOST_SEEDS)
    packing: Literal["auto", "cohort", "fused", "sequential", "trials"] = "sequential"
    lanes: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    seeds: Literal["own", "common"] | list[Annotated[int, Field(ge=0, lt=2**63)]] = "own"

    @model_validator(mode="after")
    def _require_a_seed_each(self) -> Self:
        if isinstance(self.seeds, list) and len(set(self.seeds)) != self.count:
            raise ValueError(f"seeds = {self.seeds} must be as many different ones as count = {self.count}")
        if self.at_most is not None and self.at_most <= self.count:
            rule = f"at_most = {self.at_most} must be above count = {self.count}: it counts the sweep's own seeds, too"
            raise ValueError(rule)
        return self

    @property
    def common_seeds(self) -> bool | list[int]:
        """Whether replicate r has the same seed in every configuration; the seeds themselves where these are given."""
        return self.seeds if isinstance(self.seeds, list) else self.seeds == "common"

    @property
    def lane_count(self) -> int:
        """The lanes of a cohort; 0 where it is measured how many are best."""
        return 0 if self.lanes == "auto" else self.lanes

    @property
    def in_cohorts(self) -> bool:
        """Whether trials train together, in cohorts, where their networks can."""
        return self.packing in ("auto", "cohort")


def _gpu(value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"gpu = {value!r} must be auto or a number of at least 0")
    if value > 1 and value != int(value):
        raise ValueError(f"gpu = {value!r}: more than one card must be a whole number of cards")
    return value


class Resources(Part):
    """What a trial's process needs.

    `gpu: 0.25` packs four on a GPU, `gpu: auto` takes, where there is a GPU, the share that its memory was measured
    to need. Either way a trial that runs out of a GPU's memory is tried again on twice its share.
    A training loop of the user's own may take several whole GPUs.
    """

    cpu: float = Field(default=1, gt=0, allow_inf_nan=False)
    gpu: Annotated[float | Literal["auto"], BeforeValidator(_gpu)] = "auto"

    def of_trial(self, *, gpus: object) -> dict[str, float]:
        """Return what a trial's process gets: for `auto` a quarter of a GPU, if there are any."""
        gpu = float(self.gpu) if self.gpu != "auto" else (0.25 if gpus else 0.0)
        return {"cpu": float(self.cpu), "gpu": gpu}


class Training(Part):
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

    @property
    def settings(self) -> TrainingSettings:
        """These settings as trials take them."""
        from trainables.training.acceleration import TrainingSettings  # brings torch along

        return TrainingSettings(**self.model_dump())


class Checkpoint(Part):
    """How often a running trial's checkpoint is written; see `trainables.worker.checkpoints`.

    Attributes:
        every_seconds: between two checkpoints: at most so much training is lost with a process, and what it did since
            its last report. At 0 each report has one, every 10 s or epoch, written before it goes out, as each rung
            has.
        keep: how many of a running trial stay; a second one is there should the newest be damaged.
    """

    every_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    keep: int = Field(default=1, ge=1, le=1000)


class Keep(Part):
    """Whose checkpoints are kept when trials have ended, for `sweeper export`.

    Attributes:
        best: how many trials; of each stratum where `per` names paths.
        per: paths of the space that divide trials, as `scheduler.within`, e.g. `[loss]`.
    """

    best: int = Field(default=1, ge=1)
    per: list[str] = Field(default_factory=list)


def gpu_faults(spec: SweepSpec) -> list[Fault]:
    """Return what is wrong with a trial's share of cards: of several, this program's own training loop uses one."""
    gpu = spec.resources.gpu
    if spec.loop is not None or gpu == "auto" or gpu <= 1:
        return []
    rule = f"gpu = {gpu:g} would reserve {gpu:g} cards for each process, which trains on one of them"
    remedy = "set gpu: 1, and the other cards train other trials; only a training loop of your own can use several"
    return [Fault("resources.gpu", rule, remedy)]
