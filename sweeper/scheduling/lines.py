"""Lines of the final stage: several values of one hyperparameter, with all other settings equal to the winner's.

A line belongs to a path of the space, such as `loss.gamma`, `optimizer.lr` or `dataset.label_noise`. The path of a
part's components, `loss.name`, is a line, too: each loss has its own best hyperparameters, and everything else is the
winner's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from sweeper.core.cells import grouped
from sweeper.core.domains.base import Interval
from sweeper.core.domains.nodes import Node
from trainables.registry import Configuration, Options
from trainables.registry.configuration import NAME

#: Number of values of a numeric line, and of seeds per value. On simulated surfaces, 3 values × 4 seeds keep the best
#: value in 99 % of cases. If the effect is strong, they exclude 89 % of the worse values. With the same number of
#: trainings, 6 × 2 excludes 52 %.
LINE_VALUES, LINE_SEEDS = 3, 4

#: The parts of a configuration that are its loss and its network.
LOSS, NETWORK = "loss", "architecture"


@dataclass(frozen=True)
class Line:
    """A hyperparameter whose values are compared with all else equal.

    Attributes:
        path: its path in a configuration, e.g. `loss.gamma`.
        domains: component → domain of the hyperparameter. The component is empty for a hyperparameter of a user's
            training loop, which belongs to no component. For a line of components, the components.
        at_zero: loss → hyperparameters that, all at 0, make it cross-entropy. A line of one of them contains 0.
        network: the network on which the line is; empty for the winner's. A line on each network has the winner's
            component and values, so that networks can be compared.

    Example:
        >>> from sweeper.core.domains.uniform import Uniform
        >>> line = Line("loss.gamma", {"focal": Uniform(0.0, 6.0)}, {"focal": ["gamma", "smoothing"]})
        >>> winner = Configuration({"loss": {"name": "focal", "gamma": 0.9}, "optimizer": {"name": "sgd", "lr": 0.1}})
        >>> [values.at("loss.gamma") for values in line.members([winner])]  # cross-entropy has no γ
        [0.9, None, 5.0]
    """

    path: str
    domains: Mapping[str, Node]
    at_zero: Mapping[str, Sequence[str]] = field(default_factory=dict)
    network: str = ""

    @property
    def question(self) -> str:
        """Its name in the journal: the path, and the network if the line is on each, `loss.gamma on mlp`."""
        return f"{self.path} on {self.network}" if self.network else self.path

    @property
    def part(self) -> str:
        """The part of the configuration, e.g. `loss`."""
        return self.path.partition(".")[0]

    @property
    def key(self) -> str:
        """The hyperparameter's key in its component; empty for a hyperparameter of a user's training loop."""
        return self.path.partition(".")[2]

    @property
    def length(self) -> int:
        """Largest number of values, the winner's included."""
        return len(self.domains) if self.key == NAME else max(map(_length, self.domains.values()))

    def value(self, configuration: Configuration) -> object:
        """Return the hyperparameter's value; 0 for the simpler component that 0 makes of it, None if it has none."""
        return configuration.at(self.path)

    def members(self, contenders: Sequence[Configuration]) -> list[Configuration]:
        """Return the configurations of the line through the first contender; empty if no contender is on one.

        Args:
            contenders: configurations, best first. If the first one's component lacks the hyperparameter, the best
                component that has it takes its place.
        """
        winner = contenders[0]
        if self.key == NAME:
            best = grouped(contenders, lambda one: one.name(self.part))
            return [winner.replaced(self.part, of_one[0][self.part]) for of_one in best.values()]
        start = next((winner.replaced(self.part, one[self.part]) for one in contenders if self._component(one)), None)
        there = [one for one in contenders if self.is_on_network(one)]
        if start is None or not there:
            return []
        # The best of this network gets the component of the start, with its own settings if it has that component.
        own = next(one for one in (*there, start) if self._component(one) == self._component(start))
        through = there[0].replaced(self.part, own[self.part]) if self.network else start
        return [self._reduced(through.replaced(self.path, value)) for value in self._values(start)]

    def is_on_network(self, configuration: Configuration) -> bool:
        """Return whether a configuration has the line's network; any has if the line is on the winner's."""
        return not self.network or self.network == configuration.name(NETWORK)

    def holds(self, one: Configuration, other: Configuration) -> bool:
        """Return whether two configurations differ at most in the line's value, the first being on the line."""
        if self.key == NAME:
            return one.replaced(self.part, None) == other.replaced(self.part, None)
        plain = self._reduced(one.replaced(self.path, 0.0)) if self._ends_at_zero(self._component(one)) else one
        return one.replaced(self.path, None) == other.replaced(self.path, None) or plain == other

    def _component(self, configuration: Configuration) -> str | None:
        """Return the name of the component that has the hyperparameter; None if it is not among the line's."""
        name = configuration.name(self.part) if self.key else ""
        return name if name in self.domains else None

    def _reduced(self, configuration: Configuration) -> Configuration:
        if self.part != LOSS:
            return configuration
        return configuration.replaced(LOSS, simplest(configuration[LOSS], self.at_zero))

    def _ends_at_zero(self, component: str | None) -> bool:
        return self.part == LOSS and self.key in self.at_zero.get(component or "", ())

    def _values(self, start: Configuration) -> list[object]:
        """Return the value of `start`, then the others."""
        component, own = cast(str, self._component(start)), self.value(start)
        domain = self.domains[component]
        choices = [value for _, value in domain.extremes()]
        if not all(map(_is_number, [own, *choices])):
            return [*dict.fromkeys([own, *choices])]
        taken = [*dict.fromkeys([cast(float, own), *([0.0] if self._ends_at_zero(component) else [])])]
        return [*taken, *spread(domain, taken, LINE_VALUES - len(taken))]


def simplest(loss: Options, at_zero: Mapping[str, Sequence[str]]) -> Options:
    """Return cross-entropy if the loss's hyperparameters make it that, else the loss itself.

    Args:
        loss: name and hyperparameters.
        at_zero: loss → hyperparameters that, all at 0, make it cross-entropy.

    Example:
        >>> at_zero = {"focal": ["gamma", "smoothing"]}
        >>> simplest({"name": "focal", "gamma": 0.0}, at_zero), simplest({"name": "focal", "gamma": 2.0}, at_zero)
        ({'name': 'cross_entropy'}, {'name': 'focal', 'gamma': 2.0})
    """
    names = at_zero.get(str(loss.get(NAME)), ())
    return {NAME: "cross_entropy"} if names and not any(loss.get(name) for name in names) else loss


def _length(domain: Node) -> int:
    choices = [value for _, value in domain.extremes()]
    if isinstance(domain, Interval):
        return LINE_VALUES
    return min(LINE_VALUES, len(choices)) if all(map(_is_number, choices)) else len(choices)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def spread(domain: Node, taken: Sequence[float], count: int) -> list[float]:
    """Return up to `count` values of a domain, each as far as possible from those `taken` and from each other.

    Candidates are three sextiles of an interval, or all numbers of a list. Distances are measured on the interval's own
    scale.

    Example:
        >>> from sweeper.core.domains.loguniform import LogUniform
        >>> spread(LogUniform(0.01, 1.0), taken=[0.5], count=2)
        [0.0215, 0.1]
    """
    logarithmic = isinstance(domain, Interval) and domain.logarithmic
    if isinstance(domain, Interval):
        # The 1st, 3rd and 5th sextile are the centres of three equal parts, so none lies on the edge of the domain.
        known = [_sextile(domain, place) for place in (1, 3, 5)]
    else:
        known = [value for _, value in domain.extremes() if isinstance(value, int | float)]

    def place(value: float) -> float:
        return math.log(value) if logarithmic else value

    # 0 has no logarithm, so on a log scale it is infinitely far from every candidate.
    chosen, near = list[float](), [place(value) for value in taken if value > 0 or not logarithmic]
    for _ in range(count):
        left = [value for value in known if value not in (*taken, *chosen)]
        if left:
            apart = {value: min((abs(place(value) - other) for other in near), default=math.inf) for value in left}
            chosen.append(max(left, key=apart.__getitem__))
            near.append(place(chosen[-1]))
    return chosen


def _sextile(domain: Interval, place: int) -> float:
    value = domain.number(domain.choice(place / 6))
    # Rounded, because the value is shown as a label, and an audit on another processor must get the same value. Whole
    # numbers and steps of a domain stay what they are.
    return float(f"{value:.3g}") if isinstance(value, float) and math.isinf(domain.size) else value
