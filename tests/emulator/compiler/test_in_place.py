"""A decode step writes its KV caches where they lie: no copy of a cache, neither made nor kept for a moment."""

import pytest
import torch
from torch import nn


BATCH, HEADS, LENGTH, SIZE = 1, 2, 4096, 8
CACHE = BATCH * HEADS * LENGTH * SIZE
POSITION = 17


def _index_copy(cache, new, position):
    cache.index_copy_(2, position, new)


def _index_put(cache, new, position):
    cache[:, :, position] = new


def _slice(cache, new, position):
    cache[:, :, POSITION : POSITION + 1] = new


def _narrow_view(cache, new, position):
    cache.narrow(2, POSITION, 1).copy_(new)


WRITES = {"index_copy": _index_copy, "index_put": _index_put, "slice": _slice, "narrow view": _narrow_view}


class Step(nn.Module):
    """Layers that write a row of keys and values and attend to all of them, computing in the caches' type."""

    def __init__(self, write, dtype, layers):
        super().__init__()
        torch.manual_seed(0)
        self.write = write
        self.layers = nn.ModuleList([nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE, dtype=dtype) for _ in range(layers)])

    def forward(self, x, position, *caches):
        for layer, keys, values in zip(self.layers, caches[::2], caches[1::2], strict=True):
            query, key, value = layer(x).view(BATCH, 1, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
            self.write(keys, key, position)
            self.write(values, value, position)
            attended = nn.functional.scaled_dot_product_attention(query, keys, values)
            x = x + attended.transpose(1, 2).reshape(BATCH, 1, HEADS * SIZE)
        return x


def _check(write, dtype, layers, executor, monkeypatch):
    """Returns the code of what ran, empty for the interpreter."""
    step = Step(WRITES[write], dtype, layers)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 1, HEADS * SIZE, generator=generator).to(dtype)
    caches = [torch.randn(BATCH, HEADS, LENGTH, SIZE, generator=generator).to(dtype) for _ in range(2 * layers)]
    position = torch.tensor([POSITION])
    on_device = [tensor.to("neuron") for tensor in (x, position, *caches)]
    addresses = [tensor.data_ptr() for tensor in on_device]
    sources = _record_sources(monkeypatch)
    device_step = Step(WRITES[write], dtype, layers).to("neuron")
    compiled = torch.compile(
        device_step, backend="neuron", dynamic=False, fullgraph=True, options={"executor": executor, "lowering": "off"}
    )
    with torch.no_grad():
        compiled(*on_device)
        torch.neuron.reset_peak_memory_stats()
        before = torch.neuron.memory_allocated()
        found = compiled(*on_device)
        assert torch.neuron.max_memory_allocated() - before < CACHE * dtype.itemsize, "a cache was copied"
        step(x, position, *caches)
        expected = step(x, position, *caches)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.cpu(), expected, atol=tolerance, rtol=tolerance)
    for mine, theirs in zip(on_device[2:], caches, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, atol=tolerance, rtol=tolerance)
    assert [tensor.data_ptr() for tensor in on_device] == addresses
    return "\n".join(sources)


def _record_sources(monkeypatch):
    from optimum_neuron_torch.emulator.compiler.executors import inductor_compiler

    sources = []
    compile_graph = inductor_compiler.compile_graph

    def recording(*args, **kwargs):
        code, kernels = compile_graph(*args, **kwargs)
        sources.append(code.source_code)
        return code, kernels

    monkeypatch.setattr(inductor_compiler, "compile_graph", recording)
    return sources


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("write", WRITES)
def test_interpreted_steps_write_in_place(write, dtype, layers, monkeypatch):
    _check(write, dtype, layers, "aten", monkeypatch)


SLOW = [
    pytest.param(write, dtype, layers, marks=[] if (layers, dtype) == (1, torch.float32) else pytest.mark.slow)
    for write in WRITES
    for dtype in (torch.float32, torch.bfloat16)
    for layers in (1, 3)
]


@pytest.mark.parametrize(("write", "dtype", "layers"), SLOW)
def test_compiled_steps_write_in_place(write, dtype, layers, monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    source = _check(write, dtype, layers, "inductor", monkeypatch)
    assert "cpp_fused" in source
    assert f"<static_cast<int64_t>({CACHE}L)" not in source, "a loop over a whole cache"
    assert f"empty_strided_cpu(({BATCH}, {HEADS}, {LENGTH}, {SIZE})" not in source, "memory for another cache"
