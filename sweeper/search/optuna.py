"""Optuna's tree-structured Parzen estimator (TPE), asked through Ray Tune's own searcher interface.

Tune's `OptunaSearch` walks the space with a define-by-run function, so a hyperparameter exists for it only in the
branch that it has taken, and it models γ of focal loss from the trials of focal loss alone: TPE on a tree-shaped space,
as in Bergstra et al. 2011 (Algorithms for Hyper-Parameter Optimization, section 4).

A study lives in memory and is made from the journal's fold alone. Each suggestion has its own random numbers, seeded
by the sweep's seed and its number, and what is known of running trials is no more than their choices. So a study that
observed every record as it happened and one built afterwards suggest the same; tests check it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import BaseTrial, FrozenTrial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.search.optuna import OptunaSearch

from sweeper.core.domains import Choice, Fields, Interval, Members, draw_configuration
from sweeper.core.ids import seed_from, trial_name
from sweeper.journal.records import Learned, Record, configuration_of
from sweeper.journal.state import COMPLETED, ENDED, FAILED
from sweeper.search.base import History, Observed, Suggestion


class OptunaSearcher:
    """Suggests a sweep's configurations. Told nothing at first: `apply` takes the journal in."""

    def __init__(self, space: Fields, *, metric: str, mode: str, seed: int, startup: int) -> None:
        """Prepare to search `space`: at random for `startup` trials, then for the best `metric`, `min` or `max`."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.maker = f"optuna {optuna.__version__}"
        self._space = space
        self._metric, self._mode = metric, mode
        self._seed, self._startup = seed, startup
        self._history = History()
        self._study: OptunaSearch | None = None
        self._reported: dict[int, Observed] = {}
        self._made: Suggestion | None = None

    def suggest(self, configuration: int) -> Suggestion:
        """Return configuration number `configuration`, the one after the last that was suggested."""
        with warnings.catch_warnings():
            # Tune warns of suggestions that take a second, as they do on a machine that trains at the same time.
            warnings.simplefilter("ignore")
            self._study = self._study or self._studied()
            self._study.suggest(trial_name(configuration))
        self._reported[configuration] = Observed({})
        assert self._made is not None
        return self._made

    def apply(self, record: Record) -> None:
        """Take one record of the journal in; records come in order."""
        self._history.apply(record)
        index = configuration_of(record.body)
        if self._study is None or index is None or index not in self._history.trials:
            if isinstance(record.body, Learned):
                self._study = None
            return
        if not self._is_followed(index):
            # The study did not make this suggestion, or recorded a failure of a trial that did not fail after all.
            self._study = None
            return
        self._tell(self._study, index)

    def _is_followed(self, index: int) -> bool:
        reported, known = self._reported.get(index), self._history.trials[index]
        return reported is not None and (reported.status not in ENDED or reported.status == known.status)

    def _studied(self) -> OptunaSearch:
        """Build a study from the history, as if it had observed each record when it happened."""
        history = self._history
        points = [dict(choices) for choices, _ in history.learned]
        points += [dict(trial.choices) for trial in history.trials.values()]
        study = OptunaSearch(
            space=self._walk,
            metric=self._metric,
            mode=self._mode,
            points_to_evaluate=points or None,
            sampler=SeededTpe(self._seed, self._startup, earlier=len(history.learned)),
        )
        self._reported = {}
        for number, (_, value) in enumerate(history.learned):
            study.suggest(f"learned-{number}")
            study.on_trial_complete(f"learned-{number}", {self._metric: value})
        for index in history.trials:
            study.suggest(trial_name(index))
            self._reported[index] = Observed({})
            self._tell(study, index)
        return study

    def _tell(self, study: OptunaSearch, index: int) -> None:
        """Report to the study what it does not yet know of a trial."""
        name, known, reported = trial_name(index), self._history.trials[index], self._reported[index]
        if reported.status in ENDED:
            return
        for epoch, value in known.rungs.items():
            if epoch not in reported.rungs:
                study.on_trial_result(name, {self._metric: value, TRAINING_ITERATION: epoch})
                reported.rungs[epoch] = value
        if known.status in ENDED:
            # Without a result Tune reports the trial to Optuna as pruned, which keeps its values at the rungs.
            result = {self._metric: known.rungs[max(known.rungs)]} if known.status == COMPLETED else None
            study.on_trial_complete(name, result, error=known.status == FAILED)
            reported.status = known.status

    def _walk(self, trial: BaseTrial) -> None:
        """Suggest one configuration: Tune calls this with Optuna's trial, whose `suggest_…` make the choices."""
        asked = _Asked(trial)
        self._made = Suggestion(draw_configuration(self._space, 0, asked), asked.choices)


class _Asked:
    """Chooses what an Optuna trial suggests, and keeps the choices."""

    def __init__(self, trial: BaseTrial) -> None:
        self._trial = trial
        self.choices: dict[str, Choice] = {}

    def member(self, path: str, members: Members) -> int:
        """Return a member's place."""
        place = int(self._trial.suggest_categorical(path, list(range(len(members.nodes)))))
        self.choices[path] = place
        return place

    def number(self, path: str, interval: Interval) -> Choice:
        """Return a number in the interval."""
        if interval.kind == "quniform":
            chosen: Choice = self._trial.suggest_int(path, 0, interval.steps)
        elif interval.kind == "randint":
            chosen = self._trial.suggest_int(path, int(interval.low), int(interval.high))
        else:
            log = interval.kind == "loguniform"
            chosen = self._trial.suggest_float(path, float(interval.low), float(interval.high), log=log)
        self.choices[path] = chosen
        return chosen


class SeededTpe(BaseSampler):
    """TPE with its own random numbers for each trial, so that a suggestion does not depend on how many went before.

    Each hyperparameter is modelled from the trials that have it (Optuna's `multivariate=False`): that needs no joint
    model over branches, which Optuna marks as experimental, and nothing of a running trial beyond what was suggested.
    Running trials count as bad ones (`constant_liar`, Ginsbourger et al. 2010, Kriging is well-suited to parallelize
    optimization), so that trials which run at once are not all alike.
    """

    def __init__(self, seed: int, startup: int, earlier: int) -> None:
        """Seed trials by `seed` and their number, `earlier` of which are other sweeps'; `startup` are random."""
        self._seed, self._startup, self._earlier = seed, startup, earlier
        self._number: int | None = None
        self._tpe: TPESampler | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return none: hyperparameters are sampled one by one."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, object]:
        """Return none: hyperparameters are sampled one by one."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of one hyperparameter."""
        if self._tpe is None or trial.number != self._number:
            # Optuna's samplers take seeds of 32 bits.
            seed = seed_from("searcher", self._seed, trial.number - self._earlier) % 2**32
            self._tpe = TPESampler(
                n_startup_trials=self._startup, seed=seed, multivariate=False, group=False, constant_liar=True
            )
            self._number = trial.number
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)
