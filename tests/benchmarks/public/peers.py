"""Other packages' schedulers, as they are, in this project's loop (`sweeper.scheduling.simulation.play`).

Each gets the same arrivals as ours and is asked at the same rungs. A package that is not there is left out, with a
sentence. NePS requires older releases of pandas and gpytorch than this project has, so of it only the file with the
bracket's decisions is loaded, which needs more-itertools alone.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sweeper.journal.records import Decision
from sweeper.scheduling.asha import Halving
from sweeper.scheduling.base import Measured, RungState, Scheduler, Settled


@dataclass(frozen=True)
class Peer(Halving):
    """A peer's scheduler with the rungs of successive halving; `make` returns the state that asks it."""

    make: Callable[[Peer], RungState] = field(default=lambda peer: PeerState(peer), compare=False)

    def begin(self) -> RungState:
        """Return the state before the first record."""
        return self.make(self)


class PeerState(RungState):
    """What a peer has seen; it takes a value in when it decides."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.count = dict.fromkeys(scheduler.rungs, 0)

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Count it."""
        self.count[rung] += 1

    def competitors(self, rung: int) -> int:
        """Return how many configurations have reached a rung."""
        return self.count[rung]

    def stops(self, rung: int, configuration: int, metric: float) -> bool:
        """Ask the peer."""
        raise NotImplementedError

    def asked(self, rung: int, configuration: int, metric: float) -> bool:
        """Ask the peer, although the trial may go on in spite of the answer."""
        return self.stops(rung, configuration, metric)

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Return what the peer decides."""
        stops = self.stops(rung, configuration, metric)
        return Decision("stop" if stops else "continue", "peer", rung, metric, count=self.count[rung] + 1)


class SyneTuneAsha(PeerState):
    """Syne Tune's ASHA: its one bracket."""

    def __init__(self, peer: Peer) -> None:
        from syne_tune.optimizer.schedulers.asha import Bracket

        super().__init__(peer)
        self._bracket: Any = Bracket(peer.grace_epochs, peer.max_epochs, peer.reduction_factor, 0)

    def stops(self, rung: int, configuration: int, metric: float) -> bool:
        """Ask the bracket."""
        return bool(self._bracket.on_result(configuration, rung, {"value": metric}) == "STOP")


class SyneTuneMedian(PeerState):
    """Syne Tune's median stopping rule, at the rungs."""

    def __init__(self, peer: Peer) -> None:
        from syne_tune.backend.trial_status import Trial
        from syne_tune.optimizer.schedulers.median_stopping_rule import MedianStoppingRule

        super().__init__(peer)
        logging.getLogger("syne_tune").setLevel(logging.ERROR)

        class Continue:
            metric = "value"

            def on_trial_result(self, trial: Any, result: Any) -> str:
                return "CONTINUE"

        self._rule: Any = MedianStoppingRule(Continue(), time_attr="epoch", metric="value")  # type: ignore[arg-type]
        self._trial: Any = Trial

    def stops(self, rung: int, configuration: int, metric: float) -> bool:
        """Ask the rule."""
        trial = self._trial(configuration, {}, None)
        return bool(self._rule.on_trial_result(trial, {"value": metric, "epoch": rung}) == "STOP")


class OptunaPruner(PeerState):
    """A pruner of Optuna, on a study in memory."""

    def __init__(self, peer: Peer, pruner: Any) -> None:
        import optuna

        super().__init__(peer)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study: Any = optuna.create_study(pruner=pruner)
        self._trials: dict[int, Any] = {}

    def asked(self, rung: int, configuration: int, metric: float) -> bool:
        """Report and ask, whatever comes of it."""
        trial = self._trials.get(configuration) or self._study.ask()
        self._trials[configuration] = trial
        trial.report(metric, rung)
        return bool(trial.should_prune())

    def stops(self, rung: int, configuration: int, metric: float) -> bool:
        """Report and ask, and tell the study of a stop: its median takes ended trials alone."""
        import optuna

        stops = self.asked(rung, configuration, metric)
        if stops:
            self._study.tell(self._trials[configuration], state=optuna.trial.TrialState.PRUNED)
        return stops

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Count it, and tell the study of a trial that is complete."""
        super().add(rung, configuration, metric, measured)
        if rung == self.scheduler.max_epochs:
            trial = self._trials.get(configuration) or self._study.ask()
            trial.report(metric, rung)
            self._study.tell(trial, metric)


class NepsAsha(PeerState):
    """The asynchronous bracket of NePS' ASHA: trials pause, and it names whom to promote."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._brackets = _neps_brackets()
        self._seen: dict[tuple[int, int], float] = {}
        self._factor = peer.reduction_factor

    def compare(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> Decision:
        """Let every trial pause."""
        return Decision("pause", "peer", rung, metric, count=self.count[rung] + 1)

    def add(self, rung: int, configuration: int, metric: float, measured: Measured | None = None) -> None:
        """Take a value in."""
        super().add(rung, configuration, metric, measured)
        self._seen[configuration, self.scheduler.rungs.index(rung)] = metric

    def promotion(self, settled: Settled = lambda stratum, rung: False) -> tuple[int, Decision] | None:
        """Ask the bracket; a promoted trial is in its table, without a value, from then on."""
        import pandas as pd

        index = pd.MultiIndex.from_tuples([*self._seen], names=["id", "rung"])
        table = pd.DataFrame({"config": [{}] * len(index), "perf": [*self._seen.values()]}, index=index).sort_index()
        rungs = self.scheduler.rungs
        bracket = self._brackets.Async.create(table, rungs=[*range(len(rungs))], eta=self._factor)
        action = bracket.next()
        if not isinstance(action, self._brackets.PromoteAction):
            return None
        trial, place = int(action.id), int(action.new_rung)
        metric = self._seen[trial, place - 1]
        self._seen[trial, place] = float("nan")
        return trial, Decision("continue", "peer", rungs[place - 1], metric)


def _neps_brackets() -> Any:
    if "neps_brackets" not in sys.modules:
        package = importlib.util.find_spec("neps")
        if package is None or not package.submodule_search_locations:
            raise ModuleNotFoundError("No module named 'neps'")
        file = f"{package.submodule_search_locations[0]}/optimizers/utils/brackets.py"
        spec = importlib.util.spec_from_file_location("neps_brackets", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["neps_brackets"] = module
        spec.loader.exec_module(module)
    return sys.modules["neps_brackets"]


def _optuna_halving(peer: Peer) -> RungState:
    import optuna

    pruner = optuna.pruners.SuccessiveHalvingPruner(peer.grace_epochs, int(peer.reduction_factor), 0)
    return OptunaPruner(peer, pruner)


def _optuna_median(peer: Peer) -> RungState:
    import optuna

    return OptunaPruner(peer, optuna.pruners.MedianPruner())


PEERS: dict[str, Callable[[Peer], RungState]] = {
    "Syne Tune ASHA": SyneTuneAsha,
    "Optuna SuccessiveHalvingPruner": _optuna_halving,
    "NePS ASHA (promotion)": NepsAsha,
    "Syne Tune median": SyneTuneMedian,
    "Optuna MedianPruner": _optuna_median,
}


def installed() -> tuple[dict[str, Callable[[Peer], RungState]], list[str]]:
    """Return the peers that are there, and a sentence on each of the others."""
    found, absent = (
        {},
        ["None of Syne Tune 0.16, Optuna 5.0 and NePS 0.17 has PASHA, so there is none to compare with."],
    )
    for name, make in PEERS.items():
        try:
            make(Peer("value", "min", 9, 1, 3))
        except ImportError as error:
            absent.append(f"{name} is left out: {error}.")
        else:
            found[name] = make
    return found, absent
