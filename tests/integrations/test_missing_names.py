"""The plugin on a native package that lacks what only the beta is known to have: each such name, and all at once."""

import re
import sys
from contextlib import contextmanager

import pytest
import torch
import torch_neuronx.metrics
import torch_neuronx.neuron_dynamo_backend
import torch_neuronx.utils
from transformers import BertConfig, BertModel

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
from tests.emulator.surface import MODULES
from tests.sources import PACKAGE, ROOT
from tests.tiny_models import TINY


# Known from the beta's source alone, and what exists on the emulator only.
BETA_ONLY = [(module, name.path) for module, names in MODULES.items() for name in names if name.provenance == "S"]
EMULATOR_ONLY = [
    ("torch_neuronx", "get_unknown_ops"),
    ("torch_neuronx", "strict"),
    ("torch_neuronx", "is_emulated"),
    ("torch_neuronx.metrics", "mark_warm"),
    ("torch_neuronx.neuron_dynamo_backend", "compiler_version"),
    ("torch_neuronx.neuron_dynamo_backend", "finish_compilations"),
    ("torch_neuronx.neuron_dynamo_backend", "get_graph_breaks"),
    ("torch_neuronx.neuron_dynamo_backend", "graph_directory"),
    ("torch_neuronx.neuron_dynamo_backend", "graph_programs"),
    ("torch_neuronx.neuron_dynamo_backend", "pending_compilations"),
    ("torch_neuronx.neuron_dynamo_backend", "usable_programs"),
]
# How kernels are launched.
KERNELS = [
    ("torch_neuronx", "nki_op"),
    ("torch_neuronx.utils", "get_lnc_setting"),
    ("torch_neuronx.utils", "get_platform_target"),
]
# Documented, or seen in users' code, but of the same origin.
TRACKING = [
    ("torch_neuronx", "get_fallback_ops"),
    ("torch_neuronx.neuron_dynamo_backend", "get_dynamo_metrics"),
    ("torch_neuronx.neuron_dynamo_backend", "set_model_name"),
    ("torch_neuronx.neuron_dynamo_backend", "get_model_name"),
    ("torch_neuronx.neuron_dynamo_backend", "NEFFCompilationError"),
]


def _looked_up() -> list[tuple[str, str]]:
    """What runtime.py, the only module that does, looks up in the package: (module, name)."""
    text = (ROOT / PACKAGE / "runtime.py").read_text()
    found = re.findall(r'getattr\(_package\((?:"([.\w]*)")?\), "(\w+)"', text)
    return [(f"torch_neuronx{module}", name) for module, name in found]


CONFIG = ont.NeuronConfig(
    buckets=ont.Buckets(batch=[1], sequence=[16]), verify=False, options={"executor": "aten", "lowering": "off"}
)


@contextmanager
def without(names):
    """The names are gone from their modules."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in names:
            owner = torch.neuron if module == "torch.neuron" else sys.modules[module]
            if name in vars(owner):  # others are resolved by the module's __getattr__
                patch.delattr(owner, name)
        yield


@pytest.fixture(autouse=True)
def _quick_graphs(monkeypatch):
    """Where the device does not say that it is emulated, the option that chooses an executor is not passed to it."""
    monkeypatch.setenv("NEURON_EMULATOR_EXECUTOR", "aten")
    monkeypatch.setenv("NEURON_EMULATOR_LOWERING", "off")


def prepare_and_run() -> ont.Report:
    """Prepare a tiny model, run one bucket, check it against the CPU, and report."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**{**TINY, "num_hidden_layers": 1})).eval()
    ids = torch.arange(5, 16)[None]
    mask = torch.ones_like(ids)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        prepared = ont.prepare(model.to("neuron"), CONFIG)
        result = prepared(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1e-5)
    report = ont.report(prepared)
    assert [use.calls for use in report.buckets] == [1] and report.name in str(report)
    assert report.to_dict()["departures"] == []
    return report


def test_what_is_looked_up_is_known():
    """What runtime.py does not look up cannot break it; what it does is removed below, one by one."""
    assert set(_looked_up()) == {("torch_neuronx.metrics", "get_counter_value"), *KERNELS, *TRACKING, *EMULATOR_ONLY}
    assert len(BETA_ONLY) > 50


def test_kernels_without_their_names():
    """PyTorch's own custom operator, on one core."""
    with without(KERNELS):
        operator = runtime.nki_op("optimum_neuron_tests::negated", _negated)
        assert torch.equal(operator(torch.ones(2)), -torch.ones(2))
        assert runtime.kernel_target() == (None, 1)


def _negated(x: torch.Tensor) -> torch.Tensor:
    return -x


@pytest.mark.parametrize(("module", "name"), _looked_up(), ids=[f"{module}.{name}" for module, name in _looked_up()])
def test_without_one_name(module, name):
    with without([(module, name)]):
        report = prepare_and_run()
    if name == "get_dynamo_metrics" and module.endswith("backend"):
        assert report.graphs == report.cached == 0
    elif name not in ("set_model_name", "get_model_name"):  # without which loaded functions are recorded unnamed
        assert report.graphs + report.cached >= 1
    if name == "get_counter_value":
        assert report.eager_signatures is None and report.copies is None
        assert "not counted by this device" in str(report)
    if name == "get_unknown_ops":
        assert report.unknown_ops is None and "unknown support" not in str(report)


def test_without_each_name_of_the_beta():
    """One after the other: a warm model still runs, and the report is made."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**{**TINY, "num_hidden_layers": 1})).eval().to("neuron")
    ids = torch.arange(5, 16)[None]
    with torch.no_grad():
        prepared = ont.prepare(model, CONFIG)
        expected = prepared(ids, attention_mask=torch.ones_like(ids)).last_hidden_state.cpu()
        for calls, entry in enumerate(BETA_ONLY, start=2):
            with without([entry]):
                result = prepared(ids, attention_mask=torch.ones_like(ids)).last_hidden_state
                report = ont.report(prepared)
            assert torch.equal(result.cpu(), expected), entry
            assert report.buckets[0].calls == calls and report.name in str(report), entry


def test_without_all_names():
    with without([*BETA_ONLY, *TRACKING, *EMULATOR_ONLY]):
        report = prepare_and_run()
        assert not ont.is_emulated() and runtime.graph_records() == []
        with pytest.raises(NotImplementedError, match="emulated neuron device only"), ont.strict("float64"):
            pass
    assert (report.emulated, report.eager_signatures, report.unknown_ops, report.fallbacks) == (False, None, None, [])


def test_without_the_modules(monkeypatch):
    """`import torch_neuronx` itself fails, as where only `torch.neuron` is there."""
    for module in [name for name in sys.modules if name.split(".")[0] == "torch_neuronx"]:
        monkeypatch.setitem(sys.modules, module, None)
    report = prepare_and_run()
    assert (report.graphs, report.copies, report.fallbacks) == (0, None, [])


def test_records_may_be_objects(monkeypatch):
    """The beta's records are objects with attributes, not dictionaries."""

    class Record:
        def __init__(self) -> None:
            self.graph_name, self.model_name, self.torch_neuronx_compile_us = "m_0_inference_0", "m", 2_000_000

    monkeypatch.setattr(torch_neuronx.neuron_dynamo_backend, "get_dynamo_metrics", lambda: [Record()])
    report = ont.report()
    assert report.graph_names == ["m_0_inference_0"] and report.times["compile"] == 2.0 and report.graphs == 1


def test_a_counter_that_is_not_kept_is_not_zero(monkeypatch):
    monkeypatch.setattr(torch_neuronx.metrics, "get_counter_value", lambda name: None)
    assert ont.report().eager_signatures is None
