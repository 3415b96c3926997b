"""The failure that an exception in a trial's process stands for, by its type."""

from __future__ import annotations

import errno

import torch

from trainables.curvature.failures import ran_out_of_memory
from trainables.files.stores.base import StoreError
from trainables.training.own_loop import LoopError
from trainables.worker.trial_reports import ERROR, GPU_OUT_OF_MEMORY, OUT_OF_MEMORY, STORAGE, STORE, Failure, TrialEnded

#: The numbers of errors caused by a lack of storage: full, over quota, or mounted read-only after its disk failed.
NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

#: What CUDA itself, cuBLAS and cuDNN say in a RuntimeError when a GPU's memory runs out; torch's allocator has a type.
_CARD_MEMORY = ("cuda out of memory", "cuda error: out of memory", "status_alloc_failed")


def failure_of(error: BaseException) -> Failure:
    """Return what an exception stands for."""
    if isinstance(error, TrialEnded):
        return error.failure
    lines = str(error).strip().splitlines()
    # A data loader's worker sends its whole traceback, which ends with the cause.
    said = (lines[-1 if "Traceback" in str(error) else 0] if lines else "").strip()
    named = f"{type(error).__name__}: {said}" if said else type(error).__name__
    if isinstance(error, StoreError):
        return Failure(STORE, message=error.message, counts=False)
    if isinstance(error, LoopError):
        return Failure(ERROR, message=said)
    if isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in _CARD_MEMORY):
        return Failure(GPU_OUT_OF_MEMORY, message=named)
    if ran_out_of_memory(error):
        return Failure(OUT_OF_MEMORY, message=named)
    # torch's writer of archives has the operating system's words, and not its number.
    if getattr(error, "errno", None) in NOT_WRITABLE or "no space left on device" in str(error).lower():
        return Failure(STORAGE, message=named, counts=False)
    return Failure(ERROR, message=named)
