"""Code that is compiled on neuron and leaves its graphs is listed, by source line, and computes the same."""

import logging

import pytest
import torch
import torch_neuronx

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler.errors import RecompileError
from optimum_neuron_torch.emulator.logs import LOGGER


@pytest.fixture(autouse=True)
def quick_executor(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")


@pytest.fixture
def breaks():
    return torch_neuronx.neuron_dynamo_backend.get_graph_breaks


def _asked(x):
    torch._dynamo.graph_break()  # asked for
    return x + 1


def _branching(x):
    y = x * 2
    if y.sum() > 0:  # depends on data
        return y + 1
    return y - 1


def _in_a_loop(x):
    for _ in range(2):
        x = x + 1
        if x.sum() > 0:  # in a loop
            x = x * 2
    return x


def _reading_a_number(x):
    return x * int(x.max().item())


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    ("function", "kind", "code", "reason"),
    [
        (_asked, "graph break", "torch._dynamo.graph_break()  # asked for", "graph_break()"),
        (_branching, "graph break", "if y.sum() > 0:  # depends on data", "Data-dependent branching"),
        (_in_a_loop, "skipped", "if x.sum() > 0:  # in a loop", "graph break in loop"),
        (_reading_a_number, "graph break", "return x * int(x.max().item())", "Tensor.item()"),
    ],
)
def test_breaks_are_listed_and_computed_through(function, kind, code, reason, named, breaks, caplog):
    caplog.set_level(logging.INFO, LOGGER)
    x = torch.arange(4.0)
    compiled = torch.compile(function, **({"backend": "neuron"} if named else {}))
    for _ in range(2):
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), function(x))
    found = [entry for entry in breaks() if entry["kind"] == kind and code in entry["location"]]
    assert len(found) == 1, breaks()
    assert "test_graph_breaks.py:" in found[0]["location"]
    assert reason in found[0]["reason"]
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len([line for line in lines if line.lower().startswith(kind) and code in line]) == 1


def test_what_other_backends_break_is_not_listed(breaks):
    torch.compile(_asked, backend="eager")(torch.ones(2))
    torch.compile(_asked, backend="eager")(torch.ones(2, device="neuron"))
    torch.compile(_in_a_loop, backend="eager")(torch.ones(2))
    assert breaks() == []


def test_a_whole_graph_has_no_breaks(breaks):
    torch.compile(lambda x: x + 1, fullgraph=True)(torch.ones(2, device="neuron"))
    assert breaks() == []


def test_the_recompile_limit_is_warned_about_and_listed(breaks, records):
    compiled = torch.compile(lambda x: x + 1, recompile_limit=2, isolate_recompiles=True, dynamic=False)
    with pytest.warns(RuntimeWarning, match="Recompile limit .* runs eagerly") as caught:
        for size in (2, 3, 4, 5):
            torch.testing.assert_close(compiled(torch.ones(size, device="neuron")).cpu(), torch.full((size,), 2.0))
    assert len([warning for warning in caught if "Recompile limit" in str(warning.message)]) == 1
    assert len(records()) == 2
    (found,) = breaks()
    assert found["kind"] == "recompile limit" and "2 graphs is the recompile_limit" in found["reason"]
    assert "size mismatch at index 0. expected 3, actual 4" in found["reason"]


def test_the_recompile_limit_is_an_error_in_strict_mode():
    compiled = torch.compile(lambda x: x + 1, recompile_limit=1, isolate_recompiles=True, dynamic=False)
    compiled(torch.ones(2, device="neuron"))
    with device.strict("recompile"), pytest.raises(RecompileError, match="1 graphs is the recompile_limit"):
        compiled(torch.ones(3, device="neuron"))


def test_limits_of_other_backends_are_their_own(breaks):
    compiled = torch.compile(
        lambda x: x + 1, backend="eager", recompile_limit=1, isolate_recompiles=True, dynamic=False
    )
    with device.strict("recompile"):
        for size in (2, 3, 4):
            compiled(torch.ones(size))
    assert breaks() == []
