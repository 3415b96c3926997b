"""Ray's own autoscaler scales from no worker to several because a sweep's trials wait, and back, with both versions."""

from __future__ import annotations

import csv
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from sweeper.core.ids import SweepPaths
from sweeper.reporting.figures.base import Figure, Panel, colour, mark, quantity, verticals
from sweeper.reporting.html import write_figure
from sweeper.reporting.snapshot import METRICS, PREFIX
from sweeper.results import load
from tests.faults.autoscaling import autoscaled
from tests.patience import patient
from tests.running import command, write_space

MOST_WORKERS = 2

LABELS = {label for _, labels in METRICS.values() for label in labels}

SPACE = """
dataset: {name: digits}
objective: {metric: val_nll, mode: min}
scheduler: {name: asha, max_epochs: 3, grace_epochs: 1, reduction_factor: 3}
samples: 5
space:
  loss: {name: focal, gamma: {uniform: [0.5, 5]}}
  architecture: {name: mlp, width: 64}
  optimizer: {name: sgd, lr: {loguniform: [0.01, 0.3]}, momentum: 0.9, batch_size: 64, schedule: cosine}
resources: {cpu: 1, gpu: 0}
evaluation: {bins: 15, posthoc: [temperature], curvature: false}
"""


def check_a_sweep_scales(version: int, folder: Path) -> None:
    """Run a sweep on a cluster without workers; hold nodes and pending trials against what must have happened."""
    with autoscaled(version, folder, MOST_WORKERS) as cluster, Scraper(cluster.metrics) as scraper:
        done = subprocess.run(
            command("run", write_space(folder, SPACE), "--ray", cluster.address, "--no-mlflow"),
            cwd=folder,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=patient(400),
        )
        ended = cluster.timeline()[-1]["seconds"]
        deadline = time.monotonic() + patient(120)
        while cluster.timeline()[-1]["workers"] and time.monotonic() < deadline:
            time.sleep(0.5)
        timeline = cluster.timeline()
    plot = write_timeline(timeline, ended, folder, f"autoscaler version {version}")
    print(f"\nnodes and pending trials over time: {plot}, {plot.with_suffix('.csv')}\n{as_text(timeline, ended)}")
    assert done.returncode == 0, done.stdout + done.stderr
    trials = load(SweepPaths(folder / "results" / "small").root).rows("SELECT DISTINCT trial, status FROM trials")
    assert len(trials) == 5
    assert {row["status"] for row in trials} <= {"completed", "early_stopped"}
    workers, pending = ([int(sample[key]) for sample in timeline] for key in ("workers", "pending"))
    assert workers[0] == 0
    assert max(workers) == MOST_WORKERS, "all that wait are seen, so every node that may be there is started"
    assert max(pending[: workers.index(MOST_WORKERS)]) > MOST_WORKERS, "because trials wait"
    assert workers[-1] == 0, f"back to none: {workers}"
    assert "waiting for nodes: a trial needs 1 CPU, the cluster has 0 CPU" in done.stderr
    assert "2 trials at once on 2 nodes" in done.stderr
    check_what_was_scraped(scraper.families)


class Scraper:
    """Does what Prometheus does: reads the head's metrics endpoint now and then, and keeps the sweep's values."""

    def __init__(self, url: str) -> None:
        self._url, self._stop = url, threading.Event()
        self._thread = threading.Thread(target=self._scrape, daemon=True)
        self.families: dict[str, dict[tuple[tuple[str, str], ...], list[float]]] = {}

    def __enter__(self) -> Scraper:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _scrape(self) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        while not self._stop.wait(1.0):
            try:
                with urllib.request.urlopen(self._url, timeout=5) as reply:
                    text = reply.read().decode()
            except OSError:
                continue  # the endpoint opens some seconds after the head, and goes before it
            for family in text_string_to_metric_families(text):
                if family.name.startswith(PREFIX + "sweeper_"):
                    for sample in family.samples:
                        labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k in LABELS))
                        self.families.setdefault(family.name, {}).setdefault(labels, []).append(sample.value)


def check_what_was_scraped(families: Mapping[str, Mapping[tuple[tuple[str, str], ...], Sequence[float]]]) -> None:
    """Hold the endpoint's answers against what the sweep did."""
    assert {name.removeprefix(PREFIX) for name in families} == set(METRICS)
    for name, series in families.items():
        wanted = {*METRICS[name.removeprefix(PREFIX)][1]}
        assert all({key for key, _ in labels} == wanted for labels in series), name
        assert all(("sweep", "small") in labels for labels in series), name
    trials = families[PREFIX + "sweeper_trials"]
    at_once = zip(*(values for _, values in sorted(trials.items())), strict=False)
    assert all(sum(moment) == 5 for moment in at_once), trials
    assert max(families[PREFIX + "sweeper_running"][("sweep", "small"),]) == 1


def write_timeline(timeline: Sequence[Mapping[str, float]], ended: float, folder: Path, title: str) -> Path:
    """Write nodes and pending trials over time as a page that opens offline, and as CSV beside it."""
    counts = {"workers": "worker nodes", "pending": "trials waiting for a node"}
    rows = [{"x": s["seconds"], "y": s[key], "name": name} for key, name in counts.items() for s in timeline]
    lines = mark("line", rows, look={"interpolate": "step-after"}, color=colour("name", [*counts.values()]))
    panel = Panel(title, [*verticals({ended: "sweep ended"}), lines], quantity("x", "seconds"), quantity("y", "count"))
    path = folder / "autoscaling.html"
    write_figure(Figure(title, "", [], [panel], legend=[*counts.values()]), path)
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["seconds", "workers", "pending"])
        writer.writeheader()
        writer.writerows(timeline)
    return path


def as_text(timeline: Sequence[Mapping[str, float]], ended: float) -> str:
    """Return the timeline as lines, one for each moment at which something changed."""
    lines, before = ["seconds  workers  waiting trials"], None
    for sample in timeline:
        now = (sample["workers"], sample["pending"])
        if now != before:
            bars = "#" * int(sample["workers"]) + "." * int(sample["pending"])
            lines.append(f"{sample['seconds']:7.1f}  {sample['workers']:7.0f}  {sample['pending']:14.0f}  {bars}")
            before = now
    return "\n".join([*lines, f"the sweep ended at {ended:.1f} s"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_second_autoscaler_follows_a_sweep(tmp_path: Path) -> None:
    check_a_sweep_scales(2, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_autoscaler_follows_a_sweep(tmp_path: Path) -> None:
    check_a_sweep_scales(1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_come_for_lanes_not_for_trials(tmp_path: Path) -> None:
    space = SPACE.replace("samples: 5", "samples: 16\nreplicates: {count: 1, packing: lanes, lanes: 8}")
    with autoscaled(2, tmp_path, 6) as cluster:
        done = subprocess.run(
            command("run", write_space(tmp_path, space), "--ray", cluster.address, "--no-mlflow"),
            cwd=tmp_path,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=patient(400),
        )
        timeline = cluster.timeline()
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(int(sample["workers"]) for sample in timeline) == 2, timeline


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trial_that_no_node_type_holds_ends_the_sweep_in_words(tmp_path: Path) -> None:
    with autoscaled(2, tmp_path, MOST_WORKERS) as cluster:
        arguments = ("--ray", cluster.address, "--no-mlflow", "--set", "resources.cpu=4")
        done = subprocess.run(
            command("run", write_space(tmp_path, SPACE), *arguments),
            cwd=tmp_path,
            env=cluster.environment,
            capture_output=True,
            text=True,
            timeout=patient(400),
        )
        timeline = cluster.timeline()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "the autoscaler has no node type for 4 CPU" in done.stderr
    assert "stopped: no node type of the cluster is large enough for a trial, which needs 4 CPU" in done.stdout
    assert "sweeper resume small" in done.stdout
    assert {sample["workers"] for sample in timeline} == {0}, "nothing was started that could not help"
