"""The first answer counts for all processes of a sweep."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from tests.patience import patient
from trainables.files.measured_once import kept_choice


def test_an_answer_is_measured_once_for_each_key(tmp_path):
    measured = []

    def measure(answer):
        measured.append(answer)
        return answer

    folder = tmp_path / "packing"
    assert kept_choice(folder, json.dumps(["mlp"]), lambda: measure("fused")) == "fused"
    assert kept_choice(folder, json.dumps(["mlp"]), lambda: measure("sequential")) == "fused"
    assert kept_choice(folder, json.dumps(["resnet8"]), lambda: measure("sequential")) == "sequential"
    assert measured == ["fused", "sequential"]
    assert {json.loads(file.read_text())["answer"] for file in folder.iterdir()} == {"fused", "sequential"}


def test_processes_that_measure_at_once_take_the_same_answer(tmp_path):
    together = Barrier(8)

    def measure(number):
        together.wait(patient(10))
        return f"answer {number}"

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(kept_choice, tmp_path, "[1]", lambda n=n: measure(n)) for n in range(8)]
        answers = {job.result() for job in jobs}
    assert len(answers) == 1 and len([*tmp_path.iterdir()]) == 1


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"other": 1}'])
def test_a_broken_file_is_measured_again(tmp_path, broken):
    kept_choice(tmp_path, "[1]", lambda: "fused")
    (file,) = tmp_path.iterdir()
    file.write_text(broken)
    assert kept_choice(tmp_path, "[1]", lambda: "sequential") == "sequential"
    assert kept_choice(tmp_path, "[1]", lambda: pytest.fail("measured")) == "sequential"


def test_a_folder_that_cannot_be_made_leaves_each_process_its_own(tmp_path):
    (tmp_path / "file").write_text("")
    assert kept_choice(tmp_path / "file" / "below", "[1]", lambda: "fused") == "fused"
