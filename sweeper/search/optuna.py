"""The searcher `optuna`: Optuna's tree-structured Parzen estimator (TPE), through its interface of ask and tell.

Each trial walks the space, so a hyperparameter exists for Optuna only in the branch that was taken, and γ of focal loss
is modelled from the trials of focal loss alone: TPE on a tree-shaped space, as in Bergstra et al. 2011 (Algorithms for
Hyper-Parameter Optimization, section 4).

No domain may be a `grid`: that every member comes in turn is a promise which a searcher that chooses cannot keep.

A study lives in memory and is made from the journal's fold alone. Each suggestion has its own random numbers, seeded
by the sweep's seed and its number, and what is known of running trials is no more than their choices. So a study that
observed every record as it happened and one built afterwards suggest the same; tests check it.

Every command imports this file to know the searcher's name, so Optuna is imported where a search begins.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from sweeper.core.domains import Choice, Fields, Interval, Members, Node, draw_configuration, is_random, walk
from sweeper.core.errors import Fault
from sweeper.core.ids import seed_from
from sweeper.core.json_types import join_path
from sweeper.journal.records import Record, configuration_of
from sweeper.journal.state import COMPLETED, ENDED, FAILED
from sweeper.search.base import SEARCHERS, History, Observed, Searcher, SearchMethod, Suggestion

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import BaseTrial, FrozenTrial, Trial

#: Trials drawn at random before TPE begins: `n_startup_trials` of Optuna's TPESampler, whose default this is.
STARTUP = 10


@SEARCHERS.add("optuna")
@dataclass(frozen=True)
class TpeSearch(SearchMethod):
    """Learns from finished trials with Optuna's TPE.

    Source: Bergstra et al. 2011 (Algorithms for Hyper-Parameter Optimization), section 4.

    Attributes:
        startup: trials at random; the model needs at least one observation, and no sweep has more trials
            [Optuna's TPESampler, n_startup_trials].
    """

    learns: ClassVar[bool] = True
    startup: Annotated[int, "[1, 1000000]"] = STARTUP

    @property
    def course(self) -> str:
        """Trials at random, then those from what was observed."""
        return f"{self.startup} trials at random, then from what was observed"

    def suit(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Refuse every `grid`, and a space in which nothing can be chosen."""
        space = Fields(nodes)
        found = ((path, node) for path, node in walk(space, "space") if isinstance(node, Members))
        grids = [join_path(path, node.kind) for path, node in found if node.kind == "grid"]
        rule = "grid tries every member, but the searcher optuna chooses among them"
        faults += [Fault(path, rule, "write choice instead of grid, or searcher: grid") for path in grids]
        if not grids and not is_random(space):
            rule = "optuna has nothing to search: every value of the space is fixed"
            faults.append(Fault("searcher", rule, "give a domain, e.g. lr: {loguniform: [0.01, 0.3]}"))
        return nodes

    def begin(self, space: Fields, *, mode: str, seed: int) -> Searcher:
        """Return what chooses, with an empty history. Imports Optuna."""
        return OptunaSearcher(space, mode=mode, seed=seed, startup=self.startup)


class OptunaSearcher:
    """Suggests a sweep's configurations. Told nothing at first: `apply` takes the journal in."""

    def __init__(self, space: Fields, *, mode: str, seed: int, startup: int) -> None:
        """Prepare to search `space`: at random for `startup` trials, then for the best objective, `min` or `max`."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.maker = f"optuna {optuna.__version__}"
        self._space = space
        self._mode, self._seed, self._startup = mode, seed, startup
        self._history = History()
        self._study: Study | None = None
        self._asked: dict[int, Trial] = {}
        self._reported: dict[int, Observed] = {}

    def suggest(self, configuration: int) -> Suggestion:
        """Return configuration number `configuration`, the one after the last that was suggested."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna marks `constant_liar` as experimental
            self._study = self._study or self._studied()
            return self._ask(self._study, configuration)

    def apply(self, record: Record) -> None:
        """Take one record of the journal in; records come in order."""
        self._history.apply(record)
        index = configuration_of(record.body)
        if self._study is None or index is None or index not in self._history.trials:
            return
        reported, known = self._reported.get(index), self._history.trials[index]
        if reported is None or (reported.status in ENDED and reported.status != known.status):
            # The study did not make this suggestion, or recorded a failure of a trial that did not fail after all.
            self._study = None
            return
        self._tell(self._study, index)

    def _studied(self) -> Study:
        """Build a study from the history, as if it had observed each record when it happened."""
        import optuna

        sampler = seeded_tpe(self._seed, self._startup)
        study = optuna.create_study(direction="minimize" if self._mode == "min" else "maximize", sampler=sampler)
        for index, trial in self._history.trials.items():
            study.enqueue_trial(dict(trial.choices))
            self._ask(study, index)
            self._tell(study, index)
        return study

    def _ask(self, study: Study, index: int) -> Suggestion:
        """Return what a trial of the study, the next one, chooses; it has observed nothing yet."""
        trial = self._asked[index] = study.ask()
        self._reported[index] = Observed({})
        asked = _Asked(trial)
        return Suggestion(draw_configuration(self._space, 0, asked), asked.choices)

    def _tell(self, study: Study, index: int) -> None:
        """Report to the study what it does not yet know of a trial."""
        from optuna.trial import TrialState

        trial, known, reported = self._asked[index], self._history.trials[index], self._reported[index]
        if reported.status in ENDED:
            return
        for epoch, value in known.rungs.items():
            if epoch not in reported.rungs:
                trial.report(value, epoch)
                reported.rungs[epoch] = value
        if known.status == COMPLETED:
            study.tell(trial, known.rungs[max(known.rungs)])
        elif known.status in ENDED:  # one that was stopped keeps its values at the rungs
            study.tell(trial, state=TrialState.FAIL if known.status == FAILED else TrialState.PRUNED)
        reported.status = known.status


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


def seeded_tpe(seed: int, startup: int) -> BaseSampler:
    """Return TPE with its own random numbers for each trial: a suggestion does not depend on how many went before.

    Each hyperparameter is modelled from the trials that have it (Optuna's `multivariate=False`): that needs no joint
    model over branches, which Optuna marks as experimental, and nothing of a running trial beyond what was suggested.
    Running trials count as bad ones (`constant_liar`, Ginsbourger et al. 2010, Kriging is well-suited to parallelize
    optimization), so that trials which run at once are not all alike.

    Args:
        seed: of the sweep, which seeds each trial with its number.
        startup: trials that are drawn at random.
    """
    from optuna.samplers import RandomSampler, TPESampler

    class SeededTpe(RandomSampler):
        """Samples hyperparameters one by one, as the random sampler does, but each trial's by a TPE of its own."""

        number: int | None = None

        def sample_independent(
            self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
        ) -> Any:
            if trial.number != self.number:
                self.number = trial.number
                # Optuna's samplers take seeds of 32 bits.
                own = seed_from("searcher", seed, trial.number) % 2**32
                self.tpe = TPESampler(
                    n_startup_trials=startup, seed=own, multivariate=False, group=False, constant_liar=True
                )
            return self.tpe.sample_independent(study, trial, param_name, param_distribution)

    return SeededTpe()
