"""Strict kinds see inside of compiled graphs: wide types by their operator and line, wide values at the ends."""

import pytest
import torch

from optimum_neuron_torch.emulator import device


def _compiled(function):
    return torch.compile(function, backend="neuron", dynamic=False, fullgraph=True, options={"executor": "aten"})


WIDE = {
    "float64": (lambda x: (x.double() * 2).float(), "aten._to_copy.default"),
    "complex": (lambda x: torch.view_as_real(torch.complex(x, x) * 2), "aten.complex.default"),
}


@pytest.mark.parametrize("kind", WIDE)
def test_wide_types_are_refused_with_operator_and_line(kind):
    function, operator = WIDE[kind]
    x = torch.randn(3, device="neuron")
    with (
        device.strict(kind),
        pytest.raises(Exception, match=rf"strict mode \({kind}\): {operator}.*\n?.*test_strict_types"),
    ):
        _compiled(function)(x)


@pytest.mark.parametrize("kind", WIDE)
def test_they_are_counted_otherwise(kind, records):
    function, _ = WIDE[kind]
    x = torch.randn(3)
    torch.testing.assert_close(_compiled(function)(x.to("neuron")).cpu(), function(x))
    assert records()[0][f"{kind}_nodes"] >= 2


@pytest.mark.parametrize("kind", WIDE)
def test_a_graph_compiled_before_is_refused_too(kind):
    function, operator = WIDE[kind]
    x = torch.randn(3, device="neuron")
    compiled = _compiled(function)
    compiled(x)
    with device.strict(kind), pytest.raises(RuntimeError, match=f"strict mode .{kind}.: {operator}"):
        compiled(x)
    compiled(x)


def test_a_float64_input_is_named():
    x = torch.randn(3, dtype=torch.float64, device="neuron")
    with (
        device.strict("float64"),
        pytest.raises(Exception, match=r"a graph's input float64\[3\], used at .*test_strict"),
    ):
        _compiled(lambda x: x + 1)(x)


def test_int64_is_refused_where_values_leave_32_bits():
    compiled = _compiled(lambda i: i * 2)
    small, large, doubled = (torch.tensor([1, number]).to("neuron") for number in (5, 2**31, 2**30))
    with device.strict("int64"):
        assert compiled(small).tolist() == [2, 10]
        with pytest.raises(RuntimeError, match=r"strict mode \(int64\): graph .* takes int64\[2\]"):
            compiled(large)
        with pytest.raises(RuntimeError, match=r"strict mode \(int64\): graph .* gives int64\[2\]"):
            compiled(doubled)
    assert compiled(large).tolist() == [2, 2**32]


def test_other_kinds_object_to_neither():
    x = torch.randn(3, device="neuron")
    with device.strict("sparse", "complex"):
        _compiled(lambda x: (x.double() * 2).float())(x)
