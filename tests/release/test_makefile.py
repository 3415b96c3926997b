"""The Makefile is one that make reads, and every benchmark that it names exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_target_can_be_made() -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    targets = sorted(set(re.findall(r"^([a-z][a-z-]+):", text, re.MULTILINE)))
    assert {"sweep", "test", "check"} <= set(targets)
    shown = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr


def test_every_benchmark_is_a_module() -> None:
    text = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    (named,) = re.findall(r"^BENCHES := (.*)$", text, re.MULTILINE)
    modules = [f"tests.benchmarks.bench_{name.replace('-', '_')}" for name in named.split()]
    assert len(modules) > 10
    assert not [name for name in modules if importlib.util.find_spec(name) is None]
