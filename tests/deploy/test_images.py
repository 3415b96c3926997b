"""The Dockerfiles, linted, and the compose file, against its specification; what they name must be there."""

import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted((DEPLOY / "images").glob("*ockerfile"))
COMPOSE = DEPLOY / "compose.yaml"
HADOLINT = Path(sys.executable).with_name("hadolint")


def _lint(text: str) -> list[str]:
    done = subprocess.run([HADOLINT, "--format", "json", "-"], input=text, capture_output=True, text=True, timeout=60)
    return [f"line {fault['line']}: {fault['code']} {fault['message']}" for fault in json.loads(done.stdout or "[]")]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_linted(path: Path) -> None:
    assert _lint(path.read_text()) == []


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_pinned_small_and_not_root(path: Path) -> None:
    text = path.read_text()
    bases = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert all(re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", base) for base in bases), bases
    installs = re.findall(r"pip install (.*)", text)
    assert installs
    assert all("--no-cache-dir" in line and "-c " in line for line in installs), installs
    last_user = re.findall(r"^USER (\S+)", text, re.MULTILINE)[-1]
    assert int(last_user) >= 10_000
    assert "HEALTHCHECK" in text


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_an_image_copies_is_there_and_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    taken = {line[1:] for line in ignored if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*)", path.read_text(), re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(source == name or source.startswith(name + "/") for name in taken), f"{source} is ignored"


def _specification() -> Any:
    import check_jsonschema

    folder = Path(check_jsonschema.__file__).parent / "builtin_schemas/vendor"
    return json.loads((folder / "compose-spec.json").read_text())


def _compose_faults(document: Any) -> list[str]:
    """Return what is wrong: the specification's schema, then names that lead nowhere."""
    found = [error.message for error in jsonschema.Draft202012Validator(_specification()).iter_errors(document)]
    if found:
        return found
    for name, service in document["services"].items():
        needed = set(service.get("depends_on", {})) | {link.partition(":")[0] for link in service.get("links", [])}
        found += [f"{name}: there is no service {other}" for other in needed - set(document["services"])]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            known = source in document["volumes"] if not source.startswith(".") else (DEPLOY / source).exists()
            found += [] if known else [f"{name}: there is no {source}"]
        if "build" in service:
            file = DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]
            found += [] if file.exists() else [f"{name}: there is no {file.name}"]
        for other, wait in service.get("depends_on", {}).items():
            healthy = wait["condition"] != "service_healthy" or "healthcheck" in document["services"].get(other, {})
            image = document["services"].get(other, {}).get("image", "")
            found += [] if healthy or "mlflow" in image else [f"{name} waits for {other}, which tells no health"]
    return found


def test_compose_is_valid() -> None:
    assert _compose_faults(yaml.safe_load(COMPOSE.read_text())) == []


def test_compose_is_open_to_this_machine_alone_and_holds_no_password() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    for name, service in document["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        for key, value in service.get("environment", {}).items():
            secret = any(word in key for word in ("PASSWORD", "TOKEN", "SECRET", "ACCESS_KEY"))
            assert not secret or value.startswith("${"), f"{name}: {key}"
    example = (DEPLOY / "compose.env.example").read_text()
    asked = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text()))
    given = re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)
    assert {name for name, _ in given} == asked
    assert all(value == "" for _, value in given)


def test_mlflow_starts_from_the_environment_and_says_what_is_missing() -> None:
    script = DEPLOY / "images/mlflow_server.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, env={})
    assert done.returncode == 1
    assert done.stderr.strip() == ("not set: POSTGRES_HOST, POSTGRES_DB, POSTGRES_USER, POSTGRES_PASSWORD, ARTIFACTS")


def test_health_is_asked_of_the_node_and_of_the_head() -> None:
    asked: list[tuple[str, str | None]] = []
    sick: set[str] = set()

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            self.send_response(503 if self.path in sick else 200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = str(server.server_address[1])
        environment = {"RAY_AGENT_PORT": port, "RAY_DASHBOARD_PORT": port, "RAY_AUTH_TOKEN": "token"}

        def healthy(*options: str) -> int:
            command = [sys.executable, DEPLOY / "images/healthy.py", *options]
            return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode

        assert (healthy(), healthy("--head")) == (0, 0)
        assert [path for path, _ in asked] == [
            "/api/local_raylet_healthz",
            "/api/local_raylet_healthz",
            "/api/gcs_healthz",
        ]
        assert {token for _, token in asked} == {"Bearer token"}
        sick.add("/api/gcs_healthz")
        assert (healthy(), healthy("--head")) == (0, 1)
        server.shutdown()
    assert healthy() == 1, "nobody answers"
