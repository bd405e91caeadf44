"""What cannot be compiled, and what is asked wrongly, is an error that says so."""

import pytest
import torch
import torch_neuronx
from torch._dynamo.exc import BackendCompilerFailed

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.compiler.errors import (
    DynamicShapesError,
    LoweringError,
    RecompileError,
    UnknownOptionError,
)


def _unloweable(x):
    return torch.linalg.eigvalsh(x)


def _compile(function, **options):
    return torch.compile(function, backend="neuron", dynamic=False, options={"executor": "aten", **options})


def test_an_operator_without_lowering_names_itself_its_operands_and_the_line():
    with pytest.raises(BackendCompilerFailed) as caught:
        _compile(_unloweable)(torch.eye(3, device="neuron"))
    error = caught.value.inner_exception
    assert isinstance(error, LoweringError)
    assert "linalg_eigh" in error.op
    assert error.inputs == ("float32[3, 3]",)
    assert "test_errors.py" in error.source and "eigvalsh" in error.source
    assert str(error) in str(caught.value)


@pytest.mark.parametrize("how", ["option", "environment"])
def test_fallback_execution_runs_the_graph_eagerly(how, monkeypatch, records):
    options = {"fallback_execution": True} if how == "option" else {}
    if how == "environment":
        monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    with pytest.warns(RuntimeWarning, match="runs eagerly on neuron"):
        result = _compile(_unloweable, **options)(2 * torch.eye(3, device="neuron"))
    torch.testing.assert_close(result.cpu(), torch.full((3,), 2.0))
    assert records()[0]["lowering"] == "fallback"


@pytest.mark.parametrize("how", ["option", "environment"])
def test_lowering_can_be_switched_off(how, monkeypatch, records):
    options = {"lowering": "off"} if how == "option" else {}
    if how == "environment":
        monkeypatch.setenv("NEURON_EMULATOR_LOWERING", "off")
    _compile(_unloweable, **options)(torch.eye(3, device="neuron"))
    assert records()[0]["lowering"] == "off"


def test_without_torch_mlir_the_record_says_so(monkeypatch, records):
    from optimum_neuron_torch.emulator.compiler import stablehlo

    monkeypatch.setattr(stablehlo, "is_available", lambda: False)
    _compile(_unloweable)(3 * torch.eye(3, device="neuron"))
    assert records()[0]["lowering"] == "unavailable"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_autotune": True}, "no option 'max_autotune'; it knows model_name"),
        ({"executor": "gpu"}, "no executor 'gpu'; it knows tiered, inductor, aten, xla"),
        ({"fallback_execution": "yes"}, "expects a bool"),
    ],
)
def test_unknown_options_name_the_known_ones(options, words):
    for backend in ("neuron", torch_neuronx.neuron_dynamo_backend.neuron_backend):
        with pytest.raises(UnknownOptionError, match=words):  # at the call, not at the first graph
            torch.compile(lambda x: x + 1, backend=backend, options=options)
    with pytest.raises(UnknownOptionError, match=words):
        torch.compile(backend="neuron", options=options)


@pytest.mark.parametrize("variable", ["NEURON_EMULATOR_EXECUTOR", "NEURON_EMULATOR_LOWERING"])
def test_a_wrong_default_names_its_variable(variable, monkeypatch):
    monkeypatch.setenv(variable, "gpu")
    with pytest.raises(UnknownOptionError, match=f"{variable} has no .* 'gpu'; it knows"):
        torch.compile(lambda x: x + 1, backend="neuron")


def test_a_guard_filter_is_dynamos_option_and_stays_one():
    seen = []
    options = {"executor": "aten", "guard_filter_fn": lambda guards: seen.append(len(guards)) or [True] * len(guards)}
    torch.compile(lambda x: x + 1, backend="neuron", options=options)(torch.ones(2, device="neuron"))
    assert seen


def test_other_modes_warn_once(monkeypatch):
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")
    with pytest.warns(UserWarning, match="max-autotune") as caught:
        compiled = torch.compile(lambda x: x + 1, backend="neuron", mode="max-autotune-no-cudagraphs")
        compiled(torch.ones(2, device="neuron"))
        compiled(torch.ones(3, device="neuron"))
    assert len([warning for warning in caught if "max-autotune" in str(warning.message)]) == 1


def test_dynamic_shapes_are_refused_at_the_call():
    with pytest.raises(DynamicShapesError, match="static shapes"):
        torch.compile(lambda x: x + 1, backend="neuron", dynamic=True)


def test_dynamic_shapes_are_refused_at_the_first_graph_where_no_backend_is_named():
    with pytest.raises(BackendCompilerFailed, match="static shapes") as caught:
        torch.compile(lambda x: x + 1, dynamic=True)(torch.ones(5, device="neuron"))
    assert isinstance(caught.value.inner_exception, DynamicShapesError)


def test_a_second_shape_is_a_second_graph(records):
    compiled = torch.compile(lambda x: (x * x.shape[0]).reshape(-1), backend="neuron", options={"executor": "aten"})
    for size in (3, 4, 5, 4, 3):
        x = torch.randn(size, 2)
        torch.testing.assert_close(compiled(x.to("neuron")).cpu(), (x * size).reshape(-1))
    assert len(records()) == 3


def test_recompiles_after_warm_up_are_errors_in_strict_mode():
    compiled = _compile(lambda x: x + 1)
    compiled(torch.ones(2, device="neuron"))
    shape = torch.ones(3, device="neuron")
    with device.strict("recompile"):
        device.mark_warm()
        try:
            compiled(torch.ones(2, device="neuron"))
            with pytest.raises(BackendCompilerFailed, match=r"after warm-up.*float32\[3\]") as caught:
                compiled(shape)
        finally:
            device.mark_warm(False)
    assert isinstance(caught.value.inner_exception, RecompileError)
