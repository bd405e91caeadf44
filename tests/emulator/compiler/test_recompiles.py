"""A graph that is compiled again says why: input, axis and sizes, or what else changed."""

import logging

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.logs import LOGGER


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))
        self.power = 2

    def forward(self, hidden, mask, times=1, **others):
        return (self.linear(hidden) + self.offset) * mask * times**self.power + sum(others.values())


def _ones(*size, dtype=torch.float32):
    return torch.ones(*size, dtype=dtype, device="neuron")


def _other_power(model):
    model.power = 3


CHANGES = {
    "axis": (
        lambda m, c: c(_ones(2, 4), _ones(2, 1), extra=_ones(4)),
        "`hidden` axis 0: 3 -> 2, `mask` axis 0: 3 -> 2",
    ),
    "keyword": (lambda m, c: c(_ones(3, 4), _ones(3, 1), extra=_ones(1)), "`extra` axis 0: 4 -> 1"),
    "rank": (lambda m, c: c(_ones(3, 4), _ones(1), extra=_ones(4)), "`mask`: 2 axes [3, 1] -> 1 axes [1]"),
    "dtype": (
        lambda m, c: c(_ones(3, 4), _ones(3, 1, dtype=torch.int32), extra=_ones(4)),
        "`mask` dtype: torch.float32 -> torch.int32",
    ),
    "strides": (
        lambda m, c: c(_ones(4, 3).t(), _ones(3, 1), extra=_ones(4)),
        "`hidden` strides: [4, 1] -> [1, 3]",
    ),
    "python number": (lambda m, c: c(_ones(3, 4), _ones(3, 1), times=5, extra=_ones(4)), "no longer true: times == 1"),
    "attribute": (
        lambda m, c: (_other_power(m), c(_ones(3, 4), _ones(3, 1), extra=_ones(4))),
        "no longer true: self.power == 2",
    ),
    "requires_grad": (
        lambda m, c: c(_ones(3, 4).requires_grad_(), _ones(3, 1), extra=_ones(4)),
        "`hidden` requires_grad: False -> True",
    ),
}  # fmt: skip


@pytest.fixture
def lines(caplog):
    """What the compiler logged."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [record.getMessage() for record in caplog.records if record.name == LOGGER]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")
    return Scaled().to("neuron")


@pytest.mark.parametrize("change", CHANGES)
def test_the_reason_is_in_the_log_and_in_the_record(change, model, lines, records):
    call, words = CHANGES[change]
    compiled = torch.compile(model, dynamic=False)
    compiled(_ones(3, 4), _ones(3, 1), extra=_ones(4))
    assert not any(line.startswith("Recompiling") for line in lines())
    call(model, compiled)
    (line,) = [line for line in lines() if line.startswith("Recompiling")]
    assert words in line and "test_recompiles.py" in line
    reasons = [record["recompile_reason"] for record in records()]
    assert reasons[0] == "" and words in reasons[-1]


def test_grad_mode_is_a_reason(model, lines):
    compiled = torch.compile(model, dynamic=False)
    with torch.no_grad():
        compiled(_ones(3, 4), _ones(3, 1))
    compiled(_ones(3, 4), _ones(3, 1))
    assert any(line.startswith("Recompiling") and "grad_mode changed" in line for line in lines())


def test_a_size_that_dynamo_made_dynamic_is_named_all_the_same(model, lines):
    compiled = torch.compile(model)
    for size in (2, 3, 5):
        compiled(_ones(size, 4), _ones(size, 1))
    changed = [line for line in lines() if line.startswith("Recompiling")]
    assert "`hidden` axis 0: 2 -> 3" in changed[0] and "`hidden` axis 0: 3 -> 5" in changed[1]


def test_a_python_number_that_dynamo_made_an_input_is_named(model, lines):
    compiled = torch.compile(model)
    for times in (2, 3, 5):
        compiled(_ones(3, 4), _ones(3, 1), times=times)
    changed = [line for line in lines() if line.startswith("Recompiling")]
    assert "`times`: 2 -> 3" in changed[0] and "`times`: 3 -> 5" in changed[1]


def test_strict_mode_says_what_changed(model):
    compiled = torch.compile(model, dynamic=False)
    compiled(_ones(3, 4), _ones(3, 1))
    hidden, mask = _ones(5, 4), _ones(5, 1)
    with device.strict("recompile"):
        device.mark_warm()
        try:
            with pytest.raises(
                BackendCompilerFailed, match=r"Changed: `hidden` axis 0: 3 -> 5, `mask` axis 0: 3 -> 5"
            ):
                compiled(hidden, mask)
        finally:
            device.mark_warm(False)


def test_recompilations_are_counted_once_per_call_of_the_backend(model):
    counted = torch._dynamo.utils.counters["neuron"]["recompilations"]
    compiled = torch.compile(model, dynamic=False)
    for size in (2, 3):
        compiled(_ones(size, 4), _ones(size, 1)).sum().backward()
    assert torch._dynamo.utils.counters["neuron"]["recompilations"] == counted + 1
