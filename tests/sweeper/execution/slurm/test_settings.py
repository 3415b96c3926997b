"""What a site asks of Slurm: found, read whole, and every fault of it said at once."""

from pathlib import Path

import pytest

from sweeper.core.errors import SweeperError
from sweeper.execution.slurm.settings import read_settings, seconds_of


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("1:30:00", 5400), ("2-12", 216_000), ("1-01:30", 91_800), ("1-01:30:15", 91_815)],
)
def test_a_time_is_read_as_sbatch_reads_it(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds  # the formats of sbatch(1), --time


def test_the_file_is_found_beside_the_space_then_with_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user, beside = tmp_path / "config" / "sweeper" / "slurm.yaml", tmp_path / "slurm.yaml"
    with pytest.raises(
        SweeperError, match=r"no slurm\.yaml: looked for .*slurm\.yaml and .*config/sweeper/slurm\.yaml"
    ):
        read_settings(tmp_path / "space.yaml", None)
    user.parent.mkdir(parents=True)
    user.write_text("workers: 40")
    assert read_settings(tmp_path / "space.yaml", None)[0].workers == 40
    beside.write_text("nodes: 4")
    assert read_settings(tmp_path / "space.yaml", None) == (read_settings(beside, beside)[0], beside)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers: 2\nparttion: gpu", "parttion: unknown key; did you mean 'partition'?"),
        ("workers: 2\nhead: {cpu: 3}", "head.cpu: unknown key; did you mean 'cpus'?"),
        ("workers: 0", "workers: Input should be greater than or equal to 1"),
        ("workers: 2\ntime: an hour", "time: must be a time as Slurm writes it"),
        ("workers: 2\npartition: \"gpu\\n#SBATCH --uid=0\"", "partition: must be one line of text"),
        ("gpus: 1", "give either nodes: N (one allocation) or workers: N"),
        ("- 1", "must be a mapping of keys to values"),
        ("workers: [", "cannot be read"),
    ],
)  # fmt: skip
def test_a_fault_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text(text)
    with pytest.raises(SweeperError) as error:
        read_settings(tmp_path / "space.yaml", None)
    assert said in error.value.message and str(file) in error.value.message


def test_all_faults_are_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "slurm.yaml").write_text("workers: 0\ncpus: 0\nqoss: x")
    with pytest.raises(SweeperError) as error:
        read_settings(tmp_path / "space.yaml", None)
    assert all(word in error.value.message for word in ("workers:", "cpus:", "qoss: unknown key"))


def test_a_time_needs_no_quotes(tmp_path: Path) -> None:
    (tmp_path / "slurm.yaml").write_text("workers: 2\ntime: 1:00:00\nhead: {time: 2-00:00:00}")
    settings = read_settings(tmp_path / "space.yaml", None)[0]
    assert (settings.time, settings.head.time) == ("1:00:00", "2-00:00:00")
