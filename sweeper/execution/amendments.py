"""Settings that a resume may change: budget, resources and more samples, never measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import yaml

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.core.ids import trial_name
from sweeper.journal.state import SweepState
from sweeper.space.configurations import configurations_of
from sweeper.space.file import Document, apply_overrides
from sweeper.space.loading import reopened_spec
from sweeper.space.parts import worker_faults
from sweeper.storage.changes import AMENDABLE, GROWING, changed_trials, edited
from sweeper.storage.sweeps import Sweep
from trainables.files.atomic import write_text


def check_unchanged(sweep: Sweep, *, unreadable: bool = False) -> None:
    """Raise InvalidSearchSpace, naming each difference, when `sweep.yaml` is not what the journal was driven with.

    `unreadable` accepts a journal in which that cannot be read; otherwise SweeperError names the damaged record.
    """
    try:
        faults = edited(sweep)
    except SweeperError:
        if not unreadable:
            raise
        return
    if faults:
        raise InvalidSearchSpace(faults, source=str(sweep.paths.sweep_file))


def check_trials(state: SweepState, config_hashes: Sequence[str | None]) -> None:
    """Raise SweeperError when configurations are drawn that are not those which the journal has."""
    changed = changed_trials({index: trial.config_hash for index, trial in state.trials.items()}, config_hashes)
    if changed:
        count = f"{len(changed)} configurations differ" if len(changed) > 1 else "1 configuration differs"
        raise SweeperError(
            f"{count} from the journal, e.g. {trial_name(changed[0])}: this release draws others from the same space",
            "resume with the release that started the sweep (`versions` in manifest.json), or start a new sweep",
        )


def amend(sweep: Sweep, settings: Sequence[str]) -> Sweep:
    """Return the sweep with the overrides `settings`, which are written into its `sweep.yaml`.

    Raises InvalidSearchSpace when one of them would change what is measured, or breaks a rule.
    """
    if not settings:
        return sweep
    refused = [
        Fault(
            setting.partition("=")[0].strip(),
            "this setting of a started sweep cannot change",
            f"on resume only {', '.join(AMENDABLE)} may change, and {GROWING} grow; start a new sweep for the rest",
        )
        for setting in settings
        if setting.partition("=")[0].partition(".")[0].strip() not in (*AMENDABLE, GROWING)
    ]
    document = Document(values=sweep.spec.resolved())
    apply_overrides(document, settings)
    if refused or document.faults:
        raise InvalidSearchSpace([*refused, *document.faults], source="--set")
    spec = reopened_spec(document.values, "--set")
    faults = worker_faults(spec)
    if faults:
        raise InvalidSearchSpace(faults, source="--set")
    if spec.samples < sweep.spec.samples:
        rule = f"{spec.samples} is below the sweep's {sweep.spec.samples}: samples can only grow"
        raise InvalidSearchSpace([Fault(GROWING, rule, "start a new sweep for fewer")], source="--set")
    text = yaml.safe_dump(spec.resolved(), sort_keys=False, allow_unicode=True)
    try:
        write_text(sweep.paths.sweep_file, text)
    except OSError as error:
        raise SweeperError(
            f"{sweep.paths.sweep_file} cannot be written: {error.strerror}", "make the results folder writable"
        ) from error
    return replace(sweep, spec=spec, configurations=configurations_of(spec, sweep.paths.journal))
