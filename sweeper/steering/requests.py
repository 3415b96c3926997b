"""What people and agents ask of a sweep while it runs, or before it is resumed: files in its folder `steering`.

A request is a file, whole or absent, that the driver takes up at its next turn, or the next driver when it begins. What
follows from it is a journal record (`Steered`) before the file goes, so that it is done once wherever a driver is
killed, and resume, tables and audit know of it. What changes neither configurations nor trials' number is done at once;
for anything else the driver ends as for `sweeper stop` and begins again at once with what was asked.
"""

from __future__ import annotations

import copy
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweeper.core.domains import grid_size
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError, writing_to
from sweeper.core.ids import SweepPaths, configuration_index, trial_name
from sweeper.journal.fields import Json, Number, Values, Written
from sweeper.journal.records import Drawn, Steered
from sweeper.journal.state import ENDED, SweepState
from sweeper.results import Results
from sweeper.space.configurations import configurations, configurations_of, named_components
from sweeper.space.file import Document, apply_overrides
from sweeper.space.loading import reopened_spec
from sweeper.steering.ledger import author
from sweeper.storage.lease import holder, process_of
from sweeper.storage.lookup import find_sweep, refuse_links
from sweeper.storage.places import split_name
from sweeper.storage.sweeps import NARROWED, Sweep, amended, open_sweep
from trainables.files.atomic import write_bytes
from trainables.files.stores.base import is_store_address

#: What `budget` sets.
LIMITS = ("gpu_hours", "wall_hours", "cost")

#: The keys of a search space that can be steered.
STEERED_SETTINGS = {"samples", NARROWED, *map("budget.{}".format, LIMITS)}

#: How often a driver looks for requests.
POLL_SECONDS = 0.5

#: Why a driver ends that begins again at once.
GOES_ON = "it goes on with what was steered"


@dataclass(frozen=True)
class SteeringRequest(Written):
    """What somebody asks of a sweep.

    Attributes:
        identity: the name of its file.
        time: Unix time in seconds.
        by, asked: who, and what, as typed.
        trials: that are to end, each with 0.
        settings: keys of the search space, with their values; of `narrowed` what is added to it.
        added: the values of configurations that are to be added.
    """

    identity: str
    time: Number
    by: str
    asked: str
    trials: Mapping[str, Number]
    settings: Values
    added: Sequence[Values]


def pending(paths: SweepPaths) -> list[SteeringRequest]:
    """Return the requests that no driver has taken up, in their order; a file that is none is set aside."""
    found = []
    for file in paths.steering.glob("*.json"):
        try:
            request = SteeringRequest.from_json(json.loads(file.read_bytes()))
            if request.identity != file.stem or not {*request.settings} <= STEERED_SETTINGS:
                raise ValueError("it asks for what nobody may steer")
            found.append(request)
        except (ValueError, AttributeError, RecursionError):
            file.rename(file.with_suffix(".refused"))
    return sorted(found, key=lambda each: each.time)


def ask(name: str, output: str, verb: str, what: Sequence[str], **options: str | int | None) -> str:
    """Leave a request for a sweep; return, in a sentence, when it is done.

    Args:
        name, output: of the sweep, in a folder.
        verb: of VERBS.
        what: limits of `budget`, `gpu_hours=2`; of `clone` the trial and then what differs, `loss.gamma=3`; of `boost`
            the trial; of `narrow` an interval with its new ends, `space.loss.focal.gamma=[1,4]`.
        options: `where` (SQL over the columns of the table `trials`, for `stop`), `samples` (for `extend`) and
            `replicates` (for `boost`).

    Raises SweeperError where the sweep cannot be steered so; the message says why.
    """
    name, output = split_name(name, output)
    if is_store_address(output):
        raise SweeperError("sweeps in an object store cannot be steered", "stop it, and resume it with --set")
    if verb not in VERBS:
        raise SweeperError(f"{verb!r} is no way to steer", f"choose {', '.join(VERBS)}")
    paths, given = find_sweep(name, output), {key: value for key, value in options.items() if value is not None}
    trials, settings, added = VERBS[verb](open_sweep(str(paths.root), Path(output)), what, given)
    asked = " ".join([verb, *what, *(f"--{key} {json.dumps(value)}" for key, value in given.items())])
    stopped = dict.fromkeys(trials, 0)
    request = SteeringRequest(secrets.token_hex(8), time.time(), author(), asked, stopped, settings, added)
    refuse_links(paths)
    with writing_to(paths.root, "ask its owner"):
        paths.steering.mkdir(exist_ok=True)
        write_bytes(paths.steering / f"{request.identity}.json", json.dumps(request.to_json()).encode(), durable=True)
    driver = holder(paths.lease)
    if driver is None:
        return f"{asked}: the next `sweeper resume {paths.in_commands}` does it"
    return f"{asked}: asked {process_of(driver)}"


#: Trials to stop, settings to change, configurations to add.
Asked = tuple[list[str], dict[str, Any], Sequence[Mapping[str, Any]]]


def _stop(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    if not (where := given.get("where")):
        raise SweeperError("stop needs to know which trials", "add --where \"config_loss_name = 'focal'\"")
    ended = ", ".join(f"'{each}'" for each in sorted(ENDED))
    sql = f"SELECT DISTINCT trial FROM trials WHERE ({where}) AND status NOT IN ({ended}) ORDER BY trial"
    trials = [str(row["trial"]) for row in Results(sweep.paths.root).rows(sql)]
    if not trials:
        raise SweeperError(f"no trial that runs or waits has {where}", "see `sweeper results --sql 'FROM trials'`")
    return trials, {}, []


def _budget(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    limits = dict(each.partition("=")[::2] for each in what)
    if not limits or not {*limits} <= {*LIMITS}:
        raise SweeperError(f"budget takes {', '.join(LIMITS)}", "write e.g. gpu_hours=2")
    found = amended(sweep, [f"budget.{key}={value}" for key, value in limits.items()]).spec.budget
    return [], {f"budget.{key}": getattr(found, key) for key in limits}, []


def _extend(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    samples = given.get("samples", 0)
    if samples <= sweep.spec.samples:
        raise SweeperError(f"the sweep has {sweep.spec.samples} samples", "give more: --samples N")
    amended(sweep, [f"samples={samples}"])
    return [], {"samples": samples}, []


def _narrow(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    path, _, ends = "".join(what).removeprefix("space.").partition("=")
    found = re.fullmatch(r"\[([^\],]+),([^\],]+)\]", ends)
    try:
        low, high = map(float, found.groups() if found else ())
    except ValueError as error:
        raise SweeperError("narrow needs an interval and its new ends", "write space.loss.focal.gamma=[1,4]") from error
    if sweep.spec.searcher.learns:
        raise SweeperError("narrow needs a space that is drawn at random", "in this sweep a searcher chooses")
    settings = {NARROWED: [{"path": path, "low": low, "high": high}]}
    _narrowed(sweep, settings, len(sweep.configurations))
    return [], settings, []


def _narrowed(sweep: Sweep, settings: Json, first: int) -> Json:
    """Return settings in which new ends hold from configuration `first` on, after those before. Raises SweeperError."""
    if NARROWED not in settings:
        return settings
    before = [each.model_dump() for each in sweep.spec.narrowed]
    whole = {**settings, NARROWED: [*before, *({"first": first, **each} for each in settings[NARROWED])]}
    amended(sweep, _texts(whole), NARROWED)
    return whole


def _configuration(sweep: Sweep, what: Sequence[str], example: str) -> Mapping[str, Any]:
    """Return the configuration of the trial that `clone` and `boost` name first. Raises SweeperError."""
    verb = example.partition(" ")[0]
    if grid_size(sweep.spec.space) > 1 or sweep.spec.searcher.learns:
        raise SweeperError(
            f"{verb} needs a space that is drawn at random", "this one has a grid, or a searcher chooses"
        )
    try:
        return copy.deepcopy(sweep.configurations[configuration_index(what[0] if what else "")])
    except (ValueError, LookupError) as error:
        raise SweeperError(f"{verb} needs a trial: {error}", f"write e.g. {example}") from error


def _clone(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    spec, document = sweep.spec, Document(values=dict(_configuration(sweep, what, "clone c00012 loss.gamma=3")))
    apply_overrides(document, what[1:])
    if document.faults or len(what) < 2:
        raise InvalidSearchSpace(
            document.faults or [Fault("", "nothing differs", "write e.g. loss.gamma=3")], source="clone"
        )
    left_out = {"confirm": 0, "confirms": None, "rehearsed": None, "searcher": None, "samples": 1, NARROWED: None}
    alone = {key: value for key, value in (spec.resolved() | left_out).items() if value is not None}
    alone |= {"space": document.values, "scheduler": {"name": "none", "max_epochs": spec.scheduler.max_epochs}}
    changed = configurations(reopened_spec(alone, "clone"))[0]  # what was typed into a page imports nothing
    _require(sweep, changed)
    return [], {}, [changed]


def _boost(sweep: Sweep, what: Sequence[str], given: Mapping[str, Any]) -> Asked:
    values, seeds = _configuration(sweep, what, "boost c00012 --replicates 4"), sweep.spec.replicates
    if not given.get("replicates"):
        raise SweeperError("boost needs to know how many more replicates", "add --replicates 4")
    if seeds.seeds != "own":
        raise SweeperError("all configurations of this sweep have the same seeds", "`confirm` gives fresh ones")
    added = [values] * math.ceil(given["replicates"] / seeds.count)
    amended(sweep, [f"samples={sweep.spec.samples + len(added)}"])
    return [], {}, added


def _require(sweep: Sweep, values: Mapping[str, Any]) -> None:
    """Raise SweeperError unless a configuration has what the space has: others may have written a request's file."""
    configurations_of(sweep.spec, None).require(dict(values))
    for part, node in sweep.spec.space.nodes.items():
        value = values.get(part)
        name, known = value.get("name") if isinstance(value, Mapping) else None, named_components(node)
        if name is not None and name not in known:
            raise SweeperError(f"the space has no {part} {name!r}", f"it has {', '.join(known)}")


#: What can be asked of a sweep.
VERBS: Mapping[str, Callable[[Sweep, Sequence[str], Mapping[str, Any]], Asked]] = {
    "stop": _stop, "extend": _extend, "boost": _boost, "narrow": _narrow, "clone": _clone, "budget": _budget,
}  # fmt: skip


def follows(request: SteeringRequest, sweep: Sweep, state: SweepState) -> tuple[Sweep, Sequence[Drawn | Steered]]:
    """Return what a request makes of a sweep, and the records that say so; none where the journal has them already.

    Raises SweeperError where it cannot be done any more.
    """
    known = state.steered.get(request.identity)
    if known is not None:
        return amended(sweep, _texts(known.settings), NARROWED), []
    for values in request.added:
        _require(sweep, values)
    settings = _narrowed(sweep, request.settings, max(state.configurations, default=-1) + 1)
    if request.added:
        settings = {**settings, "samples": sweep.spec.samples + len(request.added)}
    found, first = amended(sweep, _texts(settings), NARROWED), len(sweep.configurations)
    stopped = {
        trial_name(index): trial.epochs
        for index, trial in state.trials.items()
        if trial_name(index) in request.trials and trial.status not in ENDED
    }
    after = max((trial.last_evaluation_epoch or 0 for trial in state.trials.values()), default=0)
    trials = len(found.configurations) if "samples" in settings else None
    body = Steered(state.attempt, request.identity, request.by, request.asked, after, stopped, settings, trials)
    return found, [*([Drawn(first, request.added)] if request.added else []), body]


def done(paths: SweepPaths, request: SteeringRequest) -> None:
    """Remove a request that the journal has, or that is refused."""
    (paths.steering / f"{request.identity}.json").unlink(missing_ok=True)


def _texts(settings: Json) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in settings.items()]
