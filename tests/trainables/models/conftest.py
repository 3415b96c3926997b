import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Two cores shared with other work: waiting for the second thread costs more than it gives."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
