"""The failure that an exception in a trial's process stands for."""

from __future__ import annotations

import errno
import pickle

import pytest
import torch

from trainables.files.stores.base import StoreError
from trainables.training.own_loop import LoopError
from trainables.worker.failures import failure_of
from trainables.worker.trial_reports import Failure, TrialEnded

CASES = [
    (ValueError("bad value\nand more"), Failure("error", message="ValueError: bad value")),
    (KeyError(), Failure("error", message="KeyError")),
    (
        ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback\nValueError: γ = -1"),
        Failure("error", message="ValueError: ValueError: γ = -1"),
    ),
    (FileNotFoundError("/mnt/preemptible/out of memory"), "error"),
    (LoopError("my loop failed"), Failure("error", message="my loop failed")),
    (MemoryError("8 GiB"), "out_of_memory"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "gpu_out_of_memory"),
    (RuntimeError("CUDA error: out of memory"), "gpu_out_of_memory"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "gpu_out_of_memory"),
    (OSError(errno.ENOSPC, "No space left on device"), "storage"),
    (OSError(errno.EROFS, "Read-only file system"), "storage"),
    (RuntimeError("unexpected pos 62336: No space left on device"), "storage"),
    (
        StoreError("the store is out of reach", "wait"),
        Failure("store", message="the store is out of reach", counts=False),
    ),
    (TrialEnded(Failure("hung", {"silent": 3.0})), Failure("hung", {"silent": 3.0})),
]


@pytest.mark.parametrize(("error", "expected"), CASES)
def test_kinds(error: Exception, expected: Failure | str) -> None:
    failure = failure_of(error)
    assert failure == expected if isinstance(expected, Failure) else failure.kind == expected
    assert failure.counts is (failure.kind not in ("storage", "store")) and "\n" not in failure.message


def test_a_known_failure_comes_through_a_pickle() -> None:
    failure = Failure("storage", {"node": "ab12"}, "full", counts=False)
    assert pickle.loads(pickle.dumps(TrialEnded(failure))).failure == failure
