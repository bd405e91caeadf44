"""What torch-mlir lacks or gets wrong, and a decomposition closes: the lowered graph, run by XLA, against the CPU."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from optimum_neuron_torch.emulator.compiler.decompositions import lowering_decompositions


aten = torch.ops.aten


def _assign(x, mask):
    x = x.clone()
    x[mask] = 2.0
    return x + 1


def _joined(pair):
    return torch.stack([pair[0].to(torch.float32), pair[1].to(torch.float32)])


def _checked(x):
    torch._check((x < 100).all().item())
    return x * 2


# Functions of floating point numbers x (4, 6, 5), whole numbers i and booleans b (4, 6).
GAPS: dict[str, dict[str, Callable[..., torch.Tensor]]] = {
    "any_dims": {
        "all": lambda x, i, b: b.all(),
        "any of axes": lambda x, i, b: aten.any.dims(b, [0, 1]),
        "any of axes, kept": lambda x, i, b: aten.any.dims(x > 2, [0, -1], True),
    },
    "cumulative": {
        "product": lambda x, i, b: x.cumprod(1),
        "product of whole numbers": lambda x, i, b: (i % 3).cumprod(-1),
        "largest": lambda x, i, b: _joined(x.cummax(1)),
        "largest of equal ones": lambda x, i, b: _joined((i % 3).cummax(0)),
        "smallest beside NaN": lambda x, i, b: _joined(torch.where(x > 1.5, float("nan"), x).cummin(-1)),
        "logarithm of sums": lambda x, i, b: (x * 100).logcumsumexp(1),
        "logarithm of sums of nothing": lambda x, i, b: torch.where(x < 0, float("-inf"), x).logcumsumexp(0),
    },
    "number_reductions": {"running sum": lambda x, i, b: x[0, 0, 0].cumsum(0)},
    "diagonal": {
        "diagonal": lambda x, i, b: x.diagonal(),
        "of other axes": lambda x, i, b: x.diagonal(-2, 2, 1),
        "matrix of one": lambda x, i, b: torch.diag(x[0, 0]),
        "written": lambda x, i, b: x.diagonal_scatter(x[0, :, :3], 1, 2, 0),
    },
    "distance": {
        "euclidean": lambda x, i, b: torch.cdist(x, x.flip(0)),
        "euclidean, of many rows": lambda x, i, b: torch.cdist(x.repeat(1, 5, 1), x.repeat(1, 5, 1) + 2),
        "of blocks": lambda x, i, b: torch.cdist(x, x * 2, p=1.0),
        "largest difference": lambda x, i, b: torch.cdist(x, x + 1, p=float("inf")),
    },
    "empty_slice": {
        "nothing": lambda x, i, b: x[:0] * 2,
        "nothing of the middle": lambda x, i, b: x[:, 2:2] + 1,
        "sum of nothing": lambda x, i, b: x[3:3].sum() + x.sum(),
        "product with nothing": lambda x, i, b: x[:0] @ x[0].T,
        "joined to nothing": lambda x, i, b: torch.cat([x[:0], x * 2]),
        "something": lambda x, i, b: x[1:3, ::2],
    },
    "bitwise_scalars": {
        "or, and, xor": lambda x, i, b: (i | 3) + (i & 5) + (i ^ 9),
        "shifts": lambda x, i, b: (i >> 2) + (i << 1),
        "of booleans": lambda x, i, b: b ^ True,
    },
    "extremes": {
        "limits": lambda x, i, b: x.clamp(x[0] - 0.5, x[1].abs()),
        "lower limit": lambda x, i, b: x[..., :1].clamp_min(x[0, 0]),
        "larger beside NaN": lambda x, i, b: torch.fmax(torch.where(x > 1, float("nan"), x), x[0]),
        "smaller": lambda x, i, b: torch.fmin(i, i.flip(0)),
    },
    "floor_division": {
        "by a number": lambda x, i, b: i // 7,
        "by a negative number": lambda x, i, b: i // -7,
        "by a tensor": lambda x, i, b: i // (i.flip(0) * 2 + 1),
        "beyond float64": lambda x, i, b: (i * 2**55 + 1) // 3,
        "of real numbers": lambda x, i, b: torch.div(x, 0.3, rounding_mode="floor"),
    },
    "masked_assignment": {
        "a number": lambda x, i, b: _assign(x, b),
        "a mask of all axes": lambda x, i, b: _assign(x, x > 0),
        "a row": lambda x, i, b: x.index_put((b,), x[0, 0]),
        "added": lambda x, i, b: x.index_put((b,), x[0, 0], accumulate=True),
    },
    "masked_scatter_backward": {
        "a row for each place": lambda x, i, b: aten.masked_scatter_backward(x, b[..., None], [20, 5]),
        "more rows than places": lambda x, i, b: aten.masked_scatter_backward(x, b[..., None], [24, 5]),
        "an element for each place": lambda x, i, b: aten.masked_scatter_backward(x, x > 0, [120]),
    },
    "matrix_vector": {
        "addmv": lambda x, i, b: torch.addmv(x[0, :, 0], x[1], x[2, 0], beta=0.5, alpha=2),
    },
    "pooling": {
        "average, hanging over": lambda x, i, b: F.avg_pool2d(x, 2, 2, 1, ceil_mode=True, count_include_pad=False),
        "average, own divisor": lambda x, i, b: F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        "average of three axes": lambda x, i, b: F.avg_pool3d(x[None], 2, 1, 1, True, False, 3),
        "average of adaptive windows": lambda x, i, b: F.adaptive_avg_pool2d(x, (4, 7)),
        "average of adaptive windows of three axes": lambda x, i, b: F.adaptive_avg_pool3d(x[None], (3, 2, 4)),
        "largest, hanging over": lambda x, i, b: _joined(F.max_pool2d(x, 2, 2, ceil_mode=True, return_indices=True)),
        "largest, padded": lambda x, i, b: _joined(F.max_pool2d(x, 3, 2, 1, 1, True, return_indices=True)),
        "largest, spread": lambda x, i, b: F.max_pool2d(x, 2, 2, 1, 2, ceil_mode=True),
        "gradient of an average": lambda x, i, b: aten.avg_pool2d_backward(
            x[:, :3, :3], x, [3, 3], [2, 2], [1, 1], False, False, None
        ),
        "gradient of adaptive windows": lambda x, i, b: aten._adaptive_avg_pool2d_backward(x[:, :4, :3], x),
    },
    "remainder": {
        "fmod": lambda x, i, b: torch.fmod(i, 7),
        "fmod by a negative number": lambda x, i, b: torch.fmod(i, -7),
        "fmod by a tensor": lambda x, i, b: torch.fmod(i, i.flip(0) * 2 + 1),
        "fmod of real numbers": lambda x, i, b: torch.fmod(x, 0.3),
        "fmod of whole by real": lambda x, i, b: torch.fmod(i, 0.75),
        "fmod of whole by real tensors": lambda x, i, b: torch.fmod(i, x[..., 0]),
        "remainder": lambda x, i, b: i % 7,
        "remainder by a negative number": lambda x, i, b: i % -7,
        "remainder by a tensor": lambda x, i, b: i % (i.flip(0) * 2 + 1),
        "remainder of a number": lambda x, i, b: 5 % (i.abs() + 1),
        "remainder of whole by real": lambda x, i, b: i % -0.75,
        "remainder of a real number by whole": lambda x, i, b: 5.5 % (i.abs() + 1),
        "remainder of real numbers": lambda x, i, b: torch.remainder(x, -0.3),
        "remainder of real tensors": lambda x, i, b: torch.remainder(x, x.flip(0)),
        # PyTorch takes it apart into indices and their remainders.
        "roll of axes": lambda x, i, b: torch.roll(x, (1, -2), (0, -1)),
        "roll over the end": lambda x, i, b: torch.roll(x, 9, 1),
        "roll of all": lambda x, i, b: torch.roll(x, -3),
    },
    "as_strided": {
        "the mean of an image": lambda x, i, b: F.adaptive_avg_pool2d(x.transpose(1, 2), 1).flatten(1),
        "axes of one element": lambda x, i, b: torch.as_strided(x + 1, (4, 6, 5), (30, 5, 1)).mean((0, 2), True),
        "one element's strides": lambda x, i, b: torch.as_strided(x[:, :1] + 1, (4, 1, 5), (5, 99, 1)) * 2,
    },
    "unsigned_comparison": {
        "equal": lambda x, i, b: b == b.flip(0),
        "unequal": lambda x, i, b: b != b.flip(0),
        "greater": lambda x, i, b: b > b.flip(0),
        "at most": lambda x, i, b: b <= b.flip(0),
        "with a number": lambda x, i, b: b == 1,
        "of bytes": lambda x, i, b: i.to(torch.uint8) > 200,
        "of bytes and whole numbers": lambda x, i, b: i.to(torch.uint8) == i,
        "a diagonal": lambda x, i, b: x[0, :5] * torch.eye(5, device=x.device),
    },
    "variance": {
        "of all": lambda x, i, b: x.var(),
        "of axes": lambda x, i, b: torch.stack(torch.var_mean(x, (0, -1))),
        "of axes, kept": lambda x, i, b: torch.stack(torch.var_mean(x, 1, correction=0, keepdim=True)),
        "of short numbers": lambda x, i, b: x.bfloat16().var(1).float().mul(8).round(),
        "deviation": lambda x, i, b: x.std(1),
        "layer norm": lambda x, i, b: F.layer_norm(x, (6, 5), x[0], x[1]),
        "group norm": lambda x, i, b: F.group_norm(x, 3, x[0, :, 0], x[1, :, 0], 1e-3),
        "group norm, plain": lambda x, i, b: F.group_norm(x[..., None], 2),
    },
    "assertions": {"a check of values": lambda x, i, b: _checked(x)},
}
CASES = [(gap, case) for gap, cases in GAPS.items() for case in cases]


@pytest.mark.parametrize(("gap", "case"), CASES, ids=[f"{gap}-{case}" for gap, case in CASES])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_lowered_equals_cpu(gap, case, records):
    function = GAPS[gap][case]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 6, 5, generator=generator)
    i, b = torch.randint(-50, 50, (4, 6), generator=generator), torch.rand(4, 6, generator=generator) > 0.5
    compiled = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "xla"})
    with torch.no_grad():
        expected, found = function(x, i, b), compiled(x.to("neuron"), i.to("neuron"), b.to("neuron"))
    tolerance = 1e-5 if expected.is_floating_point() else 0
    torch.testing.assert_close(found.cpu(), expected, atol=tolerance, rtol=tolerance, equal_nan=True)
    assert {record["lowering"] for record in records()} == {"checked"}


# Without "variance" the results are right, in a type that the device lacks: test_legal_types.py.
@pytest.mark.parametrize("gap", [gap for gap in GAPS if gap not in ("assertions", "variance")])
def test_torch_mlir_still_needs_it(gap, monkeypatch, tmp_path):
    """Without the decomposition a case fails or is wrong: else upstream closed the gap, and the file can go."""
    from importlib import import_module

    from optimum_neuron_torch.emulator.compiler import decompositions, stablehlo

    ours = import_module(f"{decompositions.__name__}.{gap}").DECOMPOSITIONS
    stock = {**lowering_decompositions(), **torch._decomp.core_aten_decompositions()}
    table = {op: body for op, body in stock.items() if ours.get(op) is not body}
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))  # graphs lowered with it are stored in the other one
    monkeypatch.setattr(stablehlo, "lowering_decompositions", lambda: table)
    failed = []
    for case in GAPS[gap]:
        torch._dynamo.reset()
        try:
            test_lowered_equals_cpu(gap, case, lambda: [{"lowering": "checked"}])
        except Exception:
            failed.append(case)
    assert failed
