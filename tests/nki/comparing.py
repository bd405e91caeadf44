"""An op computed with torch and by its kernels, on the device, beside what its definition gives in float64."""

import torch
from torch._dynamo.testing import EagerAndRecordGraphs

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime


# Of the largest magnitude. What is rounded on the way, in forward and backward passes, is seen in 16 bits.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def random(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def with_gradients(function, tensors, device="cpu"):
    """What `function` gives for copies of `tensors`, and their gradients for a fixed gradient of each result."""
    copies = [
        tensor.to(device).detach().clone().requires_grad_(tensor.is_floating_point())
        if isinstance(tensor, torch.Tensor)
        else tensor
        for tensor in tensors
    ]
    results = function(*copies)
    results = results if isinstance(results, tuple) else (results,)
    total = sum((result.float() * _pattern(result)).sum() for result in results)
    total.backward()
    gradients = [copy.grad for copy in copies if isinstance(copy, torch.Tensor) and copy.requires_grad]
    return [tensor.detach().cpu() for tensor in (*results, *gradients)]


def _pattern(tensor):
    """Numbers that differ from one element to the next."""
    numbers = torch.arange(tensor.numel(), device=tensor.device).remainder(7) - 2.5
    return (numbers / tensor.numel()).reshape(tensor.shape)


def compare(function, definition, tensors, kernels, tolerance=None):
    """`function` on the device, with torch and simulated, is what `definition` gives in float64; so are gradients.

    `kernels` are the names of those that run.
    """
    doubles = [
        tensor.double() if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor
        for tensor in tensors
    ]
    expected = with_gradients(definition, doubles)
    for is_on in (False, True):
        with ont.nki.simulation() as runs, runtime.simulating(is_on):
            found = with_gradients(function, tensors, "neuron")
        assert [run.kernel for run in runs] == (kernels if is_on else []), [run.kernel for run in runs]
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            limit = TOLERANCES[one.dtype] if tolerance is None else tolerance
            largest = other.abs().max().clamp(min=1e-30)
            assert ((one.double() - other).abs().max() / largest).item() <= limit


def compare_compiled(function, tensors, operator, kernels):
    """Compiled for the device, `function` is one node, which the graph names, and gives what it gives eagerly.

    Of `kernels`, the first runs in the forward pass, and all with gradients.
    """
    tensors = [tensor.to("neuron") if isinstance(tensor, torch.Tensor) else tensor for tensor in tensors]
    for is_on, suffix in ((False, ""), (True, "_kernel")):
        recorded = EagerAndRecordGraphs()
        with ont.nki.simulation() as runs, runtime.simulating(is_on):
            torch._dynamo.reset()
            torch.compile(function, backend=recorded, fullgraph=True)(*tensors)
            called = [str(node.target) for node in recorded.graphs[0].graph.nodes if node.op == "call_function"]
            assert [name for name in called if "getitem" not in name] == [
                f"optimum_neuron_torch.{operator}{suffix}.default"
            ]
            compiled = torch.compile(function, backend="neuron", fullgraph=True)
            with_gradients(compiled, tensors, "neuron")
            del runs[:]  # those of tracing as well
            found = with_gradients(compiled, tensors, "neuron")
            assert [run.kernel for run in runs] == (kernels if is_on else [])
            for one, other in zip(found, with_gradients(function, tensors, "neuron"), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
