"""From outside to results: a sweep submitted to a cluster of several addresses, with store, database and tracking.

Every part is real: Ray nodes with token authentication, MLflow's server on PostgreSQL, an S3 server. The test knows
the cluster as a user does, through the command line.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from sweeper.core.ids import trial_name
from sweeper.journal.journal import read_journal
from sweeper.journal.records import Record, Reported
from sweeper.storage.places import fetch
from tests.mlflow_stores import Server, postgresql
from tests.patience import patient
from tests.remote.services import BUCKET, RayNodes, job_list, ray_nodes, s3_server, wait_until
from tests.running import SPACE, write_space
from tests.sweeper.records import fields
from trainables.files.stores.object_store import Store

TRIALS = 6
FIRST, SECOND, THIRD = "127.0.0.3", "127.0.0.4", "127.0.0.5"


@dataclass
class Site:
    """A cluster with its services, and somebody outside who may use them."""

    nodes: RayNodes
    environment: dict[str, str]
    token: str
    tracking: str
    folder: Path

    def sweeper(self, *arguments: str, status: int = 0, **environment: str) -> str:
        """Run a command as the user outside; return both of its outputs."""
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", *arguments],
            cwd=self.folder, env={**self.environment, **environment}, capture_output=True, text=True,
            timeout=patient(200),
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, services = tmp_path_factory.mktemp("outside"), tmp_path_factory.mktemp("services")
    path = folder / "secret" / "token"
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AWS_", "MLFLOW_"))}
    made = subprocess.run(
        [sys.executable, "-m", "sweeper", "cluster", "token", str(path)], capture_output=True, text=True, env=plain
    )
    token = path.read_text()
    assert made.returncode == 0 and len(token) == 64 and token not in made.stdout + made.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)}
    with s3_server(services) as store, postgresql() as database:
        tracking = Server(database, services)
        starting = {**plain, **store, **access}
        with ray_nodes(services, starting) as nodes:
            with ThreadPoolExecutor() as pool:
                starting_up = [pool.submit(tracking.start), pool.submit(nodes.start_head)]
                for started in starting_up:
                    started.result()
            for host in (FIRST, SECOND):
                nodes.add(host)
            outside = {**plain, **store, "RAY_AUTH_TOKEN_PATH": str(path), "SWEEPER_CACHE": str(folder / "cache")}
            try:
                with pytest.MonkeyPatch.context() as patch:
                    for key, value in store.items():
                        patch.setenv(key, value)
                    yield Site(nodes, outside, token, tracking.uri, folder)
            finally:
                tracking.signal(signal.SIGKILL)


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_a_sweep_submitted_from_outside_survives_a_lost_node(site: Site) -> None:
    output, address = f"s3://{BUCKET}/team", site.nodes.dashboard
    text = SPACE.replace("max_epochs: 9, grace_epochs: 1", "max_epochs: 27, grace_epochs: 3")
    space = write_space(site.folder, text.replace("samples: 10", f"samples: {TRIALS}"), "remote")
    said = site.sweeper(
        "cluster", "submit", str(space), "--dashboard", address, "--output", output, "--tracking-uri", site.tracking
    )
    assert f"sweeper cluster logs remote --follow --dashboard {address}" in said
    follower = subprocess.Popen(
        [sys.executable, "-m", "sweeper", "cluster", "logs", "remote", "--follow", "--dashboard", address],
        env=site.environment, cwd=site.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    store = Store(f"{output}/remote")
    wait_until(lambda: _reports(store) >= 2, 180, "two reports in the store")
    listed = site.sweeper("status", "--dashboard", address)
    assert re.search(r"remote +running +\S+@\S+ .*(waiting|running)", listed), listed
    assert site.nodes.kill(FIRST) > 2
    site.nodes.add(THIRD)

    printed, _ = follower.communicate(timeout=patient(300))
    assert follower.returncode == 0, printed
    assert f"{TRIALS} trials" in printed
    _assert_results(site, output, address)
    _assert_tracked(site, store, output)
    _assert_nothing_leaked(site, store, printed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_leave_a_node_that_is_to_be_taken_away(site: Site) -> None:
    """A warned node's trial reports, checkpoints and goes on elsewhere: no epoch is lost, no retry is spent."""
    text = SPACE.replace(
        "name: asha, max_epochs: 9, grace_epochs: 1, reduction_factor: 3", "name: none, max_epochs: 600"
    )
    space = write_space(site.folder, text.replace("samples: 10", "samples: 2") + "retries: 0\n", "drained")
    address = site.nodes.dashboard
    site.sweeper(
        "cluster", "submit", str(space), "--dashboard", address, "--output", f"s3://{BUCKET}/team", "--no-mlflow"
    )
    store = Store(f"s3://{BUCKET}/team/drained")
    wait_until(lambda: _reports(store) >= 2, 300, "a report of each trial")
    site.nodes.drain(SECOND, site.token, seconds=120)
    wait_until(lambda: any(record.kind == "failed" for record in _records(store)), 120, "a trial to hand back")
    assert "to stop" in site.sweeper("stop", "drained", "--dashboard", address)
    log = site.sweeper("cluster", "logs", "drained", "--follow", "--dashboard", address, status=1)
    assert re.search("stopped: [12] of 2 trials are unfinished", log), log
    assert re.search(r"drained +incomplete ", site.sweeper("status", "drained", "--dashboard", address))
    assert "submitted drained as job drained.2" in site.sweeper("resume", "drained", "--dashboard", address)
    site.sweeper("cluster", "logs", "drained", "--follow", "--dashboard", address)
    records = _records(store)
    (handed_back,) = [record for record in records if record.kind == "failed"]
    body = fields(handed_back)
    assert (body["failure"]["kind"], body["failure"]["counts"], body["final"]) == ("preempted", False, False)
    assert body["failure"]["values"] == {"leaving": "node"}
    trial = [r for r in records if r.kind == "report" and fields(r)["configuration"] == body["configuration"]]
    before = [r for r in trial if r.sequence < handed_back.sequence][-1]
    after = next(r for r in trial if r.sequence > handed_back.sequence)
    assert 0 < fields(before)["epoch"] == body["epoch"] < 600
    assert min(row["epoch"] for row in fields(after)["epochs"]) == body["epoch"] + 1, "it went on from its last epoch"
    assert [fields(r)["status"] for r in records if r.kind == "report" and fields(r)["epoch"] == 600] == [
        "completed"
    ] * 2
    site.nodes.kill(SECOND)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_the_right_token_the_cluster_is_refused_and_no_token_is_shown(site: Site) -> None:
    nobody = {"RAY_AUTH_TOKEN_PATH": "", "HOME": str(site.folder)}
    for environment in (nobody, {"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN_PATH": "/none"}):
        said = site.sweeper("status", "--dashboard", site.nodes.dashboard, status=2, **environment)
        assert "token" in said and "Traceback" not in said and not {site.token, "0" * 64} & {*said.split()}, said


def _records(store: Store) -> list[Record]:
    """What a reader finds of the journal by now."""
    with tempfile.TemporaryDirectory() as folder:
        fetch(store, Path(folder), tables=False)
        return list(read_journal(Path(folder) / "journal"))


def _reports(store: Store) -> int:
    return sum(record.kind == "report" for record in _records(store))


def _assert_results(site: Site, output: str, address: str) -> None:
    """Every trial is complete, however one reads it: by the store's address, or by the cluster's."""
    query = "select status, count(*) n, count(distinct trial) trials from trials group by all order by all"
    for where in ([f"{output}/remote"], ["remote", "--output", output], ["remote", "--dashboard", address]):
        rows = site.sweeper("results", *where, "--sql", query, "--format", "csv").splitlines()[1:]
        counts = {status: (int(n), int(trials)) for status, n, trials in (row.split(",") for row in rows if row)}
        assert counts.keys() <= {"completed", "early_stopped"}, counts
        assert sum(n for n, _ in counts.values()) == 2 * TRIALS
        assert sum(trials for _, trials in counts.values()) == TRIALS
    query = (
        "select (select count(*) from predictions) p, (select sum(epochs) from trials) - (select count(*) from epochs)"
    )
    predictions, missing = (
        site.sweeper("results", f"{output}/remote", "--sql", query, "-f", "csv").splitlines()[1].split(",")
    )
    assert int(predictions) > 0 and float(missing) == 0
    assert "finished" in site.sweeper("status", f"{output}/remote")
    assert re.search(r"remote +finished ", site.sweeper("status", "--dashboard", address))
    assert Path(site.sweeper("report", "remote", "--dashboard", address).strip()).stat().st_size > 100_000


def _assert_tracked(site: Site, store: Store, output: str) -> None:
    """MLflow, on PostgreSQL, has one finished run a trial, each with all its epochs.

    A sweep's end waits a short while for a slow server, so what is owed to it is filled in first, as its note asks.
    """
    site.sweeper("manage", "sync", f"{output}/remote", "--tracking-uri", site.tracking)
    client = MlflowClient(site.tracking)
    experiment = client.get_experiment_by_name("remote")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    children = {run.data.tags["trial"]: run for run in runs if "trial" in run.data.tags}
    assert len(children) == TRIALS and len(runs) == TRIALS + 1
    for record in _records(store):
        if isinstance(record.body, Reported):
            run = children[trial_name(record.body.configuration)]
            steps = {point.step for point in client.get_metric_history(run.info.run_id, "val_nll")}
            assert record.body.epoch in steps


def _assert_nothing_leaked(site: Site, store: Store, printed: str) -> None:
    """The token is in no log, manifest, job list or result; the driver's folder holds nothing a trial wrote there."""
    jobs = job_list(site.nodes.dashboard, site.token)
    texts = {
        name: store.get(name) or b"" for name in store.entries() if not name.startswith(("tables/", "checkpoints/"))
    }
    assert {"manifest.json", "sweep.yaml", "sweeper.log"} <= texts.keys()
    for text in (printed, repr(jobs), *(repr(content) for content in texts.values())):
        assert site.token not in text
    assert jobs[0]["metadata"]["submitter"] in texts["manifest.json"].decode()  # type: ignore[index]
    assert not list(site.nodes.cache.rglob("*.pt"))
