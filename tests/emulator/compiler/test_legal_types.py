"""The types of lowered modules: what fits 32 bits is computed in 32 bits, and gives what the CPU's int64 gives."""

import re

import pytest
import torch

from .models import CASES, on_neuron


EDGE = 2**31


def _run(function, *arguments):
    compiled = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "xla"})
    with torch.no_grad():
        found = compiled(*[argument.to("neuron") for argument in arguments])
    torch.testing.assert_close(found.cpu(), function(*arguments), rtol=1e-6, atol=1e-6)


def _operations(module: str, kind: str) -> list[str]:
    """The operations with a result of this element type, but for those inside of others."""
    found = []
    for line in module.splitlines():
        if (match := re.match(r" {4}%\w+(?::\d+)? = \"?([\w.]+)", line)) and re.search(rf"{kind}>[^,()]*$", line):
            found.append(match[1])
    return found


# Of whole numbers i (3, 4) within 50 and real numbers x (3, 4).
FIT = {
    "arange": lambda i, x: torch.arange(2, 14, 3, device=x.device) + 1,
    "arange in reverse": lambda i, x: torch.arange(9, 0, -2, device=x.device),
    "positions": lambda i, x: (torch.arange(4, device=x.device) * 3 - 2).clamp(0, 5) % 4,
    "to the edge": lambda i, x: torch.arange(4, device=x.device) + (EDGE - 4),
    "to the other edge": lambda i, x: torch.arange(4, device=x.device) + -EDGE,
    "products": lambda i, x: torch.arange(4, device=x.device) * torch.arange(-2, 2, device=x.device),
    "quotients": lambda i, x: torch.div(torch.arange(-4, 4, device=x.device), 3, rounding_mode="trunc"),
    "floored quotients": lambda i, x: torch.arange(-4, 4, device=x.device) // 3,
    "chosen": lambda i, x: torch.where(x > 0, torch.arange(4, device=x.device), 7),
    "joined": lambda i, x: torch.cat([torch.arange(4, device=x.device), torch.arange(3, device=x.device)]).flip(0),
    "of comparisons": lambda i, x: (x > 0).long() + (x > 1).long(),
    "counted": lambda i, x: (x > 0).sum(1) + 1,
    "counted up": lambda i, x: (x > 0).cumsum(1) - 1,
    "places of the largest": lambda i, x: x.argmax(1) + x.argmin(1),
    "negated": lambda i, x: -torch.arange(4, device=x.device).abs(),
}


@pytest.mark.parametrize("name", FIT)
def test_what_fits_is_computed_in_int32(name, modules):
    i, x = torch.randint(-50, 50, (3, 4)), torch.randn(3, 4)
    _run(FIT[name], i, x)
    kinds = _operations(modules[0], "i64")
    assert set(kinds) <= {"stablehlo.convert", "stablehlo.reduce_window", "stablehlo.reduce"}, modules[0]
    assert not _operations(modules[0], "f64"), modules[0]
    assert "i32" in modules[0]


# What may leave 32 bits is not narrowed, and right.
LEAVES = {
    "beyond the edge": lambda i, x: torch.arange(4, device=x.device) + (EDGE - 3),
    "below the other": lambda i, x: torch.arange(4, device=x.device) - EDGE - 1,
    "of an input": lambda i, x: i + EDGE,
    "product": lambda i, x: torch.arange(4, device=x.device) * (EDGE // 3) + torch.arange(4, device=x.device),
    "square": lambda i, x: i * i * EDGE,
    "literal": lambda i, x: torch.tensor([EDGE, 1, -EDGE - 1, 0], device=x.device) + torch.arange(4, device=x.device),
    "clamped input": lambda i, x: (i * EDGE).clamp(-5, 5) + torch.arange(4, device=x.device),
    "sum": lambda i, x: (torch.arange(4, device=x.device) + (EDGE - 4)).sum(),
    "chosen": lambda i, x: torch.where(x > 0, i * EDGE, torch.arange(4, device=x.device)),
    "compared": lambda i, x: (i * EDGE) > torch.arange(4, device=x.device),
}


@pytest.mark.parametrize("name", LEAVES)
def test_what_leaves_32_bits_stays_right(name, modules):
    _run(LEAVES[name], torch.randint(-50, 50, (3, 4)), torch.randn(3, 4))


def test_indices_are_int32_where_they_are_used(modules):
    weight = torch.randn(10, 4)

    def function(ids, weight):
        rows = torch.nn.functional.embedding(ids, weight)
        return torch.gather(rows, 1, ids[..., None].expand(-1, -1, 4) % 3) + weight[ids - 1]

    _run(function, torch.randint(0, 10, (2, 5)), weight)
    for line in modules[0].splitlines():
        if '"stablehlo.gather"' in line:
            assert re.search(r": \(tensor<[^>]*>, tensor<[\dx]*xi32>\)", line), line


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_python_numbers_are_constants_of_the_type_they_are_used_in(dtype, modules):
    def function(x):
        return torch.softmax((x * 0.3 + 1e-5) / 7.5, -1).clamp(min=0.05).masked_fill(x > 1.5, -1e9)

    x = torch.randn(3, 5).to(dtype)
    compiled = torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "xla"})
    rtol = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), function(x), rtol=rtol, atol=rtol)
    assert "f64" not in modules[0]


def test_real_float64_stays(modules):
    x = torch.randn(3, 4, dtype=torch.float64)
    compiled = torch.compile(lambda x: x * 0.1 + 1, backend="neuron", dynamic=False, options={"executor": "xla"})
    torch.testing.assert_close(compiled(x.to("neuron")).cpu(), x * 0.1 + 1, rtol=0, atol=1e-16)
    assert "stablehlo.multiply" in _operations(modules[0], "f64")


@pytest.mark.parametrize("name", ["llama", "unet", "mixtral"])
def test_models_have_no_wide_arithmetic(name, modules):
    case = CASES[name]
    model = case.make().eval().to("neuron")
    with torch.no_grad():
        torch.compile(model, backend="neuron", dynamic=False, options={"executor": "aten"})(**on_neuron(case.inputs()))
    assert not _operations(modules[0], "f64")
    names = "add subtract multiply divide remainder select compare minimum maximum clamp iota constant".split()
    assert not {f"stablehlo.{name}" for name in names} & set(_operations(modules[0], "i64")), modules[0]
