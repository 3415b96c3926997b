"""Dashboard and alerts ask only for what a sweep publishes, in PromQL that parses."""

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from sweeper.reporting.snapshot import METRICS, PREFIX

MONITORING = Path(__file__).parents[2] / "deploy/monitoring"
RULES = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((MONITORING / "dashboards/sweeps.json").read_text())
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
STATUSES = {"waiting", "running", "completed", "early_stopped", "failed", "interrupted"}


def _selectors(expression: str) -> list[Any]:
    """Return the metric selectors of an expression. Raises ValueError where it does not parse."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def faults(expression: str) -> list[str]:
    """Return what a query asks for that nobody publishes: a metric, a label, a status."""
    try:
        selectors = _selectors(expression)
    except ValueError as error:
        return [f"{expression}: {error}"]
    found = []
    for selector in selectors:
        name = selector.name
        if name in RECORDED:
            labels: set[str] = {"sweep"}
        elif name is not None and name.removeprefix(PREFIX) in METRICS and name.startswith(PREFIX):
            labels = set(METRICS[name.removeprefix(PREFIX)][1])
        else:
            found.append(f"{name} is not published")
            continue
        for matcher in selector.matchers.matchers:
            if matcher.name not in labels:
                found.append(f"{name} has no label {matcher.name}")
            if matcher.name == "status" and not set(matcher.value.split("|")) <= STATUSES:
                found.append(f"{matcher.value} is no status")
    grouped = {label.strip() for by in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in by.split(",")}
    found += [f"no metric has the label {label}" for label in grouped - {x for _, own in METRICS.values() for x in own}]
    return found


def _queries() -> list[tuple[str, str]]:
    """Return every query: what it is of, and its PromQL with the dashboard's variable filled in."""
    rules = [(str(rule.get("record") or rule.get("alert")), rule["expr"]) for rule in RULES]
    panels = [(p["title"], t["expr"].replace("$sweep", ".*")) for p in DASHBOARD["panels"] for t in p["targets"]]
    variables = [
        (v["name"], re.match(r"label_values\((.*), \w+\)", v["query"]["query"])[1])  # type: ignore[index]
        for v in DASHBOARD["templating"]["list"]
    ]
    return rules + panels + variables


@pytest.mark.parametrize(("name", "expression"), _queries(), ids=[name for name, _ in _queries()])
def test_queries_ask_for_what_is_published(name: str, expression: str) -> None:
    assert faults(expression) == []


def test_every_metric_is_shown_or_alerted_on() -> None:
    asked = {s.name for _, expression in _queries() for s in _selectors(expression)}
    assert {PREFIX + name for name in METRICS} <= asked


def test_alerts_name_the_sweep_and_what_to_do() -> None:
    for rule in (rule for rule in RULES if "alert" in rule):
        text = rule["annotations"]["summary"] + rule["annotations"]["description"]
        assert "{{ $labels.sweep }}" in text
        assert "sweeper " in rule["annotations"]["description"]
