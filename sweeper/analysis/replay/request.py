"""What to replay, as the options of `sweeper what-if` say it, checked before anything is read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import yaml

from sweeper.analysis.replay.replaying import Candidate
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.plain import Plain
from sweeper.results import Results
from sweeper.scheduling import DEFAULT, SCHEDULERS
from sweeper.space.loading import check_scheduler
from trainables.registry.measured import larger_is_better
from trainables.registry.nearest import did_you_mean

ONE_POOL = "none"
"""What `--within` calls no strata."""


def candidates(
    results: Results,
    schedulers: Sequence[str] = (),
    within: Sequence[str] = (),
    objectives: Sequence[str] = (),
) -> list[Candidate]:
    """Return every combination of schedulers, strata and objectives.

    Args:
        results: the sweep to replay.
        schedulers: YAML, `median_stopping` or `{name: asha, reduction_factor: 2}`; ASHA by default.
        within: paths that divide trials, `architecture,loss`, or `none` for one pool; one pool by default.
        objectives: metrics, `val_refinement_nll` or `val_s99:max`; the sweep's own by default.

    Raises:
        InvalidSearchSpace: with every fault of the schedulers and paths.
    """
    written = results.specification.get("objective", {})
    own = (written.get("metric", "val_nll"), written.get("mode", "min"))
    goals = [_objective(text) for text in objectives] or [own]
    faults: list[Fault] = []
    settings = [
        _scheduler(text, results.specification["scheduler"]["max_epochs"], faults) for text in schedulers or (DEFAULT,)
    ]
    strata = [() if text == ONE_POOL else tuple(filter(None, text.split(","))) for text in within or (ONE_POOL,)]
    columns = [name for name in results.columns("trials") if name.startswith("config_")]
    for path in dict.fromkeys(path for paths in strata for path in paths):
        part, _, key = path.partition(".")
        if f"config_{part}_{key or 'name'}" not in columns:
            hint = did_you_mean(path, tuple(_path(column) for column in columns)).removeprefix("; ")
            faults.append(Fault("--within", f"{path!r} is not a path of the space", hint))
    if faults:
        raise InvalidSearchSpace(faults, "what-if")
    return [
        Candidate(scheduler, paths, metric, mode)
        for (metric, mode), scheduler, paths in itertools.product(goals, settings, strata)
    ]


def varying_names(results: Results) -> tuple[str, ...]:
    """Return the parts of the space, of architecture and loss, whose names differ: the strata to count survivors in.

    Raises SweeperError where none does.
    """
    columns = results.columns("trials")
    parts = [part for part in ("architecture", "loss") if f"config_{part}_name" in columns]
    counts = results.rows(
        "SELECT " + ", ".join(f"count(DISTINCT config_{part}_name) AS {part}" for part in parts) + " FROM trials"
    )[0]
    found = tuple(part for part in parts if counts[part] not in (0, 1, None))
    if not found:
        raise SweeperError("the sweep has one network and one loss", "name the strata to count survivors in with --by")
    return found


def _path(column: str) -> str:
    """Return the path of a column: `loss` of `config_loss_name`, `loss.score` of `config_loss_score`."""
    part, _, key = column.removeprefix("config_").partition("_")
    return part if key == "name" else f"{part}.{key}"


def _objective(text: str) -> tuple[str, Literal["min", "max"]]:
    metric, _, mode = text.partition(":")
    if mode not in ("", "min", "max"):
        raise SweeperError(f"the objective {text!r} ends with {mode!r}", "write metric, metric:min or metric:max")
    larger = larger_is_better(metric)
    return metric, "max" if mode == "max" or (larger and not mode) else "min"


def _scheduler(text: str, max_epochs: int, faults: list[Fault]) -> Mapping[str, Any]:
    """Return a scheduler's settings, defaults filled in; its faults are added to `faults`."""
    try:
        read: Plain = yaml.safe_load(text)
    except yaml.YAMLError as error:
        faults.append(Fault("--scheduler", f"{text!r} is not YAML: {str(error).splitlines()[0]}", "e.g. {name: asha}"))
        return {"name": DEFAULT}
    given = read if isinstance(read, dict) else {"name": read}
    return check_scheduler({**given, "max_epochs": max_epochs}, SCHEDULERS, faults)


def described(candidate: Candidate) -> Iterator[str]:
    """Yield a candidate in a few words: scheduler, settings that differ from its defaults, strata, objective."""
    name = str(candidate.scheduler["name"])
    known = {each.name: each.default for each in SCHEDULERS[name].hyperparameters}
    settings = [
        f"{key} {value}"
        for key, value in candidate.scheduler.items()
        if key not in ("name", "max_epochs") and value != known.get(key)
    ]
    yield f"{name} ({', '.join(settings)})" if settings else name
    yield ", ".join(candidate.within) if candidate.within else "one pool"
    yield candidate.metric
