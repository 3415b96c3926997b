"""The structure of a search space file: strict pydantic models, short forms, and pydantic's errors as faults.

The rest of the project reads a `SweepSpec`; `sweeper.space.loading` builds it from a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetPydanticSchema, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticKnownError, core_schema

from sweeper.core.domains.base import parse
from sweeper.core.domains.space import Space
from sweeper.core.domains.values import Plain, Values, join_path, part_of
from sweeper.core.errors import Fault, InvalidSearchSpace
from sweeper.core.ids import ReplicateSeeds, is_added
from sweeper.journal.best import Mode
from sweeper.scheduling import DEFAULT, SCHEDULERS, Scheduler
from sweeper.scheduling.base import WITHIN, RungState
from sweeper.scheduling.contenders import FIRST_SEEDS, PARTS, FinalStage, Questions, TrialValues
from sweeper.scheduling.lines import NETWORK, Line
from sweeper.scheduling.order import VirtualOrder
from sweeper.scheduling.strata import stratified
from sweeper.search.base import SEARCHERS, SearchMethod
from sweeper.space.configurations import configurations
from sweeper.space.file import SHORT_FORMS
from trainables.registry import FITTED_ON, entry_label
from trainables.registry.hyperparameters import argument_texts
from trainables.registry.names import CROSS_FITTED, hint, measured_as

if TYPE_CHECKING:
    from trainables.training.acceleration import TrainingSettings
    from trainables.training.evaluation import EvaluationSettings

#: The driver keeps the state of every trial in memory.
MAXIMUM_CONFIGURATIONS = 1_000_000

#: Keys that can be empty, for example because all lines below them are commented out.
MAY_BE_EMPTY = ("header", "objective", "resources", "evaluation", "keep", "replicates", "searcher", "training")

#: (Part, key) of lists for which a single member can be written without brackets.
LISTS = (("keep", "per"), ("scheduler", WITHIN.name))

#: Keys of the scheduler that every scheduler takes: how its reports are ordered.
ORDER = ("order", "width")

#: The order in which processes report, as opposed to `canonical`.
ARRIVAL = "arrival"


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Copy the attribute descriptions of a model's docstring into its JSON schema."""
    for name, (text, _) in argument_texts(model).items():
        if name in schema["properties"]:
            schema["properties"][name]["description"] = text


class Part(BaseModel):
    """A mapping in a search space file. Values are not converted, and unknown keys are refused."""

    # Strict, because `samples: "4"` or `bins: 15.0` is more often a mistake than meant.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, json_schema_extra=_describe)


#: A plug-in's setting in YAML.
Setting = str | bool | int | float | list[float] | list[str] | None


class _PlugIn(Part):
    """A plug-in's name and settings, already checked against its registry and completed with its defaults."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, Setting] = Field(init=False)

    @property
    def settings(self) -> dict[str, Setting]:
        """The plug-in's own settings, without those shared by all of its kind."""
        return dict(self.__pydantic_extra__)


class SchedulerSettings(_PlugIn):
    """The scheduler, which stops trials early: a name in `sweeper.scheduling.SCHEDULERS` and its settings.

    Attributes:
        order: order in which reports are judged. `canonical` is that of a virtual machine, so that decisions follow
            from the file alone; `arrival` is that in which processes report. See `sweeper.scheduling.order`.
        width: number of virtual workers in canonical order, whose decisions depend on it; `None` in order of arrival.

    Example:
        >>> SchedulerSettings(name="asha", max_epochs=9, grace_epochs=3).built("val_nll", "min").rungs
        (3, 9)
    """

    name: str = DEFAULT
    max_epochs: int
    order: Literal["canonical", "arrival"] = "canonical"
    width: int | None = Field(default=32, ge=1, le=MAXIMUM_CONFIGURATIONS)

    def built(self, metric: str, mode: Mode) -> Scheduler:
        """Return a scheduler for one objective and one pool of trials.

        Raises:
            InvalidSearchSpace: the settings are invalid. This is possible only in a file that is read without being
                checked.
        """
        # `SweepSpec.schedule` handles strata, because a scheduler itself handles only one pool.
        settings = {key: value for key, value in self.settings.items() if key != WITHIN.name}
        try:
            scheduler: Scheduler = SCHEDULERS.build(self.name, metric, mode, max_epochs=self.max_epochs, **settings)
        except (ValueError, TypeError) as error:
            raise InvalidSearchSpace([Fault("scheduler", str(error))]) from error
        return scheduler


class SearcherSettings(_PlugIn):
    """The searcher, which chooses configurations: a name in `sweeper.search.SEARCHERS` and its settings.

    Example:
        >>> SearcherSettings(name="optuna", startup=4).learns
        True
    """

    name: str = "random"

    @property
    def method(self) -> SearchMethod:
        """The searcher with its settings."""
        method: SearchMethod = SEARCHERS.build(self.name, **self.settings)
        return method

    @property
    def learns(self) -> bool:
        """Whether configurations depend on earlier observations. If so, they are not known in advance."""
        return self.method.learns


class Objective(Part):
    """The objective that the scheduler compares: the mean of a metric over the replicates that have not diverged.

    If some replicates of a trial diverge, the trial continues with the others. Every decision on it records how many
    are excluded.

    Attributes:
        metric: split and name of the metric, e.g. `val_nll`; `sweeper spaces --metrics` lists the names. By default
            `val_posthoc_temperature_nll`, cross-fitted, if `evaluation.posthoc` names `temperature`; else `val_nll`.
        mode: `min` if small values are better, `max` if large ones are.
        margin: largest difference of the metric, in its own unit, that counts as no difference; by default every
            difference counts. Differences in ECE have the margin 0.01, unless the objective is an ECE.
    """

    metric: str = "val_nll"
    mode: Literal["min", "max"] = "min"
    margin: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class Trajectory(Part):
    """Further measurements after each epoch, as columns of the table `epochs`.

    Attributes:
        splits: splits on which losses, entropies and norms are measured.
        every: number of epochs between measurements.
        gradient_norms: epochs after which the training samples' gradient norms are counted in bins (mukhoti Fig. 4).
    """

    splits: list[str] = Field(default=["train", "test"])
    every: int = Field(default=1, ge=1)
    gradient_norms: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)


class Evaluation(Part):
    """The measurements of an evaluation.

    Attributes:
        bins: number of bins of the calibration errors; 15 as in Guo et al. 2017 (arXiv:1706.04599), section 5.
        posthoc: calibration methods fitted on validation data, each `{name: …, option: value}`.
        curvature: settings of the curvature measurement, or `False` for none.
        bootstrap: number of resamples for the calibration errors' standard errors; 0 for none.
        trajectory: further measurements after each epoch (mukhoti Figs. 2 to 4); `null` for none.
        metrics: further metrics, the project's or your own, each `{name: …, option: value}`.
        splits: names of the data set's splits, and shifts as `{name: …, option: value}`. The splits include `val`, on
            which post-hoc methods are fitted. Shifts are measured on finished networks only.
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
        """The settings in the form that trials use."""
        from trainables.training.evaluation import EvaluationSettings  # imports torch

        return EvaluationSettings.from_mapping(self.model_dump())

    @property
    def own_splits(self) -> list[str]:
        """The data set's own splits, on which every evaluation measures."""
        return [split for split in self.splits if isinstance(split, str)]

    @property
    def shifts(self) -> list[Values]:
        """The shifts, on which only the last evaluation measures."""
        return [split for split in self.splits if isinstance(split, dict)]


#: Largest number of seeds per configuration.
MOST_SEEDS = 1000


class Replicates(Part):
    """The number of seeds per configuration, and how they share a processor.

    `packing: sequential` trains replicates one after the other. `trials` trains each replicate in a separate process
    from one rung to the next. It suits networks that fill a GPU, because each process gets all of `resources`. The
    scheduler still compares the mean over replicates. The default is `sequential`, because its numbers repeat on every
    machine: lanes round differently from a single network, and their number is measured unless it is set.

    `lanes` trains the replicates of one or several configurations together, as lanes of one network, in each process of
    any executor. A lane is refilled when its trial ends. The setting `lanes` is the number of lanes; with `auto`, a few
    steps of each kind of network measure the fastest number. A network trains one replicate after the other if it
    cannot be lanes, or if the measurement shows that lanes are slower. A network or loss of your own, and training that
    is compiled or in bfloat16, has lanes for the replicates of one configuration at a time. `packing: auto` also
    measures whether these are faster than one replicate after the other.

    `at_most` adds a final stage to the sweep: the best configurations of each network and of each loss get fresh seeds,
    up to this total number of seeds per configuration. See `sweeper.scheduling.contenders`.

    `seeds: own` gives each configuration different seeds. `common` gives all configurations the same seeds. This
    cancels seed effects in the difference of two configurations, but says less about other seeds. A list gives the
    common seeds themselves.

    Example:
        >>> Replicates(count=2, seeds=[11, 12]).common_seeds
        [11, 12]
    """

    count: int = Field(default=1, ge=1, le=MOST_SEEDS)
    at_most: int | None = Field(default=None, ge=2, le=MOST_SEEDS)
    packing: Literal["auto", "lanes", "sequential", "trials"] = "sequential"
    lanes: Literal["auto"] | Annotated[int, Field(ge=1, le=4096)] = "auto"
    seeds: Literal["own", "common"] | list[Annotated[int, Field(ge=0, lt=2**63)]] = "own"

    @model_validator(mode="after")
    def _require_a_seed_each(self) -> Self:
        if isinstance(self.seeds, list) and len(set(self.seeds)) != self.count:
            raise ValueError(f"seeds = {self.seeds} must be count = {self.count} different seeds")
        if self.at_most is not None and self.at_most <= self.count:
            rule = f"at_most = {self.at_most} must be above count = {self.count}: it includes the sweep's own seeds"
            raise ValueError(rule)
        return self

    @property
    def common_seeds(self) -> bool | list[int]:
        """Whether replicate r has the same seed in every configuration; if the file lists the seeds, that list."""
        return self.seeds if isinstance(self.seeds, list) else self.seeds == "common"

    @property
    def lane_count(self) -> int:
        """The number of lanes; 0 if it will be measured."""
        return 0 if self.lanes == "auto" else self.lanes

    @property
    def together(self) -> bool:
        """Whether trials share lanes if their networks allow it."""
        return self.packing in ("auto", "lanes")


def _gpu(value: object) -> object:
    if value == "auto":
        return value
    # `gpu: yes` is text in YAML 1.2, but `gpu: true` is a boolean, which Python counts as 1.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise ValueError(f"gpu = {value!r} must be auto or a number of at least 0")
    if value > 1 and value != int(value):  # Ray refuses fractions above 1, too
        raise ValueError(f"gpu = {value!r} must be a whole number, because it is above 1")
    return value


class Resources(Part):
    """The resources of a trial's process.

    `gpu: 0.25` packs four trials on a GPU. `gpu: auto` measures a trial's memory and reserves that share of the GPU, if
    there is one. In both cases, a trial that runs out of GPU memory is retried with twice its share. A user's training
    loop can take several whole GPUs.

    Example:
        >>> Resources(cpu=2).of_trial(gpus=["NVIDIA H100"])
        {'cpu': 2.0, 'gpu': 0.25}
    """

    cpu: float = Field(default=1, gt=0, allow_inf_nan=False)
    gpu: Annotated[float | Literal["auto"], BeforeValidator(_gpu)] = "auto"

    def of_trial(self, *, gpus: object) -> dict[str, float]:
        """Return the CPUs and GPUs of a trial's process."""
        # The first guess for `auto`: four trials on a GPU, until its memory has been measured.
        gpu = float(self.gpu) if self.gpu != "auto" else (0.25 if gpus else 0.0)
        return {"cpu": float(self.cpu), "gpu": gpu}


class Training(Part):
    """How training steps are computed, see `trainables.training.acceleration`; evaluations always use float32.

    `class_weights` weights samples by class in the loss and in its curvature, and `sampler: balanced` draws all classes
    equally often, see `trainables.training.weighting`. Metrics depend on neither.

    With the defaults, results are reproducible. The other values are meant for a GPU's tensor cores. On a CPU with
    bfloat16 instructions they speed up convolutions (resnet8: 1.2 to 1.3 times as fast) and slow down small matrices
    (mlp: 0.7 times as fast). These factors were measured on a busy machine (n = 3). `make bench-card` measures them on
    your GPU.
    """

    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    data: Literal["auto", "device", "host"] = "auto"
    deterministic: bool = False
    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] | None = None
    sampler: Literal["shuffled", "balanced"] = "shuffled"

    @property
    def settings(self) -> TrainingSettings:
        """The settings in the form that trials use."""
        from trainables.training.acceleration import TrainingSettings  # imports torch

        return TrainingSettings(**self.model_dump())


class Checkpoint(Part):
    """How often a running trial's checkpoint is written; see `trainables.worker.checkpoints`.

    Attributes:
        every_seconds: seconds between two checkpoints. A process that dies loses at most this much training, plus the
            time since its last report. With 0, a checkpoint is written before every report, which is every 10 s or
            epoch. At rungs, a checkpoint is always written.
        keep: number of checkpoints kept per running trial. A second checkpoint helps if the newest is damaged.
    """

    every_seconds: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    keep: int = Field(default=1, ge=1, le=1000)


class Keep(Part):
    """The ended trials whose checkpoints are kept, for `sweeper export`.

    Attributes:
        best: number of best trials, in each stratum if `per` names paths. Of as many configurations that are best by
            fresh seeds, these seeds are kept, too.
        per: paths of the space that divide trials into strata, like `scheduler.within`, e.g. `[loss]`.
    """

    best: int = Field(default=1, ge=1)
    per: list[str] = Field(default_factory=list)


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


def _space(space: object) -> Space:
    """Return a space; the values of a resolved file are parsed, a parsed space is returned unchanged."""
    if isinstance(space, Space):
        return space
    if not isinstance(space, dict):
        raise PydanticKnownError("dict_type")
    faults: list[Fault] = []
    parsed = Space({key: parse(part, key, faults) for key, part in space.items()})
    if faults:
        raise InvalidSearchSpace(faults)
    return parsed


# pydantic has no type for trees of domains. So a plain validator keeps the parsed object, and dumping writes it as YAML
# values.
_TREE = core_schema.no_info_plain_validator_function(
    _space, serialization=core_schema.plain_serializer_function_ser_schema(Space.plain)
)


#: Where the lines of `which` are: through the winner, or through the best configuration of each network.
WINNER, EACH = "winner", "each"
Through = Literal["winner", "each"]


def through_winner(asked: object) -> Any:
    """Expand the short form of `which`, a name or a list of names."""
    names = [asked] if isinstance(asked, str) else asked
    return dict.fromkeys(names, WINNER) if isinstance(names, list) and all(isinstance(n, str) for n in names) else asked


class SweepSpec(Part):
    """A checked search space file with every default filled in.

    Attributes:
        dataset: the data set, `{name: …, option: value}`.
        loop: import path of the user's training loop, see `trainables.training.own_loop`.
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
        which: hyperparameters that the space draws. For each, the final stage trains several values, all else as in the
            winner, or as in the best of each network for `{gamma: each}`. A name such as `gamma` is enough if it fits
            one path; `loss` stands for all losses.
        cross_entropy_at_zero: loss → hyperparameters that, all at 0, make it cross-entropy; filled in from the losses.
        rehearsal: changes that `--rehearse` makes, path → value as `--set` takes them; of the file, not of its sweep.
        rehearsed: changes that a rehearsal made, `path = value` each; empty for a real sweep.

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
    objective: Objective = Objective()
    scheduler: SchedulerSettings
    samples: int = Field(ge=1, le=MAXIMUM_CONFIGURATIONS)
    searcher: SearcherSettings = SearcherSettings()
    replicates: Replicates = Replicates()
    seed: int = Field(default=0, ge=0)
    space: Annotated[Space, GetPydanticSchema(lambda *_: _TREE, lambda *_: {"type": "object"})]
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
    tracking: Tracking = Tracking()
    which: Annotated[dict[str, Through], BeforeValidator(through_winner)] = Field(default_factory=dict)
    cross_entropy_at_zero: dict[str, list[str]] = Field(default_factory=dict)
    rehearsal: Values | None = Field(default=None, exclude=True)
    rehearsed: list[str] = Field(default_factory=list)

    @property
    def is_rehearsal(self) -> bool:
        """Whether this is a scaled-down run, whose results mean nothing."""
        return bool(self.rehearsed)

    @property
    def schedule(self) -> Scheduler:
        """The scheduler, with the objective it compares."""
        chosen, goal = self.scheduler, self.objective
        within = chosen.settings.get(WITHIN.name)
        scheduler = chosen.built(goal.metric, goal.mode)
        if not isinstance(within, list):
            return scheduler
        known = None if self.searcher.learns else configurations(self)
        return stratified(scheduler, [str(path) for path in within], known)

    def order(self, rungs: RungState) -> VirtualOrder | None:
        """Return the order in which reports are judged, before the first record; `None` for the order of arrival."""
        width, count = self.scheduler.width, self.replicates.count
        if width is None:
            return None
        return VirtualOrder(rungs, width, lambda index: 1 if is_added(index) else count, self.searcher.learns)

    @property
    def cross_fitted(self) -> list[str]:
        """Labels of the post-hoc methods that are cross-fitted, because their validation metrics are compared.

        Without a split `test`, all that are fitted on `val` are.
        """
        # If methods were fitted and measured on the same samples, more parameters would always look better.
        column = measured_as(self.objective.metric)[1]
        labels = [entry_label(method) for method in self.evaluation.posthoc]
        if "test" not in self.evaluation.splits:
            return [entry_label(method) for method in self.evaluation.posthoc if method.get(FITTED_ON, "val") == "val"]
        return [label for label in labels if column.startswith(f"{CROSS_FITTED}{label}_")]

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
    from sweeper.judging.judge import judge  # commands that only read a space do not need it
    from sweeper.judging.levels import in_play
    from sweeper.judging.outliers import outliers
    from sweeper.judging.question import Data, Question

    mode, margin = spec.objective.mode, spec.objective.margin or 0.0

    def racing(values: TrialValues, questions: Questions) -> Collection[str]:
        """Ask the first screen's question of the same seeds."""
        question = Question(
            [*values], spec.objective.metric, mode, margin=margin, relative=mode == "min", first=FIRST_SEEDS
        )
        return in_play(judge(question, Data(outliers(values, mode).kept(values))), questions)

    # A part with a single component has nothing to compare.
    parts = [part for part in PARTS if len(spec.space.names(part)) > 1]
    return FinalStage(mode, spec.replicate_seeds, spec.replicates.at_most, racing, parts, lines_of(spec))


def lines_of(spec: SweepSpec) -> list[Line]:
    """Return the lines that `which` asks for."""
    domains, networks = spec.space.lines, spec.space.names(NETWORK)
    return [
        Line(path, domains[path], spec.cross_entropy_at_zero, network)
        for path, through in spec.which.items()
        for network in (networks if through == EACH else [""])
    ]


def gpu_faults(spec: SweepSpec) -> list[Fault]:
    """Return a fault if a trial of the built-in training loop would reserve several GPUs."""
    gpu = spec.resources.gpu
    if spec.loop is not None or gpu == "auto" or gpu <= 1:
        return []
    rule = f"gpu = {gpu:g} would reserve {gpu:g} GPUs for each process, which trains on one of them"
    remedy = "set gpu: 1, and the other GPUs train other trials; only your own training loop can use several"
    return [Fault("resources.gpu", rule, remedy)]
