"""A sweep on disk: claim its name, write its description, reopen it, and detect edits.

Every driver journals the resolved search space that it drives. A resume with a different space would assign the wrong
hyperparameters to trained trials in every table, or mix two schedules. Therefore each difference is an error, except in
settings that do not affect the measurements.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import yaml

from sweeper.core.domains.values import Plain, join_path
from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError, unwritable, writing_to
from sweeper.core.ids import SweepPaths, configuration_index, require_sweep_name
from sweeper.core.labels import Symbols, describe, in_order, symbols_of
from sweeper.journal.journal import read_kind
from sweeper.journal.records import Attempt
from sweeper.space.configurations import Configurations, configurations_of
from sweeper.space.file import Document, apply_overrides
from sweeper.space.loading import reopened_spec
from sweeper.space.spec import SweepSpec, gpu_faults, spec_of
from sweeper.storage.lookup import find_sweep
from sweeper.storage.metadata import quantities_of, read_manifest, read_specification
from trainables.files.atomic import temporary_folder, write_text
from trainables.registry import Configuration


@dataclass(frozen=True)
class Sweep:
    """A search space with a name and a results folder."""

    paths: SweepPaths
    spec: SweepSpec
    configurations: Configurations

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.paths.name

    def configuration_of(self, trial: str) -> Configuration:
        """Return a trial's configuration. Raises SweeperError if the sweep has no trial of that name."""
        try:
            return self.configurations[configuration_index(trial)]
        except LookupError as error:
            raise SweeperError(f"the sweep {self.name!r} has no trial {trial}", "use the sweep's own tables") from error

    def describe(self, index: int) -> str:
        """Return the varying hyperparameters of a configuration, e.g. `focal (γ 1.9) · resnet8 · lr 0.12`."""
        columns = in_order(self.spec.space.varying_columns)
        return describe(self.configurations[index].columns, columns, self._symbols)

    @cached_property
    def _symbols(self) -> Symbols:
        return symbols_of(quantities_of(read_manifest(self.paths.manifest, unknown_if_damaged=True)))


def create_sweep(
    spec: SweepSpec,
    stem: str,
    name: str | None,
    output: Path,
    manifest: Mapping[str, object],
    taken: Callable[[str], bool] = lambda name: False,
    add: Callable[[SweepPaths], None] = lambda paths: None,
) -> Sweep:
    """Create a folder with `sweep.yaml` and `manifest.json`, then claim a name for it by one rename.

    Without `name` the sweep is named after its search space file, with -2, -3 … appended if the name is taken in
    `output` or, according to `taken`, elsewhere. An empty folder of that name is replaced.

    Args:
        spec: Search space.
        stem: Stem of its file.
        name: Explicit name, or `None`.
        output: Folder of all sweeps; created if missing.
        manifest: Manifest; see `sweeper.storage.metadata`.
        taken: Returns whether a name is taken elsewhere, such as in a store.
        add: Writes the remaining files of a complete folder.

    Raises SweeperError if an explicit name is taken or not a valid folder name, or the folder cannot be written.
    """
    wanted = name if name is not None else _name_of(stem)
    require_sweep_name(wanted)
    text = yaml.safe_dump(spec.resolved(), sort_keys=False, allow_unicode=True)
    try:
        if name is not None and _is_taken(output / name, taken):
            raise _taken_error(name, output)
        output.mkdir(parents=True, exist_ok=True)
        # The folder is complete before it gets its name, so no other process sees a partial sweep.
        with temporary_folder(output) as folder:
            made = SweepPaths(folder)
            write_text(made.sweep_file, text, durable=True)
            write_text(made.manifest, json.dumps(manifest, indent=2) + "\n", durable=True)
            add(made)
            paths = SweepPaths(_claim(folder, wanted, output, taken, explicit=name is not None))
    except FileExistsError as error:
        raise SweeperError(f"the output {output} is a file", "choose a folder with --output") from error
    except OSError as error:
        remedy = "make it writable or free space, or choose another with --output"
        raise unwritable(f"the output folder {output} cannot be written to", remedy, error) from error
    return Sweep(paths, spec, configurations_of(spec, paths.journal))


def open_sweep(name: str, output: Path, *, checked: bool = True) -> Sweep:
    """Open the sweep `name` in `output`, or at a path.

    Args:
        name: name or path.
        output: folder of all sweeps.
        checked: whether to look up the names of components, which imports torch. Reading progress does not need it.

    Raises SweeperError if there is no such sweep or it is not readable.
    """
    paths = find_sweep(name, output)
    values = read_specification(paths.sweep_file, required=True)
    spec = (reopened_spec if checked else spec_of)(values, str(paths.sweep_file))
    return Sweep(paths, spec, configurations_of(spec, paths.journal))


def _claim(folder: Path, wanted: str, output: Path, taken: Callable[[str], bool], *, explicit: bool) -> Path:
    """Rename a complete folder to the first free name, and return it. Raises SweeperError or OSError."""
    number = 1
    while True:
        target = output / (wanted if number == 1 else f"{wanted}-{number}")
        if not _is_taken(target, taken):
            try:
                folder.rename(target)  # atomic; POSIX replaces only an empty folder
                return target.resolve()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise  # these three mean that another process claimed the name first
        if explicit:
            raise _taken_error(wanted, output)
        number += 1


def _is_taken(target: Path, taken: Callable[[str], bool]) -> bool:
    empty = target.is_dir() and not target.is_symlink() and not any(target.iterdir())
    return (os.path.lexists(target) and not empty) or taken(target.name)


def _taken_error(name: str, output: Path) -> SweeperError:
    return SweeperError(
        f"the name {name!r} is taken in {output}",
        f"continue it with `sweeper resume {SweepPaths(output / name).in_commands}`, or choose another --name",
    )


def _name_of(stem: str) -> str:
    """Return a search space file's stem as a valid sweep name, short enough to append a number."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "-" for c in stem)
    return name.lstrip("_.-")[:90] or "sweep"


_LIMITS = ("max_concurrent", "retries", "trial_timeout", "hang_timeout")

#: Keys of a search space that do not affect measurements.
AMENDABLE = ("budget", "checkpoint", "keep", *_LIMITS, "replicates.at_most", "resources", "which")

#: Key whose value can grow: configuration i depends on seed and i only, so existing configurations stay the same.
GROWING = "samples"


def keep(sweep: Sweep) -> Sweep:
    """Write a sweep's search space to its `sweep.yaml`; return the sweep."""
    text = yaml.safe_dump(sweep.spec.resolved(), sort_keys=False, allow_unicode=True)
    with writing_to(sweep.paths.sweep_file, "make the results folder writable"):
        write_text(sweep.paths.sweep_file, text)
    return sweep


def amended(sweep: Sweep, settings: Sequence[str]) -> Sweep:
    """Return the sweep with overrides of its limits, such as budget and resources, or with more samples.

    Raises InvalidSearchSpace if an override would change the measurements or breaks a rule.
    """
    rule = "this setting of a started sweep cannot change"
    remedy = (
        f"on resume only {', '.join(AMENDABLE)} may change, {GROWING} grow, and replicates=24 add seeds; start a new "
        "sweep for the rest"
    )
    keys = [setting.partition("=")[0].strip() for setting in settings]
    changeable = (*AMENDABLE, GROWING)
    refused = [Fault(key, rule, remedy) for key in keys if not {key, key.partition(".")[0].strip()} & {*changeable}]
    document = Document(values=sweep.spec.resolved())
    apply_overrides(document, settings)
    if refused or document.faults:
        raise InvalidSearchSpace([*refused, *document.faults], source="--set")
    spec = reopened_spec(document.values, "--set")
    faults = gpu_faults(spec)
    if faults:
        raise InvalidSearchSpace(faults, source="--set")
    if spec.samples < sweep.spec.samples:
        rule = f"{spec.samples} is below the sweep's {sweep.spec.samples}: samples can only grow"
        raise InvalidSearchSpace([Fault(GROWING, rule, "start a new sweep for fewer")], source="--set")
    return replace(sweep, spec=spec, configurations=configurations_of(spec, sweep.paths.journal))


_UNMEASURED = (*AMENDABLE, "header")

#: Characters of a value that an error message shows.
_LONGEST = 60
_REMEDY = "restore the value, or start a new sweep with it"
_ABSENT = object()


def edited(sweep: Sweep) -> list[Fault]:
    """Return the forbidden differences between a sweep's space and the journaled one.

    Raises SweeperError if the journal is damaged.
    """
    journaled = _journaled(sweep.paths.journal)
    now = _plain(sweep.spec.resolved())
    if journaled is None or now == journaled:
        return []
    measured = [key for key in {**journaled, **now} if key not in (*_UNMEASURED, GROWING)]
    was, is_now = ({key: space[key] for key in measured if key in space} for space in (journaled, now))
    faults = [fault for fault in _between(was, is_now, "") if fault.path not in AMENDABLE]
    if _count(now) < _count(journaled):
        rule = f"{GROWING} = {_count(now)}, but the sweep was started with {_count(journaled)}: it can only grow"
        faults.append(Fault(GROWING, rule, _REMEDY))
    return faults


def _journaled(journal: Path) -> Mapping[str, Plain] | None:
    """Return the space that the last driver journaled; `None` if no driver journaled one."""
    spaces = [record.body.space for record in read_kind(journal, Attempt) if isinstance(record.body, Attempt)]
    return next((space for space in reversed(spaces) if space is not None), None)


def _plain(values: Mapping[str, Plain]) -> Mapping[str, Plain]:
    """Return values in the form that a journal stores, so that tuples and lists compare equal."""
    plain: Mapping[str, Plain] = json.loads(json.dumps(values))
    return plain


def _count(space: Mapping[str, Plain]) -> int:
    samples = space.get(GROWING)
    return samples if isinstance(samples, int) else 1


def _between(before: object, now: object, path: str) -> Iterator[Fault]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _between(before.get(key, _ABSENT), now.get(key, _ABSENT), join_path(path, str(key)))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (first, second) in enumerate(zip(before, now, strict=True)):
            yield from _between(first, second, join_path(path, index))
    elif before != now:
        yield Fault(path, f"it is {_shown(now)}, but the sweep was started with {_shown(before)}", _REMEDY)


def _shown(value: object) -> str:
    text = "missing" if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def changed_trials(journaled: Mapping[int, str | None], now: Sequence[str | None]) -> list[int]:
    """Return the indices of configurations whose digest differs from the journaled one.

    `edited` has already compared the spaces, so a difference means that the code that draws from the space has changed.
    Configurations with an unknown digest are skipped.
    """
    known = ((index, digest) for index, digest in journaled.items() if digest is not None)
    return [index for index, digest in known if now[index] not in (None, digest)]
