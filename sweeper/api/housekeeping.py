"""Commands for search spaces, results folders and the machine: `init`, `validate`, `spaces`, `doctor`, `delete` …"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Group

from search_spaces import FOLDER
from sweeper.api import arguments
from sweeper.api.arguments import HANDED, AtLeastOne, output_folder, overrides
from sweeper.core.display import CommandResult
from sweeper.core.errors import InvalidSearchSpace, SweeperError, writing_to
from sweeper.core.labels import plural, short, symbols_of
from sweeper.space.catalogue import installed_registries, template
from sweeper.space.configurations import configurations
from sweeper.space.loading import load_spec
from sweeper.space.schema import FILE, FIRST_LINE, json_schema
from sweeper.storage import lookup
from sweeper.tracking.choice import mlflow_of
from sweeper.tracking.mlflow.pages import delete_runs
from trainables.extensions.targets import NAME, entry_points
from trainables.files.atomic import write_text

if TYPE_CHECKING:
    from sweeper.space.spec import SweepSpec


#: Objective of a new search space.
OBJECTIVE = "val_posthoc_temperature_nll"


def init(
    file: str | Path,
    *,
    dataset: str | None = None,
    table: str | Path | None = None,
    target: str | None = None,
    loss: Sequence[str] = (),
    network: Sequence[str] = (),
    grid: Annotated[Sequence[str], Parameter(metavar="PATH=VALUES")] = (),
    objective: str = OBJECTIVE,
    epochs: AtLeastOne = 27,
    replicates: AtLeastOne = 1,
    tutorial: bool = False,
) -> CommandResult[Path] | CommandResult[list[Path]]:
    """Write a commented search space to start from, and its JSON schema, which editors use to complete and check it.

    Args:
        file: Search space file to write, e.g. mine.yaml.
        dataset: Data set (`sweeper spaces --datasets` lists all). (default: digits, or table with --table)
        table: Your own table in CSV, Parquet or JSON Lines; batch size, bins and objective are written to suit it.
        target: Column of the table that holds the classes.
        loss: Loss family; repeatable. (default: cross_entropy and focal)
        network: Network; repeatable. (default: mlp)
        grid: Values to try, e.g. loss.gamma=1,2,5 or dataset.label_noise=0,0.1; repeatable. (default: none)
        objective: Metric that trials are compared by.
        epochs: Epochs of a trial that is not stopped.
        replicates: Seeds of each configuration, before the final stage.
        tutorial: Write a search space and a notebook into the folder FILE: a minute on two cores, no download.

    Returns:
        The file or files written.

    Examples:
        >>> import sweeper
        >>> sweeper.init("mine.yaml", loss=["focal"], grid=["loss.gamma=1,2,5"], epochs=9).value.name
        'mine.yaml'
    """
    if tutorial:
        return _tutorial(Path(file))

    file = Path(file)
    if file.exists():
        raise SweeperError(f"{file} already exists", "name another file")
    own = {"dataset.file": table, "dataset.target": target}
    # Quoted as JSON: a column named `yes` or `1` would otherwise become another type in YAML.
    values = {path: [json.dumps(str(value))] for path, value in own.items() if value is not None}
    dataset = dataset or ("digits" if table is None else "table")
    for text in grid:
        path, equals, written = text.partition("=")
        if not equals or not written:
            raise SweeperError(f"--grid {text!r} is not of the form PATH=VALUES", "write e.g. --grid loss.gamma=1,2,5")
        values[path.strip()] = [value.strip() for value in written.split(",")]
    make = functools.partial(
        template, dataset, loss, network, values, objective=objective, epochs=epochs, replicates=replicates
    )
    text = make()  # raises before anything is written
    with writing_to(file, "name another file"):
        write_text(file.with_name(FILE), json.dumps(json_schema(installed_registries()), indent=1, default=list))
        write_text(file, FIRST_LINE + text)
    try:
        spec = load_spec(file)
        if "dataset.file" in values:
            _suit(file, spec, values, make)
    except SweeperError as error:  # the file stays, so that its errors can be corrected in it
        return CommandResult(file, notes=[f"wrote {file}, which has errors"], fault=error)
    return CommandResult(file, notes=[f"wrote {file} and {FILE}\nnext\n  sweeper plan {file}\n  sweeper run {file}"])


def _suit(file: Path, spec: SweepSpec, values: dict[str, list[str]], make: Callable[..., str]) -> None:
    """Write a search space again with what suits its own data, and check it as `run` does."""
    from sweeper.planning.preparation import prepare_dataset, suited_sizes

    size, bins, cross_fits = suited_sizes(spec)
    if size is not None:
        values.setdefault("optimizer.batch_size", [str(size)])
    # Too few validation samples do not determine the usual objective.
    simpler = {} if cross_fits or spec.objective.metric != OBJECTIVE else {"objective": "val_nll"}
    with writing_to(file, "name another file"):
        write_text(file, FIRST_LINE + make(bins=bins, **simpler))
    prepare_dataset(load_spec(file))


def _tutorial(folder: Path) -> CommandResult[list[Path]]:
    files = [folder / f"first_sweep{suffix}" for suffix in (".yaml", ".ipynb")]
    for file in files:
        if file.exists():
            raise SweeperError(f"{file} already exists", "name another folder")
    with writing_to(folder, "name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copyfile(FOLDER / "tutorials" / file.name, file)
    steps = f"sweeper run {files[0]}\n  sweeper show first_sweep\n  jupyter lab {files[1]}   # pip install jupyterlab"
    return CommandResult(files, notes=[f"wrote {files[0]} and {files[1]}\nnext\n  {steps}"])


def validate(
    space: arguments.Space, *, set: arguments.Settings = None, rehearse: arguments.Rehearse = False
) -> CommandResult[SweepSpec]:
    """Check a search space and report all errors at once.

    If the data are on this machine, each network also takes one training step.

    Returns:
        The search space, checked, with its defaults.

    Examples:
        >>> import sweeper
        >>> spec = sweeper.validate("example.yaml").value
        >>> spec.replicates.count, spec.scheduler.max_epochs
        (2, 1)
    """
    from sweeper.planning.plan import describe_objective
    from sweeper.planning.preparation import describe_data_file, prepare_dataset

    spec = load_spec(space, overrides(set), rehearse=rehearse)
    count = spec.samples if spec.searcher.learns else len(configurations(spec))
    symbols = symbols_of(spec.space.renamed_quantities(installed_registries().space))
    varying = ", ".join(dict.fromkeys(short(name, symbols) for name in spec.space.varying_columns)) or "nothing"
    seeds = f"{plural(count, 'configuration')} × {plural(spec.replicates.count, 'seed')}"
    described, untried = describe_data_file(spec), None
    if spec.loop is None:
        # Checking a file must not start a download of gigabytes.
        local = spec.dataset | ({"download": False} if "download" in spec.dataset else {})
        try:
            prepare_dataset(spec.model_copy(update={"dataset": local}))
        except InvalidSearchSpace:
            raise
        except SweeperError as error:
            untried = f"not tried on its data: {error.message}"
    else:
        untried = "the loop is not tried here: `sweeper plan` trains it for two epochs"
    said = (f"{space} is valid: {seeds}; varies {varying}", describe_objective(spec), described, untried)
    return CommandResult(spec, "\n".join(filter(None, said)))


def delete(
    name: arguments.Name,
    *,
    yes: Annotated[bool, Parameter(alias="-y")] = False,
    runs: bool = False,
    output: arguments.Output = None,
    tracking_uri: arguments.Tracking = None,
    ask: Annotated[Callable[[str], object], HANDED] = lambda question: None,
) -> CommandResult[Path]:
    """Delete a sweep's results folder, and its MLflow runs with --runs.

    Args:
        yes: Do not ask for confirmation.
        runs: Delete its MLflow runs, too.
        ask: Callback that asks the user, and raises if the answer is no.

    Returns:
        The deleted folder.

    Examples:
        >>> import shutil, sweeper
        >>> _ = shutil.copytree("results/example", "results/copy")
        >>> sweeper.delete("copy", yes=True).value.name
        'copy'
    """
    from sweeper.execution.slurm.submission import at_rest

    place = output_folder(output)
    scripts = at_rest(name, place)
    if scripts is not None and not (scripts.parent.parent / scripts.name).exists():  # its jobs never began
        shutil.rmtree(scripts)
        return CommandResult(scripts, notes=[f"deleted {scripts}"])
    paths = lookup.at_rest(name, place)
    root, notes = paths.root, []
    if not yes:
        others = "with its MLflow runs" if runs else "its MLflow runs stay, without --runs"
        ask(f"Delete {root} ({lookup.size_of(root) / 2**20:,.1f} MiB; {others})?")
    if runs:
        # Delete the runs before the folder: the folder's journal has the id that identifies them.
        count = delete_runs(mlflow_of(paths, tracking_uri), paths)
        notes.append(f"deleted {plural(count, 'MLflow run')}")
    size = lookup.delete(name, place)
    if scripts is not None:
        shutil.rmtree(scripts, ignore_errors=True)
    return CommandResult(root, notes=[*notes, f"deleted {root}, {size / 2**20:,.1f} MiB"])


def rename(name: arguments.Name, new: str, *, output: arguments.Output = None) -> CommandResult[Path]:
    """Rename a sweep.

    MLflow keeps the old name until `sweeper manage sync` renames its experiment and runs.

    Args:
        new: New name.

    Returns:
        The new folder.

    Examples:
        >>> import shutil, sweeper
        >>> _ = shutil.copytree("results/example", "results/old")
        >>> sweeper.rename("old", "new").value.name
        'new'
    """
    from sweeper.execution.slurm.submission import at_rest

    place = output_folder(output)
    at_rest(name, place)  # a job that waits would start the sweep anew under its old name
    folder = lookup.rename(name, new, place)
    return CommandResult(folder, notes=[f"renamed to {folder}"])


def archive(
    name: arguments.Name, *, to: str | Path | None = None, output: arguments.Output = None
) -> CommandResult[Path]:
    """Pack a sweep's results folder into a .tar.gz file.

    The folder is kept.

    Args:
        to: File to write. (default: NAME.tar.gz beside the sweep)

    Returns:
        The file.

    Examples:
        >>> import sweeper
        >>> sweeper.archive("example", to="example.tar.gz").value.name
        'example.tar.gz'
    """
    from sweeper.reporting.status import lost_files

    place = output_folder(output)
    file = lookup.archive(name, place, None if to is None else Path(to))
    lost = [f"warning: {sentence}" for sentence in lost_files(lookup.at_rest(name, place))]
    return CommandResult(file, notes=[f"wrote {file}, {file.stat().st_size / 2**20:,.1f} MiB", *lost])


def spaces(
    *,
    losses: bool = False,
    architectures: bool = False,
    datasets: bool = False,
    optimizers: bool = False,
    posthoc: bool = False,
    metrics: bool = False,
    schedulers: bool = False,
    searchers: bool = False,
) -> CommandResult[list[str]]:
    """List the shipped search spaces, or the components that a search space can name.

    Args:
        losses: List loss families.
        architectures: List architectures.
        datasets: List data sets.
        optimizers: List optimisers and their recipes.
        posthoc: List post-hoc methods.
        metrics: List optional metrics and their settings.
        schedulers: List schedulers and their settings.
        searchers: List searchers and their settings.

    Returns:
        The kinds that were listed.

    Examples:
        >>> import sweeper
        >>> sweeper.spaces(losses=True, posthoc=True).value
        ['losses', 'posthoc']
    """
    from sweeper.space import catalogue

    wanted = (losses, architectures, datasets, optimizers, posthoc, metrics, schedulers, searchers)
    chosen = [kind for kind, is_chosen in zip(catalogue.KINDS, wanted, strict=True) if is_chosen]
    tables = [catalogue.components_table(kind) for kind in chosen] or [catalogue.spaces_table()]
    return CommandResult(chosen, Group(*tables))


def doctor() -> CommandResult[list[Check]]:
    """Check that this machine can run sweeps.

    Every problem comes with a fix.

    Returns:
        One check per requirement, with its fix.

    Examples:
        >>> import sweeper
        >>> {check.subject: check.ok for check in sweeper.doctor().value}["Python"]  # doctest: +SKIP
        True
    """
    done, lines = checks(), list[str]()
    for check in done:
        lines.append(f"{'ok  ' if check.ok else 'FAIL'} {check.subject}: {check.finding}")
        lines += [] if check.ok else [f"     {check.remedy}"]
    return CommandResult(done, "\n".join(lines), exit_code=int(not all(check.ok for check in done)))


#: Least free space in /dev/shm: Ray keeps its object store there, and containers offer 64 MiB by default.
SHARED_MEMORY_GIB = 0.5

#: Least free space on disk: results of a small sweep, and Ray's session logs in the temporary folder.
DISK_GIB = 2.0

#: Packages that every sweep needs.
PACKAGES = ("torch", "ray", "mlflow-skinny", "pyarrow", "duckdb", "scikit-learn", "vl-convert-python")


@dataclass(frozen=True)
class Check:
    """Result of one check: its subject, whether it passed, the finding, and the remedy if it failed."""

    subject: str
    ok: bool
    finding: str
    remedy: str = ""


def checks() -> list[Check]:
    """Run all checks, in the order in which a sweep would hit them."""
    return [_python(), _packages(), _images(), _gpus(), _shared_memory(), _disk(), _own_components()]


def _python() -> Check:
    running = ".".join(map(str, sys.version_info[:3]))
    return Check("Python", sys.version_info >= (3, 11), running, "install Python 3.11 or newer")


def _packages() -> Check:
    missing, installed = [], []
    for package in PACKAGES:
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    remedy = f"pip install -c constraints.txt {' '.join(missing)}"
    return Check("packages", not missing, ", ".join(missing or installed), remedy)


def _images() -> Check:
    from trainables.extensions.libraries import register_missing_operators

    register_missing_operators()
    try:
        module = importlib.import_module("torchvision")
    except (ImportError, RuntimeError) as error:  # RuntimeError: its operators are registered for another torch
        return Check("torchvision", False, str(error), "install the torchvision that fits the installed torch")
    # Test in a new process, where nothing has registered the operators, as in the user's own script.
    alone = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False)
    if alone.returncode == 0:
        return Check("torchvision", True, f"{module.__version__} imports with this torch")
    said = (
        f"{module.__version__} was built for another torch: sweeps add what it lacks, but your own `import timm` would "
        "fail; `pip install --force-reinstall torchvision` from torch's own index fixes that"
    )
    return Check("torchvision", True, said)


def _gpus() -> Check:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("GPUs", True, ", ".join(names) or "none: trials run on the CPU")


def _shared_memory() -> Check:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return Check("shared memory", True, "no /dev/shm: Ray uses the temporary directory, which is slower but works")
    free = shutil.disk_usage(folder).free / 2**30
    remedy = "in a container, set --shm-size=2g"
    return Check("shared memory", free >= SHARED_MEMORY_GIB, f"{free:.1f} GiB free in {folder}", remedy)


def _disk() -> Check:
    places = {Path.cwd(), Path(tempfile.gettempdir())}
    frees = {place: shutil.disk_usage(place).free / 2**30 for place in places}
    writable = all(os.access(place, os.W_OK) for place in places)
    finding = ", ".join(f"{free:.1f} GiB free at {place}" for place, free in sorted(frees.items()))
    return Check(
        "disk", writable and min(frees.values()) >= DISK_GIB, finding, "free space, or work in another directory"
    )


def _own_components() -> Check:
    """Import the components that installed packages add, as a sweep that names them would."""
    registries = installed_registries()
    kinds = (*registries.space.values(), registries.datasets, registries.posthoc, registries.further_metrics)
    components, faults = [], []
    for registry in kinds:
        for name in entry_points(registry.group) if registry.group else ():
            fault = registry.fault(name) if NAME.fullmatch(name) else "use lower-case letters, digits and _"
            if fault is None and not registry.is_own(name):
                fault = "a built-in component has the same name"
            components.append(f"{registry.kind} {name}")
            faults += [f"{registry.kind} {name}: {fault}"] if fault else []
    finding = "; ".join(faults) or ", ".join(components) or "none: `sweeper spaces` lists built-in components"
    return Check("components of packages", not faults, finding, "fix or uninstall the package that adds it")
