"""How PyTorch's tables are checked in the test run."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """As in the recorded run: results depend on it, e.g. those of long sums."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
