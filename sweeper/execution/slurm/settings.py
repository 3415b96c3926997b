"""A site's settings in `slurm.yaml`, checked before anything is submitted, and the batch scripts made from them.

The file is searched beside the search space, then in the user's configuration folder; `--slurm-file` names another.
The scripts, from the template `job.sh`, are plain shell that a user can read, change and submit by hand.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from sweeper.core.errors import SweeperError
from trainables.registry.names import nearest

FILE = "slurm.yaml"

_TIME = re.compile(r"(\d+-)?\d{1,3}(:\d{2}){0,2}")


def seconds_of(time: str) -> int:
    """Return the seconds of a time as Slurm writes it.

    Examples:
        >>> [seconds_of(time) for time in ("90", "1:30:00", "2-00:00:00", "1-12")]  # 1-12: days and hours
        [5400, 5400, 172800, 129600]
    """
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if not dash and len(parts) < 3:  # without days, one or two numbers start with minutes (sbatch(1), --time)
        parts.insert(0, 0)
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def _one_line(text: str) -> str:
    if not text or any(letter in text for letter in "\n\r\0"):
        raise ValueError("must be one line of text")
    return text


def _time(text: str) -> str:
    if not _TIME.fullmatch(text):
        raise ValueError("must be a time as Slurm writes it: 1:00:00, 2-00:00:00")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
Time = Annotated[str, AfterValidator(_time)]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: Line | None = None
    account: Line | None = None
    qos: Line | None = None
    time: Time = "1:00:00"
    constraint: Line | None = None
    memory: Line | None = None
    sbatch: tuple[Line, ...] = ()


class HeadSettings(_Asked):
    """Settings of the small job that runs the driver; it trains nothing and needs no GPU."""

    time: Time = "1-00:00:00"
    cpus: Annotated[int, Field(ge=1)] = 1


class SlurmSettings(_Asked):
    """Resources to request from Slurm for workers; `head` has the resources of the driver's job.

    Attributes:
        nodes: Whole nodes in one allocation, head included; `None` for a head and an array of `workers`.
        workers: Jobs of the array, each with its own `gpus` and `cpus`.
        gpus: GPUs per worker, or per node.
        cpus: Cores per worker, or per node.
        gpu_type: Type in `--gres=gpu:TYPE:N`; any by default.
        head: The driver's own job, if it has one.
        card: GPU model of the workers for `sweeper plan --slurm`, such as `A100`; `gpu_type` by default.
        interface: Network interface by which workers reach the head, e.g. `ib0`; by default the host name's interface.
        modules: Modules for `module load`.
        setup: Shell lines to run first, e.g. `source ~/venv/bin/activate`.
        python: Python to run; by default the Python that submits.
        image: Apptainer image in which Python runs.
        scratch: Folder on each node for data; by default `$SLURM_TMPDIR`, else `$TMPDIR`, else `/tmp`.
        warning: Seconds before the time limit at which a job stops its work and requeues itself.
        sbatch: Further options of sbatch, e.g. `--mail-type=END`.
    """

    nodes: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[int, Field(ge=1, le=10_000)] | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    cpus: Annotated[int, Field(ge=1)] = 1
    gpu_type: Line | None = None
    head: HeadSettings = HeadSettings()
    card: Line | None = None
    interface: Line | None = None
    modules: tuple[Line, ...] = ()
    setup: tuple[Line, ...] = ()
    python: Line | None = None
    image: Line | None = None
    scratch: Line = "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"
    warning: Annotated[int, Field(ge=10)] = 120

    @model_validator(mode="after")
    def _one_shape(self) -> SlurmSettings:
        if (self.nodes is None) == (self.workers is None):
            raise ValueError("give either nodes: N (one allocation) or workers: N (a head and an array of jobs)")
        return self


def read_settings(space: Path, named: Path | None) -> tuple[SlurmSettings, Path]:
    """Read the settings for a search space; return them and their file.

    Raises SweeperError if there is no such file or it is invalid (all faults at once).
    """
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "sweeper" / FILE
    places = [named] if named is not None else [space.parent / FILE, user]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise SweeperError(
            f"no {FILE}: looked for {' and '.join(str(place) for place in places)}",
            "write one, e.g. 'partition: gpu', 'workers: 4', 'gpus: 1', 'time: 1:00:00', a line each; "
            "deploy/slurm/array.yaml explains every line",
        )
    try:
        # All values as texts, because YAML 1.1 reads 1:00:00 as the number 3600. This loader creates no other objects.
        values = yaml.load(file.read_text("utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SweeperError(f"{file} cannot be read: {error}", "correct the file") from error
    if not isinstance(values, dict):
        raise SweeperError(f"{file}: must be a mapping of keys to values", "e.g. 'workers: 4'")
    try:
        return SlurmSettings.model_validate(values), file
    except ValidationError as error:
        faults = [_fault(detail["loc"], detail["msg"], detail["type"]) for detail in error.errors()]
        raise SweeperError(
            f"{file}: {'; '.join(faults)}", "correct the file; deploy/slurm/ has a commented one"
        ) from error


def _fault(place: tuple[int | str, ...], words: str, kind: str) -> str:
    key = ".".join(map(str, place))
    if kind == "extra_forbidden":
        fields = HeadSettings.model_fields if place[0] == "head" else SlurmSettings.model_fields
        return f"{key}: unknown key{nearest(str(place[-1]), fields)}"
    words = words.removeprefix("Value error, ")
    return f"{key}: {words}" if key else words


HEAD, WORKERS = "head.sh", "workers.sh"
#: Names of a sweep's jobs: `sweeper-NAME` and `sweeper-NAME-workers`.
PREFIX, OF_WORKERS = "sweeper-", "-workers"


def scripts(settings: SlurmSettings, name: str, folder: Path, command: Sequence[str]) -> dict[str, str]:
    """Return a sweep's scripts by file name: one for whole nodes, otherwise one for the head and one for the array.

    Args:
        settings: Settings of the site.
        name: Name of the sweep.
        folder: Shared folder of the jobs, on a file system of all nodes.
        command: Command line of the driver, without Python.
    """
    import jinja2  # only a submission needs it

    python = _python(settings, folder)
    text = resources.files("sweeper.execution.slurm").joinpath("job.sh").read_text("utf-8")
    script = functools.partial(
        jinja2.Template(text, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).render,
        site=settings,
        name=PREFIX + name,
        logs=f"{folder}/".replace("%", "%%"),  # sbatch replaces %j and the like in file names
        head=shlex.join([*python, "-m", "sweeper.execution.slurm.head", str(folder), *command]),
        worker=shlex.join([*python, "-m", "sweeper.execution.slurm.worker", str(folder)]),
        today=f"{datetime.now(UTC):%Y-%m-%d}",
        quote=shlex.quote,
    )
    if settings.nodes is not None:
        return {HEAD: script(asked=settings, shape="nodes")}
    return {
        HEAD: script(asked=settings.head, shape="head"),
        WORKERS: script(asked=settings, shape="array", name=PREFIX + name + OF_WORKERS),
    }


def _python(settings: SlurmSettings, folder: Path) -> list[str]:
    if settings.image is not None:
        gpus = ["--nv"] if settings.gpus else []
        output = folder.parent.parent  # Apptainer binds only home, /tmp and the current folder by default
        return ["apptainer", "exec", *gpus, "--bind", str(output), settings.image, settings.python or "python"]
    return [settings.python or sys.executable]
