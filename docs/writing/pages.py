"""Write a page for every component from its declaration, and pages of commands, search space, Python and project."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import yaml
from pydantic import BaseModel

import sweeper
from sweeper.api import SUBCOMMANDS
from sweeper.api.main import program
from sweeper.core.display import SafeConsole
from sweeper.reporting.sentences import SHOWN
from sweeper.scheduling import SCHEDULERS
from sweeper.search import SEARCHERS
from sweeper.space.spec import SweepSpec
from trainables.curvature.statistics import STATISTICS
from trainables.datasets import DATASETS
from trainables.losses import LOSSES
from trainables.metrics import METRICS
from trainables.metrics.base import Metric
from trainables.models import ARCHITECTURES
from trainables.posthoc import POSTHOC
from trainables.registry import Component, Registry
from trainables.training.recipe import OPTIMIZERS
from writing import examples, gallery

ROOT = Path(__file__).resolve().parents[2]

PROJECT = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": ".github/SECURITY.md",
    "runbook": "deploy/RUNBOOK.md",
    "gpu_sharing": "deploy/GPU_SHARING.md",
    "statistics": "tests/benchmarks/STATISTICS.md",
    "yardsticks": "tests/benchmarks/YARDSTICKS.md",
}
"""Page of the site → the project's file that it shows."""

PAGES = {"how_sure": "docs/how_sure.md"}
"""Page of the site → the project's file that links name."""

ARROWS = {"min": "lower is better", "max": "higher is better", None: "good at neither end"}


@dataclass(frozen=True)
class Family:
    """A kind of component: its folder, title and registry, and the special parts of its pages."""

    folder: str
    title: str
    registry: Registry
    about: str
    example: Callable[[Component, Path], Sequence[str]]
    extra: Callable[[Component], Sequence[str]] = lambda component: ()


NOTATION = (
    ". Here p_ik is the probability of class k for sample i of n, c_i the largest of them, and r_i is 1 where its "
    "class is the target y_i, else 0"
)

BINNED = "it depends on its bins and is biased upwards on few samples; its standard error is beside it"

DEFINITIONS: dict[str, dict[str, str]] = yaml.safe_load(
    (Path(__file__).parent / "metrics.yaml").read_text(encoding="utf-8")
)
"""Metric → formula, source and warning, for metrics that one function computes together and that have no docstring."""


def metric_facts(component: Component) -> list[str]:
    """Return a metric's range, direction and measurements."""
    assert isinstance(component, Metric)
    where = "in every evaluation" if component.always else f"where `evaluation.metrics` names `{component.name}`"
    facts = [
        f"Range\n: {component.range_text}{f' {component.unit}' if component.unit else ''}",
        f"Direction\n: {ARROWS[component.mode]}",
        f"Measured\n: {where}{f', from {component.needs}' if component.needs else ''}",
    ]
    own = DEFINITIONS.get(component.name, {})
    if component.binned:
        own = {**own, "misleads": "; ".join(filter(None, [BINNED, own.get("misleads")]))}
    facts += [
        f"{key.capitalize()}\n: {text}{NOTATION if key == 'formula' and '_' in text else ''}"
        for key, text in own.items()
    ]
    return ["\n\n".join(facts)]


FAMILIES = (
    Family("losses", "Losses", LOSSES, "Training losses: `space.loss`.", examples.loss),
    Family("metrics", "Metrics", METRICS, "Measurements of predictions.", examples.metric, metric_facts),
    Family(
        "posthoc",
        "Post-hoc methods",
        POSTHOC,
        "Methods that are fitted to validation logits: `evaluation.posthoc`.",
        examples.posthoc,
    ),
    Family(
        "schedulers", "Schedulers", SCHEDULERS, "They decide which trials continue: `scheduler`.", examples.scheduler
    ),
    Family(
        "searchers", "Searchers", SEARCHERS, "They choose the configurations to try: `searcher`.", examples.searcher
    ),
    Family(
        "curvature",
        "Curvature statistics",
        STATISTICS,
        "Measurements of a Hessian: `evaluation.curvature`.",
        examples.statistic,
    ),
    Family("networks", "Networks", ARCHITECTURES, "Architectures to train: `space.architecture`.", examples.network),
    Family("datasets", "Data sets", DATASETS, "Data to train on: `dataset`.", examples.dataset),
    Family("optimizers", "Optimisers", OPTIMIZERS, "Optimisers: `space.optimizer`.", examples.optimizer),
)


def write(folder: Path) -> None:
    """Write every page that has changed. Others keep their modification time, so Sphinx does not build them again."""
    for family in FAMILIES:
        members = sorted(family.registry.built_in(), key=lambda member: member.name)
        rows = "\n".join(f"| [{m.name}]({m.name}.md) | {_cell(m.summary)} | {_cell(m.source)} |" for m in members)
        toc = "\n".join(member.name for member in members)
        _put(
            folder / family.folder / "index.md",
            f"# {family.title}\n\n{family.about} {len(members)} are built in; `sweeper spaces` lists them, too.\n\n"
            f"| name | description | source |\n|---|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n",
        )
        for member in members:
            _put(folder / family.folder / f"{member.name}.md", page(family, member, folder / family.folder))


def write_all(folder: Path) -> None:
    """Write the pages of components, of commands, of the search space, of Python, and of the project's own files."""
    write(folder)
    _put(folder / "commands.md", commands())
    _put(folder / "search_space.md", search_space())
    _put(folder / "api.md", python())
    _put(folder / "glossary.md", glossary())
    _put(folder.parent / "project" / "gallery.md", gallery.listing())
    for name, source in PROJECT.items():
        _put(folder.parent / "project" / f"{name}.md", (ROOT / source).read_text(encoding="utf-8"))


def glossary() -> str:
    """Return the page of all words; those of the first screen have the texts of the report's tooltips."""
    text = (ROOT / "sweeper" / "reporting" / "glossary.yaml").read_text("utf-8")
    screen, further = yaml.safe_load_all(text)
    parts = [
        "# Glossary",
        "The words of the first screen, as the report's tooltips explain them, and below them all others.",
    ]
    for title, words in (("On the first screen", screen), ("Elsewhere", further)):
        parts.append(f"## {title}")
        parts += [f"### {SHOWN.get(word, word)}\n\n{_sentence(meaning)}" for word, meaning in words.items()]
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Return the page of all commands with their help, as a terminal of 100 columns shows it."""
    names = [[name] for name in program() if not name.startswith("-")]
    parts = ["# Commands", "The help of every command. Each is also a [Python function](api.md) with the same options."]
    names += [[group, name] for group in SUBCOMMANDS for name in program()[group] if not name.startswith("-")]
    for words in sorted(names):
        shown = SafeConsole(file=io.StringIO(), width=100)
        program().help_print(words, console=shown)
        parts += [f"## {' '.join(words)}", f"```text\n{shown.file.getvalue()}```"]  # type: ignore[attr-defined]
    return "\n\n".join(parts) + "\n"


def search_space() -> str:
    """Return the page of a search space file's keys, from the models that check it."""
    parts = [
        "# Search space",
        "All keys of a file, with the models that check them. `space` holds `loss`, `architecture`, `optimizer`; the "
        "possible names are in [Losses](losses/index.md), [Networks](networks/index.md) and "
        "[Optimisers](optimizers/index.md). Unknown keys are errors that name the nearest known one.",
    ]
    seen: list[type[BaseModel]] = [SweepSpec]
    for model in seen:
        title = "The file" if model is SweepSpec else model.__name__
        rows = []
        for name, field in model.model_fields.items():
            shown = (
                getattr(field.annotation, "__name__", None)
                if isinstance(field.annotation, type)
                else str(field.annotation)
            )
            default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
            rows.append(
                f"| `{name}` | {_cell(_plain_type(str(shown)))} | {default[:80] if len(default) < 80 else '…'} |"
            )
            for inner in _models(field.annotation):
                if inner not in seen:
                    seen.append(inner)
        parts += [f"## {title}", docstring(model), "\n".join(["| key | value | default |", "|---|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models(inner)]


def _plain_type(text: str) -> str:
    return re.sub(r"(?:[\w]+\.)+(\w+)", r"\1", re.sub(r"Annotated\[([^,]+),[^\]]*\]", r"\1", text)).replace(
        "NoneType", "None"
    )


def python() -> str:
    """Return the page of the Python functions."""
    names = [name for name in sweeper.__all__ if name != "results"]  # a module, documented below with its members
    parts = ["# Python", inspect.getdoc(sweeper) or ""]
    for name in names:
        kind = (
            "autoexception"
            if isinstance(getattr(sweeper, name), type) and issubclass(getattr(sweeper, name), Exception)
            else "autoclass"
            if isinstance(getattr(sweeper, name), type)
            else "autofunction"
        )
        parts.append(f"## {name}\n\n```{{eval-rst}}\n.. {kind}:: sweeper.{name}\n```")
    parts.append(
        "## results\n\n```{eval-rst}\n.. automodule:: sweeper.results\n   :members:\n   :imported-members:\n```"
    )
    return "\n\n".join(parts) + "\n"


def relink(app: object, name: str, text: list[str]) -> None:
    """Redirect links of the project's files, written for its root, to the site's pages; other links become text."""
    depth = name.count("/")

    def target(match: re.Match[str]) -> str:
        label, place = match[1], match[2]
        path, _, anchor = place.partition("#")
        for page_name, source in {**PAGES, **{f"project/{key}": value for key, value in PROJECT.items()}}.items():
            if path and path.lstrip("./") and source.endswith(path.lstrip("./")):
                return f"[{label}]({'../' * depth}{page_name}.md{'#' + anchor if anchor else ''})"
        return label

    if name.startswith("project/") or "../" in text[0]:
        # Only links that leave docs/: those within it work on GitHub and on the site alike.
        outside = (
            ""
            if name.startswith("project/")
            else r"(?:\.\./)+(?=CONTRIBUTING|CHANGELOG|deploy/|tests/|LICENSE|search_spaces/|sweeper/)"
        )
        text[0] = re.sub(rf"(?<!!)\[([^\]]*)\]\(({outside}(?!https?:|#|mailto:)[^)\s]+)\)", target, text[0])


def page(family: Family, component: Component, folder: Path) -> str:
    """Return a component's page: summary, docstring, hyperparameters, and examples with fresh output."""
    parts = [f"# {component.name}", _sentence(component.summary)]
    if component.source:
        parts.append(f"Source: {component.source}.")
    parts += family.extra(component)
    text = docstring(component.build, component.summary)
    if text:
        parts.append(text)
    if component.hyperparameters:
        parts += ["## Hyperparameters", hyperparameters(component)]
    if lanes := getattr(component, "lanes", ""):
        parts.append(f"Not trained as lanes: {lanes}.")
    parts += family.example(component, folder)
    return "\n\n".join(parts) + "\n"


def hyperparameters(component: Component) -> str:
    """Return the table of a component's hyperparameters."""
    rows = [
        f"| `{h.name}` | {_cell(h.range_text)} | "
        f"{'required' if h.required else '–' if h.default is None else f'`{h.default}`'} "
        f"| {_cell(h.reason)} | {_cell(h.source)} |"
        for h in component.hyperparameters
    ]
    return "\n".join(["| name | valid | default | why | source |", "|---|---|---|---|---|", *rows])


def docstring(build: Callable[..., object], summary: str = "") -> str:
    """Return a docstring of this project as Markdown, without `summary` and source, arguments as lists."""
    text = inspect.getdoc(build) or ""
    if not (getattr(build, "__module__", None) or "").startswith(("trainables", "sweeper")):
        return ""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        head, _, rest = block.partition("\n")
        if block.startswith("Source: ") or " ".join(block.split()).removesuffix(".") == summary:
            continue
        if head in ("Args:", "Attributes:", "Returns:", "Raises:"):
            items = re.sub(r"\n\s{8,}", " ", "\n" + rest).strip("\n")
            lines = [re.sub(r"^\s*([\w, ]+): ", r"- `\1`: ", line) for line in items.splitlines()]
            blocks.append(f"**{head[:-1]}**\n\n" + "\n".join(lines if head != "Returns:" else [items.strip()]))
        elif all(line.startswith("    ") for line in block.splitlines()):
            blocks.append("```text\n" + inspect.cleandoc(block) + "\n```")
        else:
            blocks.append(_escaped(block))
    return "\n\n".join(blocks)


def _escaped(text: str) -> str:
    """Return text with Markdown's special characters escaped outside of code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*$<>_\[\]|])", r"\\\1", p) for p in pieces)


def _cell(text: str) -> str:
    return _escaped(text.replace("\n", " ")) or "–"


def _sentence(text: str) -> str:
    text = _escaped(text)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
