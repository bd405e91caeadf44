"""Accelerate on neuron: automatic placement, numbered devices, float16, compile settings of a training loop."""

import subprocess
import sys

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import TorchDynamoPlugin, get_balanced_memory
from safetensors.torch import save_file

import optimum_neuron_torch
from optimum_neuron_torch.integrations.accelerate import RECOMPILE_LIMIT


class Model(torch.nn.Module):
    """Weights, and a buffer that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) * self.scale
        return x


def devices_of(module: torch.nn.Module) -> set[str]:
    return {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}


@pytest.fixture
def second_core():
    torch.neuron.set_device(1)
    yield
    torch.neuron.set_device(0)


@pytest.fixture
def fresh_state():
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def test_memory_is_that_of_the_current_core_alone():
    memory = accelerate.utils.get_max_memory()
    assert list(memory) == [0]
    assert 0 < memory[0] <= torch.accelerator.get_memory_info(0)[1]


def test_limits_of_the_user_are_kept():
    assert accelerate.utils.get_max_memory({"cpu": "1MB"}) == {"cpu": 10**6}
    assert accelerate.infer_auto_device_map(Model(), max_memory={"cpu": "1MB"}) == {"": "cpu"}


def test_automatic_map_is_one_core(second_core):
    assert accelerate.infer_auto_device_map(Model()) == {"": "neuron:1"}
    assert list(get_balanced_memory(Model())) == [1]


@pytest.mark.parametrize("device_map", ["auto", "balanced", "balanced_low_0", "sequential", {"": 0}])
def test_checkpoints_load_onto_the_current_core(tmp_path, device_map):
    stock = Model()
    path = str(tmp_path / "model.safetensors")
    save_file(stock.state_dict(), path)
    model = accelerate.load_checkpoint_and_dispatch(Model(), path, device_map=device_map)
    assert devices_of(model) == {"neuron:0"}
    x = torch.randn(2, 8)
    torch.testing.assert_close(model(x.to("neuron")).cpu(), stock(x))


@pytest.mark.parametrize("place", [0, 1, "neuron:1", torch.device("neuron", 1)])
def test_dispatch_moves_to_a_numbered_device(place):
    model = accelerate.dispatch_model(Model(), {"": place})
    assert devices_of(model) == {f"neuron:{place}" if isinstance(place, int) else str(place)}


def test_dispatch_names_a_device_that_does_not_exist():
    with pytest.raises(ValueError, match="'neuron:9' does not exist"):
        accelerate.dispatch_model(Model(), {"": 9})


def test_float16_is_refused_and_leaves_no_state(fresh_state):
    with pytest.raises(ValueError, match="mixed_precision='fp16' is not supported on the neuron device.*Use bf16"):
        Accelerator(mixed_precision="fp16")
    assert Accelerator(mixed_precision="bf16").device.type == "neuron"


def test_float16_is_refused_from_the_environment(fresh_state, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    with pytest.raises(ValueError, match="Use bf16"):
        Accelerator()


def test_float16_elsewhere_is_not_ours(fresh_state):
    accelerator = Accelerator(mixed_precision="fp16", cpu=True)
    assert (accelerator.mixed_precision, accelerator.device.type) == ("fp16", "cpu")


def test_training_loops_may_compile_many_batch_shapes():
    settings = TorchDynamoPlugin(backend="neuron", dynamic=False).to_kwargs()
    assert settings["recompile_limit"] == RECOMPILE_LIMIT
    assert settings["isolate_recompiles"] is True
    assert "recompile_limit" not in TorchDynamoPlugin(backend="inductor").to_kwargs()
    torch.compile(torch.nn.Linear(1, 1), **settings)  # its parameters are torch.compile's


def test_batch_shapes_beyond_dynamos_own_limit_are_compiled(fresh_state):
    from torch_neuronx.neuron_dynamo_backend import get_dynamo_metrics

    options = {"executor": "aten", "lowering": "off"}  # eleven graphs of no interest in themselves
    accelerator = Accelerator(dynamo_plugin=TorchDynamoPlugin(backend="neuron", dynamic=False, options=options))
    model = accelerator.prepare(Model().eval())
    before = len(get_dynamo_metrics())
    with torch.no_grad():
        for rows in range(2, 13):
            model(torch.randn(rows, 8, device="neuron"))
    assert len(get_dynamo_metrics()) - before == 11


ORDERS = {
    "accelerate first": "import accelerate, accelerate.utils; import optimum_neuron_torch",
    "plugin first": "import optimum_neuron_torch; import accelerate, accelerate.utils",
}
CHECK = """
from optimum_neuron_torch import unwire, wire, wiring
import accelerate.big_modeling, accelerate.utils.modeling as modeling
places = [accelerate, accelerate.utils, accelerate.big_modeling, modeling]
found = lambda name: {getattr(p, name) for p in places if hasattr(p, name)}
names = ["get_max_memory", "infer_auto_device_map", "dispatch_model"]
names += ["load_checkpoint_and_dispatch"]
is_ours = lambda f: hasattr(f, "_neuron_stock")
assert all(is_ours(f) for name in names for f in found(name))
unwire()
assert not any(is_ours(f) for name in names for f in found(name))
assert all(len(found(name)) == 1 for name in names)
wire()
assert all(is_ours(f) for name in names for f in found(name))
"""


@pytest.mark.parametrize("order", ORDERS)
def test_either_import_order_and_undo(order):
    subprocess.run([sys.executable, "-c", f"{ORDERS[order]}\n{CHECK}"], check=True)


def test_the_package_names_upstream_changes():
    from optimum_neuron_torch.wiring.accelerate import ENTRIES

    assert all(entry.upstream for entry in ENTRIES)
    assert {entry.name for entry in ENTRIES} <= set(optimum_neuron_torch.wiring.wired())
