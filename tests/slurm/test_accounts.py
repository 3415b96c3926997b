"""A real Slurm that knows who may submit to what: an account without rights is one sentence, in its own words."""

import tempfile
from pathlib import Path

import pytest

from tests.running import write_space
from tests.slurm.slurm_cluster import ACCOUNTS, missing, slurm_cluster
from tests.slurm.user import SPACE, User


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.skipif(bool(missing(ACCOUNTS)), reason=missing(ACCOUNTS) or "-")
@pytest.mark.timeout(900)
def test_an_account_without_rights_is_one_sentence(tmp_path: Path) -> None:
    refused = "sbatch: Batch job submission failed: Invalid"
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm_cluster(Path(folder), accounts=True) as slurm:
        slurm.ask("sacctmgr", "--immediate", "add", "account", "lab")
        slurm.ask("sacctmgr", "--immediate", "add", "user", "root", "account=lab")
        user = User(slurm, tmp_path)
        write_space(tmp_path, SPACE, "a")
        for asked, said in (
            ("account: other", f"error: {refused} account or account/partition combination specified\n  see `sacctmgr"),
            ("account: lab\nqos: high", f"error: {refused} qos specification\n  see `sacctmgr show associations"),
        ):
            (tmp_path / "slurm.yaml").write_text(f"workers: 2\n{asked}")
            done = user.says("cluster", "submit", "a.yaml", "--slurm")
            assert (done.returncode, done.stderr.count("\n")) == (2, 2) and said in done.stderr, done.stderr
            assert not list((tmp_path / "results").glob(".slurm/*"))
