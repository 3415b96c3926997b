"""Examples for the reference's pages: code that is run when the page is written, with its output, and a picture."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
import yaml
from matplotlib import pyplot

from sweeper.space.loading import load_spec
from trainables.losses import build_loss
from trainables.metrics import METRICS
from trainables.metrics.base import Metric, softmax64
from trainables.models.base import build_model
from trainables.registry import Component

DATA = """import numpy as np
from trainables.metrics.base import softmax64

random = np.random.RandomState(0)
logits = random.normal(size=(2000, 5)) * 2   # targets are drawn from softmax(logits)
probabilities = softmax64(logits)
targets = np.array([random.choice(5, p=p) for p in probabilities])
"""
"""Predictions whose posterior is known: `softmax(logits)` is calibrated, `softmax(2 · logits)` is overconfident."""


def loss(component: Component, folder: Path) -> list[str]:
    """Show a loss in a search space, its values for three samples, and its curve over p_y."""
    parts = ["## In a search space", space(f"loss: {{name: {component.name}}}", "space")]
    if component.tags & {"needs_model"}:  # its value needs a network and cannot be shown for logits alone
        return parts
    parts += [
        "## Example",
        ran(
            "import torch\nfrom trainables.losses import build_loss\n\n"
            f'loss = build_loss("{component.name}")\n'
            "logits = torch.tensor([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0], [0.0, 0.2, 0.1]])\n"
            "print(loss(logits, torch.tensor([0, 0, 2])))"
        ),
    ]
    if not component.tags & {"batch_coupled"}:
        parts.append(
            picture(
                folder / f"{component.name}.svg",
                lambda axes: _curves(component, axes),
                "Loss of one sample of two classes over the probability of its class.",
            )
        )
    return parts


def _curves(component: Component, axes: pyplot.Axes) -> None:
    p = torch.linspace(0.005, 0.995, 200, dtype=torch.float64)
    logits = torch.stack((torch.logit(p), torch.zeros_like(p)), 1)
    targets = torch.zeros(len(p), dtype=torch.long)
    cases = [{"gamma": value} for value in (1.0, 2.0, 5.0) if not component.faults({"gamma": value})] or [{}]
    for options in cases:
        values = build_loss(component.name, **options).per_sample(logits, targets)
        axes.plot(p, values.detach(), label=f"γ = {options['gamma']:g}" if options else component.name)
    if component.name != "cross_entropy":
        axes.plot(p, -p.log(), color="0.6", linestyle="--", label="cross-entropy")
    axes.set(xlabel="probability of the true class", ylabel="loss", ylim=(min(0.0, axes.get_ylim()[0]), 5))
    axes.legend(frameon=False)


def metric(component: Component, folder: Path) -> list[str]:
    """Show a metric's values for calibrated and for overconfident predictions."""
    assert isinstance(component, Metric)
    if component.needs:
        return [f"A sweep computes it from {component.needs}."]
    call = f'measure = METRICS["{component.name}"].build\n'
    parts = [
        "## Example",
        ran(
            f"{DATA}\nfrom trainables.metrics import METRICS\n\n{call}"
            'print(f"calibrated      {measure(probabilities, targets):.4f}")\n'
            'print(f"overconfident   {measure(softmax64(2 * logits), targets):.4f}")'
        ),
        picture(
            folder / f"{component.name}.svg",
            lambda axes: _over_temperature(component, axes),
            "Over the temperature of 2,000 predictions, calibrated at 1 and overconfident below it.",
        ),
    ]
    if not component.always:
        parts[:0] = ["## In a search space", space(f"metrics: [{component.name}]", "evaluation")]
    return parts


def _over_temperature(component: Component, axes: pyplot.Axes) -> None:
    known: dict[str, np.ndarray] = {}
    exec(DATA, known)
    temperatures = np.geomspace(0.33, 3, 15)
    measure = METRICS[component.name].build
    axes.plot(
        temperatures, [measure(softmax64(known["logits"] / t), known["targets"]) for t in temperatures], marker="."
    )
    axes.axvline(1, color="0.6", linestyle="--")
    axes.set(xscale="log", xlabel="temperature", ylabel=component.name)
    axes.set_xticks([0.33, 0.5, 1, 2, 3], ["0.33", "0.5", "1", "2", "3"], minor=False)
    axes.minorticks_off()


def posthoc(component: Component, folder: Path) -> list[str]:
    """Fit a method to overconfident predictions and show the change of ECE."""
    parts = ["## In a search space", space(f"posthoc: [{component.name}]", "evaluation")]
    options = ", gamma=2.0" if component.name in ("focal_map",) else ""
    data = f"{DATA}logits = 2 * logits                          # overconfident now\n"
    if component.name == "ensemble_temperature":
        return parts
    return [
        *parts,
        "## Example",
        ran(
            f"{data}\nfrom trainables.metrics import METRICS\nfrom trainables.posthoc.base import fit\n\n"
            f'calibrator = fit("{component.name}", logits[:1000], targets[:1000]{options})\n'
            'ece = METRICS["ece"].build\n'
            "print(calibrator)\n"
            'print(f"ECE before {ece(softmax64(logits[1000:]), targets[1000:]):.3f}, "\n'
            '      f"after {ece(calibrator(logits[1000:]), targets[1000:]):.3f}")'
        ),
    ]


def scheduler(component: Component, folder: Path) -> list[str]:
    """Show a scheduler in a search space."""
    settings = ", ".join(f"{h.name}: 27" for h in component.hyperparameters if h.required)
    text = f"{{name: {component.name}{', ' if settings else ''}{settings}}}"
    return ["## In a search space", space(f"scheduler: {text}", "")]


def searcher(component: Component, folder: Path) -> list[str]:
    """Show a searcher in a search space."""
    return ["## In a search space", space(f"searcher: {component.name}", "")]


def statistic(component: Component, folder: Path) -> list[str]:
    """Measure a statistic of a small network."""
    group = getattr(component, "group", "")
    asked, given = (f", statistics: [{group}]", f', statistics=("{group}",)') if group else ("", "")
    return [
        "## In a search space",
        space(f"curvature: {{samples: 128, lanczos_steps: 6, trace_probes: 4{asked}}}", "evaluation"),
        "## Example",
        ran(
            "import torch\nfrom trainables.curvature.measure import measure_curvature\n"
            "from trainables.curvature.statistics.base import CurvatureSettings\n\n"
            "torch.manual_seed(0)\nlayers = torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)\n"
            "network = torch.nn.Sequential(*layers)\n"
            "inputs, targets = torch.randn(64, 4), torch.randint(3, (64,))\n"
            f"settings = CurvatureSettings(samples=64, lanczos_steps=10, trace_probes=32{given})\n"
            'losses = {"cross_entropy": torch.nn.functional.cross_entropy}\n'
            "measured = measure_curvature(network, inputs, targets, losses, settings=settings, seed=0)\n"
            f'print(measured["cross_entropy"]["{component.name}"])'
        ),
    ]


def network(component: Component, folder: Path) -> list[str]:
    """Show a network in a search space, and its size if it takes inputs of CIFAR's shape."""
    parts = [
        "## In a search space",
        space(
            f"architecture: {{name: {component.name}}}",
            "space",
            check=not any(h.required for h in component.hyperparameters),
        ),
    ]
    if "text" not in component.tags and not any(h.required for h in component.hyperparameters):
        # A network that does not take CIFAR's shape has no count; on the meta device no memory is used.
        with contextlib.suppress(Exception), torch.device("meta"):
            built = build_model(component.name, (3, 32, 32), 10)
            count = sum(p.numel() for p in built.parameters())
            parts.insert(0, f"{count:,} parameters for images of 3×32×32 and 10 classes.")
    return parts


def dataset(component: Component, folder: Path) -> list[str]:
    """Show a data set in a search space, and its documented size."""
    parts = ["## In a search space", f"```yaml\ndataset: {{name: {component.name}}}\n```"]
    size = (
        component.size({h.name: h.default for h in component.hyperparameters})
        if component.size and not any(h.required for h in component.hyperparameters)
        else None
    )
    if size is not None:
        shape = "×".join(map(str, size.input_shape))
        parts.insert(
            0,
            f"{size.classes} classes; inputs {shape}; "
            f"{size.train:,} training, {size.val:,} validation, {size.test:,} test samples.",
        )
    return parts


def optimizer(component: Component, folder: Path) -> list[str]:
    """Show an optimiser in a search space."""
    return ["## In a search space", space(f"optimizer: {{name: {component.name}}}", "space")]


def space(line: str, inside: str, *, check: bool = True) -> str:
    """Return a YAML block with `line`, after checking a whole search space that contains it.

    Raises InvalidSearchSpace.
    """
    text = f"{inside}:\n  {line}" if inside else line
    if check:
        load_spec(yaml.safe_load(_whole(line, inside)))
    return f"```yaml\n{text}\n```"


def _whole(line: str, inside: str) -> str:
    space_lines = {
        "loss": "loss: cross_entropy",
        "architecture": "architecture: mlp",
        "optimizer": "optimizer: {name: sgd, lr: 0.1}",
    }
    lines = {
        "dataset": "dataset: digits",
        "scheduler": "scheduler: {name: asha, max_epochs: 27}",
        "samples": "samples: 60",
    }
    if inside == "space":
        space_lines[line.partition(":")[0]] = line
    elif inside:
        lines[inside] = f"{inside}: {{{line}}}"
    else:
        lines[line.partition(":")[0]] = line
    if line.startswith("searcher"):
        grid = line == "searcher: grid"
        domain = "{grid: [0.01, 0.1]}" if grid else "{loguniform: [0.01, 0.1]}"
        space_lines["optimizer"] = f"optimizer: {{name: sgd, lr: {domain}}}"
        if grid:
            lines.pop("samples")
    return "\n".join([*lines.values(), "space:", *(f"  {line}" for line in space_lines.values())])


def ran(code: str) -> str:
    """Run code; return it with its output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "<example>", "exec"), {"__name__": "example"})
    return f"```python\n{code}\n```\n\n```text\n{output.getvalue().rstrip()}\n```"


def picture(path: Path, draw: Callable[[pyplot.Axes], None], caption: str) -> str:
    """Draw a figure into `path` unless the file exists; return the Markdown that shows it."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        figure, axes = pyplot.subplots(figsize=(5.5, 3.2), layout="constrained")
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})  # equal bytes on every build
        pyplot.close(figure)
    return f":::{{figure}} {path.name}\n{caption}\n:::"
