"""Setup of a process before training: threads, the user's own code, arithmetic, and how much of a GPU it may take."""

from __future__ import annotations

import torch

from trainables.extensions.code import take_up
from trainables.registry import permit_only
from trainables.training.acceleration import card_fault, prepare_arithmetic
from trainables.worker.trial_settings import TrialSettings

CONTEXT_BYTES = 512 * 2**20
"""What a process uses of a GPU in addition to torch's allocator: CUDA's context and its libraries' handles.
Our allowance; on a GPU the actual value is `nvidia-smi`'s figure less `torch.cuda.max_memory_reserved()`."""


def prepare_process(settings: TrialSettings) -> None:
    """Give this process the trial's threads and the user's own code; what a reused one may have changed is set again.

    Shares of a GPU isolate nothing: without a cap one trial's appetite would make its neighbours run out. The cap is
    on what torch allocates, so what CUDA takes next to it comes off the share.

    Raises:
        ValueError: this GPU cannot compute as the settings say.
    """
    if settings.extensions is not None:
        take_up(settings.extensions, settings.own_names or ())
    if settings.own_names is not None:
        permit_only(settings.own_names)
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(torch.float32)
    prepare_arithmetic(settings.training, settings.device)
    if settings.device == "cuda":
        fault = card_fault(settings.training)
        if fault is not None:
            raise ValueError(fault)
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
        torch.cuda.set_per_process_memory_fraction(memory_cap(settings.gpu, total))


def memory_cap(share: float, total_bytes: int) -> float:
    """Return the fraction of a GPU's memory that torch may allocate in a process whose share of the GPU is `share`.

    0 and whole cards know no cap. A share so small that CUDA's context would be most of it keeps half for torch.
    """
    if not 0 < share < 1:
        return 1.0
    return max(share / 2, share - CONTEXT_BYTES / total_bytes)
