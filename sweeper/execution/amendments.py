"""Settings that a resume may change: budget and cluster sharing, never measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import yaml

from sweeper.core.errors import Fault, InvalidSearchSpace, SweeperError
from sweeper.space.file import Document
from sweeper.space.loading import reopened_spec
from sweeper.space.overrides import apply_overrides
from sweeper.storage.sweeps import Sweep
from trainables.files.atomic import write_text

AMENDABLE = ("budget", "max_concurrent", "priority", "retries", "trial_timeout", "hang_timeout", "notify")
"""The keys of a search space that say nothing about what is measured."""


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
            f"on resume only {', '.join(AMENDABLE)} may change; start a new sweep for other changes",
        )
        for setting in settings
        if setting.partition("=")[0].partition(".")[0].strip() not in AMENDABLE
    ]
    document = Document(values=sweep.spec.resolved())
    apply_overrides(document, settings)
    if refused or document.faults:
        raise InvalidSearchSpace([*refused, *document.faults], source="--set")
    spec = reopened_spec(document.values, "--set")
    text = yaml.safe_dump(spec.resolved(), sort_keys=False, allow_unicode=True)
    try:
        write_text(sweep.paths.sweep_file, text)
    except OSError as error:
        raise SweeperError(
            f"{sweep.paths.sweep_file} cannot be written: {error.strerror}", "make the results folder writable"
        ) from error
    return replace(sweep, spec=spec)
