"""The searcher `optuna`: Optuna's tree-structured Parzen estimator (TPE), through its interface of ask and tell.

For Optuna, a trial has only the hyperparameters of the branches that it takes. So the γ of focal loss is modelled only
from trials of focal loss. This is TPE on a tree-shaped space, as in Bergstra et al. 2011 (Algorithms for
Hyper-Parameter Optimization, section 4).

No domain can be a `grid`. A grid promises that every member is tried, which a searcher that chooses cannot promise.

A study is kept in memory and built only from the journal. Each suggestion has its own random numbers, seeded by the
sweep's seed and the suggestion's index. For running trials, the study contains only the choices. So a study that
observed every record as it happened makes the same suggestions as one built afterwards; tests check this.

Every command imports this file for the searcher's name, so Optuna itself is imported only when a search begins.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from sweeper.core.domains.base import Interval
from sweeper.core.domains.nodes import Choice, Members, Node
from sweeper.core.domains.space import Space
from sweeper.core.domains.values import join_path
from sweeper.core.errors import Fault
from sweeper.core.ids import seed_from
from sweeper.journal.records import Record, configuration_of
from sweeper.journal.state import COMPLETED, ENDED, FAILED
from sweeper.search.base import SEARCHERS, History, Observed, Searcher, SearchMethod, Suggestion

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import BaseTrial, FrozenTrial, Trial

#: Number of trials drawn at random before TPE begins; the default of `n_startup_trials` of Optuna's TPESampler.
STARTUP = 10


@SEARCHERS.add("optuna")
@dataclass(frozen=True)
class TpeSearch(SearchMethod):
    """Learns from finished trials with Optuna's TPE.

    Source: Bergstra et al. 2011 (Algorithms for Hyper-Parameter Optimization), section 4.

    Attributes:
        startup: trials at random; the model needs at least one observation, and no sweep has more trials
            [Optuna's TPESampler, n_startup_trials].

    Example:
        >>> from sweeper.core.domains.loguniform import LogUniform
        >>> space = Space({"lr": LogUniform(0.01, 0.3)})
        >>> searcher = TpeSearch(startup=2).begin(space, mode="min", seed=0)
        >>> suggestion = searcher.suggest(0)
        >>> 0.01 <= suggestion.values["lr"] <= 0.3
        True
    """

    learns: ClassVar[bool] = True
    startup: Annotated[int, "[1, 1000000]"] = STARTUP

    @property
    def course(self) -> str:
        """How configurations are chosen: some at random, then from observations."""
        return f"{self.startup} trials at random, then from what was observed"

    def adapt(self, nodes: dict[str, Node], faults: list[Fault]) -> dict[str, Node]:
        """Append a fault for every `grid`, and for a space without any choice."""
        space = Space(nodes)
        members = ((path, node) for path, node in space.walk("space") if isinstance(node, Members))
        grids = [join_path(path, node.kind) for path, node in members if node.in_turn]
        rule = "grid tries every member, but the searcher optuna chooses among them"
        faults += [Fault(path, rule, "write choice instead of grid, or searcher: grid") for path in grids]
        if not grids and not space.is_random:
            rule = "optuna has nothing to search: every value of the space is fixed"
            faults.append(Fault("searcher", rule, "give a domain, e.g. lr: {loguniform: [0.01, 0.3]}"))
        return nodes

    def begin(self, space: Space, *, mode: str, seed: int) -> Searcher:
        """Return a searcher without observations. Imports Optuna."""
        return OptunaSearcher(space, mode=mode, seed=seed, startup=self.startup)


class OptunaSearcher:
    """Suggests a sweep's configurations from the records that `apply` observed."""

    def __init__(self, space: Space, *, mode: str, seed: int, startup: int) -> None:
        """Prepare to search `space`: at random for `startup` trials, then by TPE in the direction `mode`."""
        import optuna

        # Optuna logs every trial at INFO; the sweep's own progress display shows them.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.maker = f"optuna {optuna.__version__}"
        self._space = space
        self._mode, self._seed, self._startup = mode, seed, startup
        self._history = History()
        self._study: Study | None = None
        self._asked: dict[int, Trial] = {}
        self._reported: dict[int, Observed] = {}

    def suggest(self, configuration: int) -> Suggestion:
        """Suggest the configuration with index `configuration`, the one after the last that was suggested."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna marks `constant_liar` as experimental
            self._study = self._study or self._studied()
            return self._ask(self._study, configuration)

    def apply(self, record: Record) -> None:
        """Observe one record of the journal; records arrive in order."""
        self._history.apply(record)
        index = configuration_of(record.body)
        if self._study is None or index is None or index not in self._history.trials:
            return
        reported, known = self._reported.get(index), self._history.trials[index]
        if reported is None or (reported.status in ENDED and reported.status != known.status):
            # Optuna cannot reopen an ended trial, and cannot add one that this study did not suggest. The latter
            # happens after a previous driver's suggestion, or if a failed trial was started again. So the next
            # suggestion builds a new study.
            self._study = None
            return
        self._tell(self._study, index)

    def _studied(self) -> Study:
        """Build a study from the history, equal to one that observed each record when it happened."""
        import optuna

        sampler = seeded_tpe(self._seed, self._startup)
        study = optuna.create_study(direction="minimize" if self._mode == "min" else "maximize", sampler=sampler)
        for index, trial in self._history.trials.items():
            # An enqueued trial gets its journaled choices instead of sampled ones.
            study.enqueue_trial(dict(trial.choices))
            self._ask(study, index)
            self._tell(study, index)
        return study

    def _ask(self, study: Study, index: int) -> Suggestion:
        """Ask the study for its next trial and return the suggestion."""
        trial = self._asked[index] = study.ask()
        self._reported[index] = Observed({})
        asked = _TrialChoices(trial)
        return Suggestion(self._space.configuration(0, asked), asked.choices)

    def _tell(self, study: Study, index: int) -> None:
        """Report a trial's rungs and status to the study."""
        from optuna.trial import TrialState

        trial, known, reported = self._asked[index], self._history.trials[index], self._reported[index]
        if reported.status in ENDED:
            return
        for epoch, value in known.rungs.items():
            if epoch not in reported.rungs:
                trial.report(value, epoch)
                reported.rungs[epoch] = value
        # Optuna's TPE ranks pruned trials below completed ones by their last rung, and leaves failed ones out.
        if known.status == COMPLETED:
            study.tell(trial, known.rungs[max(known.rungs)])
        elif known.status in ENDED:
            study.tell(trial, state=TrialState.FAIL if known.status == FAILED else TrialState.PRUNED)
        reported.status = known.status


class _TrialChoices:
    """Draws a configuration from the suggestions of an Optuna trial, and records the choices."""

    def __init__(self, trial: BaseTrial) -> None:
        self._trial = trial
        self.choices: dict[str, Choice] = {}

    def member(self, path: str, members: Members) -> int:
        """Return the index of the member that Optuna chooses."""
        # Optuna's categories must be plain values, but members can be whole components, so indices are passed.
        place = int(self._trial.suggest_categorical(path, list(range(len(members.nodes)))))
        self.choices[path] = place
        return place

    def number(self, path: str, interval: Interval) -> Choice:
        """Return the choice that Optuna makes in the interval."""
        chosen = interval.suggested(self._trial, path)
        self.choices[path] = chosen
        return chosen


def seeded_tpe(seed: int, startup: int) -> BaseSampler:
    """Return a TPE sampler with separate random numbers for each trial, so earlier draws do not affect a suggestion.

    Each hyperparameter is modelled from the trials that have it (Optuna's `multivariate=False`). This needs no joint
    model over branches, which Optuna marks as experimental. Of running trials, only the choices are needed. They count
    as bad trials (`constant_liar`; Ginsbourger et al. 2010, Kriging is well-suited to parallelize optimization), so
    trials that run at the same time differ from each other.

    Args:
        seed: seed of the sweep; each trial's seed follows from it and the trial's index.
        startup: number of trials drawn at random.
    """
    from optuna.samplers import RandomSampler, TPESampler

    class SeededTpe(RandomSampler):
        """Samples hyperparameters one by one like the random sampler, but with a new TPE sampler for each trial."""

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
