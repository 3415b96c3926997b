"""An edited search space is found out before anything follows from it, and each difference is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeper.core.errors import InvalidSearchSpace, SweeperError
from sweeper.core.ids import config_hash
from sweeper.execution.options import RunOptions
from sweeper.execution.resuming import check_trials
from sweeper.execution.runner import resume_sweep
from sweeper.journal.journal import Journal, read_journal
from sweeper.journal.records import Attempt
from sweeper.journal.state import fold
from sweeper.monitoring.status import audit_sweep
from sweeper.space.loading import load_spec
from sweeper.storage.changes import edited
from sweeper.storage.sweeps import Sweep, create_sweep, open_sweep
from tests.running import write_space
from tests.sweeper.records import made_body

Edit = Callable[[dict[str, Any]], object]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep that has been driven, its first trial reported."""
    spec = load_spec(write_space(tmp_path))
    made = create_sweep(spec, "small", None, tmp_path / "results", {})
    with_space(made, spec.resolved())
    return made


def with_space(sweep: Sweep, space: Any) -> None:
    journal = Journal(sweep.paths.journal, durable=False)
    journal.append(Attempt(1, "here", 1, None, space))
    journal.append(made_body("report", {"configuration": 9, "config_hash": config_hash(sweep.configurations[9])}))


def after(sweep: Sweep, edit: Edit) -> Sweep:
    """Edit `sweep.yaml` by hand, and open the sweep again."""
    values = yaml.safe_load(sweep.paths.sweep_file.read_text())
    edit(values)
    sweep.paths.sweep_file.write_text(yaml.safe_dump(values))
    return open_sweep(sweep.name, sweep.paths.root.parent)


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda v: v.update(seed=4), "seed"),
        (lambda v: v["scheduler"].update(max_epochs=81), "scheduler.max_epochs"),
        (lambda v: v["replicates"].update(count=3), "replicates.count"),
        (lambda v: v["evaluation"].update(bins=10), "evaluation.bins"),
        (lambda v: v["space"]["optimizer"]["lr"].update(loguniform=[0.01, 0.5]), "space.optimizer.lr.loguniform[1]"),
        (lambda v: v["space"]["loss"]["one_of"].pop(), "space.loss.one_of"),
        (lambda v: v.update(samples=4), "samples"),
    ],
)
def test_a_change_of_what_is_measured_is_named_and_refused(sweep: Sweep, edit: Edit, path: str) -> None:
    (fault,) = edited(after(sweep, edit))
    assert fault.path == path
    options = RunOptions(sweep.paths.root.parent, executor="ray")
    before = sweep.paths.sweep_file.read_bytes()
    with pytest.raises(InvalidSearchSpace, match="nothing was started"):
        resume_sweep(sweep.name, options)
    assert sweep.paths.sweep_file.read_bytes() == before
    if path != "samples":  # that many trials are not even there to be audited
        _, differences = audit_sweep(sweep.name, sweep.paths.root.parent)
        assert any(path in difference for difference in differences)


def test_several_changes_are_named_at_once_with_both_values(sweep: Sweep) -> None:
    opened = after(sweep, lambda v: v.update(seed=4, objective={"metric": "val_ece", "mode": "min"}))
    assert {fault.path: fault.rule for fault in edited(opened)} == {
        "seed": "it is 4, and the sweep was driven with 3",
        "objective.metric": 'it is "val_ece", and the sweep was driven with "val_nll"',
    }


@pytest.mark.parametrize(
    "edit",
    [
        lambda v: v.update(samples=12),
        lambda v: v.update(budget={"gpu_hours": 3.0}, retries=5, max_concurrent=1),
        lambda v: v["resources"].update(cpu=2),
        lambda v: v.update(header={"question": "another?"}),
        lambda v: None,
    ],
)
def test_what_may_change_is_accepted(sweep: Sweep, edit: Edit) -> None:
    assert edited(after(sweep, edit)) == []


def test_the_last_driver_counts(sweep: Sweep) -> None:
    more = after(sweep, lambda v: v.update(samples=12))
    Journal(sweep.paths.journal, durable=False).append(Attempt(2, "here", 1, None, more.spec.resolved()))
    (fault,) = edited(after(sweep, lambda v: v.update(samples=11)))
    assert "12" in fault.rule


def test_a_journal_without_a_space_is_accepted_unless_it_has_more_trials(tmp_path: Path) -> None:
    made = create_sweep(load_spec(write_space(tmp_path)), "small", None, tmp_path / "results", {})
    with_space(made, None)
    assert edited(made) == [] == edited(after(made, lambda v: v.update(seed=4)))
    fewer = after(made, lambda v: v.update(samples=4))
    (fault,) = edited(fewer)
    assert fault.path == "samples" and "number 9" in fault.rule
    with pytest.raises(SweeperError, match=r"configuration 9(.|\n)*restore sweep\.yaml"):
        fold(read_journal(made.paths.journal), len(fewer.configurations))


def test_configurations_that_are_drawn_otherwise_are_named(sweep: Sweep) -> None:
    state = fold(read_journal(sweep.paths.journal), 10)
    hashes: list[str | None] = [config_hash(values) for values in sweep.configurations]
    check_trials(state, hashes)
    check_trials(state, [None] * 10)
    with pytest.raises(SweeperError, match=r"1 configuration differs from the journal, e\.g\. c00009"):
        check_trials(state, [*hashes[:9], "another"])


def test_an_attempt_without_a_space_is_written_as_before() -> None:
    assert Attempt(1, "here", 1).to_json() == {"attempt": 1, "host": "here", "pid": 1, "code": None}
