"""A size that only literals decide is known when the graph is compiled; one that an input decides is refused."""

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from optimum_neuron_torch.emulator.compiler.errors import LoweringError


def _planned(x: torch.Tensor) -> torch.Tensor:
    """As BigBird plans its blocks: NumPy, which Dynamo traces as tensors."""
    counts = np.array([1, 2, 3])
    plan = np.zeros((4, counts.sum()), dtype=np.int32)
    index = torch.from_numpy(plan).to(x.device)
    return x[index + 1] * counts[1].item()


def _counted(x: torch.Tensor) -> torch.Tensor:
    count = x.count_nonzero().item()
    torch._check(count >= 1)
    torch._check(count <= 8)
    return torch.full((count, 3), 2.0, device=x.device).sum()


@pytest.mark.parametrize("executor", ["aten", "xla"])
def test_a_size_from_literals_is_known(executor):
    x = torch.randn(5, 2)
    compiled = torch.compile(_planned, backend="neuron", fullgraph=True, dynamic=False, options={"executor": executor})
    result = compiled(x.to("neuron"))
    assert result.shape == (4, 6, 2)
    torch.testing.assert_close(result.cpu(), _planned(x))


def test_a_size_from_an_input_is_refused():
    compiled = torch.compile(_counted, backend="neuron", fullgraph=True, dynamic=False, options={"executor": "aten"})
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(BackendCompilerFailed) as caught:
        compiled(torch.ones(5, device="neuron"))
    error = caught.value.inner_exception
    assert isinstance(error, LoweringError)
    assert error.op == "aten._local_scalar_dense.default"
    assert "test_known_scalars.py" in error.source
    assert "depends on values" in str(error)
