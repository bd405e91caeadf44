"""NKI kernels inside compiled graphs: one node each, with results from trace mode, run by the simulator."""

import pytest
import torch

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def scaled(x, factor=2.0, dtype=None):
    """`x * factor`, as `dtype`."""
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=tile, src=x)
    rounded = nl.ndarray(x.shape, dtype or x.dtype)
    nisa.tensor_scalar(dst=rounded, data=tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, rounded.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=rounded)
    return out


@nki.jit
def accumulate(total, x, log):
    """`total += x`, in place; both come back, with what `x` was, under names."""
    left, right = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(dst=left, src=total)
    nisa.dma_copy(dst=right, src=x)
    before = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=before, src=left)
    nisa.tensor_tensor(dst=left, data1=left, data2=right, op=nl.add)
    nisa.dma_copy(dst=total, src=left)
    nisa.dma_copy(dst=log[0], src=left)
    return {"total": total, "more": (before, x, 3)}


def compiled(function, executor="aten", **options):
    return torch.compile(function, backend="neuron", fullgraph=True, options={"executor": executor, **options})


def neuron(*tensors):
    return [tensor.to("neuron") for tensor in tensors]


@pytest.mark.parametrize("executor", ["aten", "inductor", "tiered"])
def test_kernels_of_every_kind_of_call(executor, records):
    import torch_neuronx

    def function(x):
        first = scaled(x + 1, factor=3.0, dtype=nl.bfloat16)
        for power in range(2):
            first = torch_neuronx.wrap_nki(scaled)[(2,)](first, 1.0 + power)
        return first, scaled[2](x.T[1:])

    x = torch.randn(4, 8)
    with torch.no_grad(), nki.simulation() as runs:
        first, second = compiled(function, executor)(x.to("neuron"))
    assert torch.equal(first.cpu(), ((x + 1) * 3).bfloat16() * 2)
    assert torch.equal(second.cpu(), x.T[1:] * 2)
    assert [run.kernel for run in runs] == ["scaled"] * 4
    (record,) = records()
    assert record["lowering"] == "checked"


@pytest.mark.parametrize("executor", ["aten", "inductor"])
def test_what_a_kernel_writes_is_in_the_callers_tensors(executor):
    def function(total, x, log):
        result = accumulate(total * 1 if total.shape == () else total, x=x, log=log)
        again = accumulate(total, x, log[1:])
        before, same, number = again["more"]
        return result["total"], before * number, same

    totals, xs, logs = torch.randn(4, 8), torch.randn(4, 8), torch.zeros(3, 4, 8)
    total, x, log = neuron(totals, xs, logs)
    with torch.no_grad():
        same_total, tripled, same_x = compiled(function, executor)(total, x, log)
    assert same_total is total and same_x is x
    torch.testing.assert_close(total.cpu(), totals + 2 * xs)
    torch.testing.assert_close(tripled.cpu(), (totals + xs) * 3)
    torch.testing.assert_close(log.cpu(), torch.stack([totals + xs, totals + 2 * xs, logs[2]]))
