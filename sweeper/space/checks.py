"""Rules over a whole space: how many configurations it has, the lines of the final stage, and the strata of trials."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from sweeper.core.domains.base import Interval
from sweeper.core.domains.nodes import Constant, Members, Node
from sweeper.core.domains.space import Space
from sweeper.core.domains.values import Plain, join_path, part_of, repeats
from sweeper.core.errors import Fault
from sweeper.core.labels import plural
from sweeper.scheduling.base import WITHIN
from sweeper.scheduling.lines import NETWORK
from sweeper.scheduling.strata import Stratified, stratum_name
from sweeper.space.configurations import examples
from sweeper.space.spec import EACH, MAXIMUM_CONFIGURATIONS, WINNER, SweepSpec, through_winner
from trainables.registry import IMPORTED, Registry
from trainables.registry.configuration import NAME
from trainables.registry.names import hint, nearest


def count_faults(values: dict[str, Plain], space: Space) -> list[Fault]:
    """Fill in `samples` if it can be omitted, and check the number of configurations."""
    # The size of an invalid space is unknown.
    if any(_invalid(node) for node in space.nodes.values()):
        values.setdefault("samples", 1)
        return []
    points = space.points
    if values.get("samples") is None:
        if points == 1 and space.is_random:
            values["samples"] = 1
            return [Fault("samples", "missing: how many configurations to draw", "write e.g. samples: 48")]
        values["samples"] = 1
    samples, replicates = values["samples"], values.get("replicates")
    common = isinstance(replicates, dict) and replicates.get("seeds", "own") != "own"
    fewest, most = space.sizes
    distinct = fewest if common else most
    # Imported sweeps were drawn elsewhere.
    drawn = values.get("loop") != IMPORTED and (common or space.is_random)
    # With common seeds, a repeated configuration gives exactly the same numbers, so training it again is wasted time.
    if isinstance(samples, int) and distinct < samples and most < math.inf and drawn:
        holder = "a grid point" if points > 1 else "the space"
        rule = f"samples = {samples}, but {holder} has only {plural(int(distinct), 'configuration')}"
        remedy = f"write samples: {int(distinct)}, and raise replicates.count to train each on more seeds"
        return [Fault("samples", rule, remedy)]
    if isinstance(samples, int) and 0 < samples <= MAXIMUM_CONFIGURATIONS < points * samples:
        rule = f"{points} grid points × {samples} samples are more than {MAXIMUM_CONFIGURATIONS} configurations"
        return [Fault("samples", rule, "shorten the grids, or use choice instead of grid")]
    return []


def _invalid(node: Node) -> bool:
    return any(map(_invalid, node.nodes)) if isinstance(node, Members) else isinstance(node, Constant)


def line_faults(values: dict[str, Plain], space: Space) -> list[Fault]:
    """Replace the names of `which` by their paths; return the faults of those that do not name one hyperparameter."""
    asked = values.get("which")
    names = [asked] if isinstance(asked, str) else [*asked] if isinstance(asked, dict | list) else None
    if names is None or not all(isinstance(name, str) for name in names):
        return []  # the structure's check reports wrong types
    through = through_winner(asked)
    if names and part_of(values, "replicates", "at_most") is None:
        rule = "which trains a line of values in the final stage, and the sweep has none"
        return [Fault("which", rule, "write e.g. replicates: {count: 1, at_most: 8, seeds: common}")]
    paths, faults = list[Plain](), list[Fault]()
    for at, name in enumerate(map(str, names)):
        place = join_path("which", name if isinstance(asked, dict) else at)
        path = _line_path(name, [*space.lines])
        if isinstance(path, tuple):
            faults.append(Fault(place, *path))
        elif through[name] == EACH:
            faults += _network_faults(place, path, space.names(NETWORK))
        paths.append(name if isinstance(path, tuple) else path)
    values["which"] = {str(path): through[name] for path, name in zip(paths, map(str, names), strict=True)}
    return faults or repeats(paths, "which", "{!r} is named twice", "name each once")


def _network_faults(place: str, path: str, networks: Sequence[str]) -> list[Fault]:
    """Return why a hyperparameter can have no line on each network; empty if it can."""
    if len(networks) < 2:
        rule = f"each is a line on each network, and the space has {plural(len(networks), 'network')}"
        return [Fault(place, rule, f"write {WINNER}, or add networks to space.{NETWORK}")]
    if path.partition(".")[0] == NETWORK:
        rule = f"each is a line on each network, and {path} is a setting of networks themselves"
        return [Fault(place, rule, f"write {WINNER}")]
    return []


def _line_path(name: str, paths: Sequence[str]) -> str | tuple[str, str]:
    """Return the only path that a name fits, else the rule it breaks and its remedy.

    Example:
        >>> _line_path("gamma", ["loss.name", "loss.gamma"]), _line_path("loss", ["loss.name", "loss.gamma"])
        ('loss.gamma', 'loss.name')
    """
    # A part's name stands for its components, any other name for a hyperparameter.
    names = {path: path.removesuffix(f".{NAME}").rpartition(".")[2] for path in paths}
    fitting = [path for path in paths if name in (path, names[path])]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        return f"{name!r} fits {' and '.join(fitting)}", f"write {fitting[0]}"
    short = [*dict.fromkeys(names.values())]
    near = (nearest(name, short) or nearest(name, paths)).removeprefix("; ")
    return f"the space draws no {name!r} from several values", near or hint(name, short) or "the space draws none"


def cross_entropy_at_zero(space: Space, losses: Registry) -> dict[str, Plain]:
    """Return loss → hyperparameters that, all at 0, make it cross-entropy, for the project's losses of a space."""
    # Written into the resolved file, because commands that read a sweep do not import losses.
    named = [name for name in space.names("loss") if not losses.is_own(name)]
    known = {name: getattr(losses[name], "cross_entropy_at_zero", ()) for name in named}
    return {name: [*zeros] for name, zeros in known.items() if zeros}


PLACE = f"scheduler.{WITHIN.name}"


def within_faults(paths: Plain, space: Space, place: str = PLACE) -> list[Fault]:
    """Return the faults of the paths that divide trials into strata; other checks report wrong types.

    Args:
        paths: the paths as the file has them.
        space: the resolved space.
        place: path of the setting in the file.
    """
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        return []
    if not paths:
        key = place.rpartition(".")[2]
        return [Fault(place, f"{key} names no path", "name e.g. [architecture, loss], or leave it out for one pool")]
    named = [str(path) for path in paths]
    faults = repeats(named, place, "{!r} is named twice", "name each path once")
    return faults + [f for index, path in enumerate(named) for f in _path_faults(path, join_path(place, index), space)]


def _path_faults(path: str, place: str, space: Space) -> list[Fault]:
    part, _, key = path.partition(".")
    if part not in space.nodes:
        return [Fault(place, f"{path!r} is not a path of the space", hint(part, space.nodes))]
    components = space.components(part)
    keys = [*dict.fromkeys(name for component in components for name in component.nodes)]
    if key and key not in keys:
        return [Fault(place, f"no {part} of the space has {key!r}", hint(key, keys))]
    drawn = [node for c in components if key in c.nodes for _, node in c.nodes[key].walk()]
    if any(isinstance(node, Interval) and node.size == math.inf for node in drawn):
        rule = f"{path} is drawn from a range, so every trial would be its own stratum"
        return [Fault(place, rule, "divide trials by names, choices or grids")]
    return []


def stratum_sizes(spec: SweepSpec) -> dict[str, float]:
    """Return stratum → number of trials, in the order of the strata's first trials.

    The sweep must have strata. The numbers are exact if configurations are drawn from the space. If a searcher chooses,
    they are counted over random configurations.

    Example:
        >>> from sweeper.space.loading import load_spec
        >>> sizes = stratum_sizes(load_spec("quickstart", ["scheduler.within=[architecture]", "samples=20"]))
        >>> sorted(sizes), sum(sizes.values()) % 20
        (['mlp', 'resnet8'], 0.0)
    """
    schedule, examined = spec.schedule, examples(spec)
    assert isinstance(schedule, Stratified)
    counts = Counter(stratum_name(configuration, schedule.within) for configuration in examined)
    trials = spec.samples if spec.searcher.learns else len(examined)
    return {name: count * trials / len(examined) for name, count in counts.items()}


def size_faults(spec: SweepSpec) -> list[Fault]:
    """Return a fault if a stratum has too few trials for its scheduler."""
    schedule = spec.schedule
    if not isinstance(schedule, Stratified):
        return []
    sizes = stratum_sizes(spec)
    small = {name: size for name, size in sizes.items() if size < schedule.smallest_pool}
    if not small:
        return []
    name = min(small, key=small.__getitem__)
    more = f" (and {len(small) - 1} more of {len(sizes)} strata)" if len(small) > 1 else ""
    trials = f"{small[name]:.3g} trial{'' if small[name] == 1 else 's'}"
    rule = (
        f"the stratum {name} has {trials}{more}, but {spec.scheduler.name} with these settings needs "
        f"{schedule.smallest_pool} to compare"
    )
    needed = samples_needed(spec)
    more = "" if needed is None else f"raise samples to {needed:,}, "
    return [Fault(PLACE, rule, f"{more}write grid instead of choice or one_of, or remove a path")]


def samples_needed(spec: SweepSpec) -> int | None:
    """Return the fewest samples at which each stratum is large enough; None if 128 times as many do not suffice."""

    def suffice(samples: int) -> bool:
        schedule, sizes = spec.schedule, stratum_sizes(spec.model_copy(update={"samples": samples}))
        assert isinstance(schedule, Stratified)
        return min(sizes.values()) >= schedule.smallest_pool

    enough = next(filter(suffice, (spec.samples * 2**power for power in range(1, 8))), None)
    if enough is None:
        return None
    return next(filter(suffice, range(enough // 2 + 1, enough + 1)))
