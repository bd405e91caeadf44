"""Safetensors files opened straight onto neuron: every way to name the device, either import order, memory, undo."""

import subprocess
import sys

import pytest
import safetensors
import torch
from safetensors.torch import load_file, load_model, save_file, save_model

import optimum_neuron_torch as ont


TENSORS = {
    "x": torch.arange(6.0).view(2, 3),
    "low": torch.ones(3, dtype=torch.bfloat16),
    "number": torch.tensor(4),
    "empty": torch.empty(0, 2),
}
PLACES = {"neuron": 0, "neuron:1": 1, torch.device("neuron", 2): 2, torch.device("neuron"): 0, 3: 3}


@pytest.fixture
def file(tmp_path) -> str:
    save_file(TENSORS, tmp_path / "tensors.safetensors", metadata={"made": "here"})
    return str(tmp_path / "tensors.safetensors")


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_load_file(file, place, backend):
    loaded = load_file(file, device=place, backend=backend)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in loaded.items():
        assert tensor.device == torch.device("neuron", PLACES[place]) and tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor.cpu(), TENSORS[name]) and tensor.shape == TENSORS[name].shape


@pytest.mark.parametrize("framework", ["pt", "torch"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_safe_open(file, place, framework):
    with safetensors.safe_open(file, framework, device=place) as opened:
        assert isinstance(opened, safetensors.safe_open)
        assert set(opened.keys()) == set(opened.offset_keys()) == TENSORS.keys()
        assert opened.metadata() == {"made": "here"}
        piece = opened.get_slice("x")
        assert piece.get_shape() == [2, 3] and piece.get_dtype() == "F32"
        for tensor, expected in ((piece[:, 1:], TENSORS["x"][:, 1:]), (opened.get_tensor("low"), TENSORS["low"])):
            assert tensor.device == torch.device("neuron", PLACES[place]) and torch.equal(tensor.cpu(), expected)


def test_the_current_core_is_the_place_without_an_index(file):
    with torch.neuron.device(2):
        assert load_file(file, device="neuron")["x"].device.index == 2


def test_other_places_are_as_before(file):
    assert load_file(file)["x"].is_cpu and load_file(file, device="cpu")["x"].is_cpu
    assert safetensors.safe_open(file, "np").__enter__().get_tensor("x").tolist() == TENSORS["x"].tolist()
    for framework, place in (("pt", "nonsense"), ("np", "neuron")):
        with pytest.raises(safetensors.SafetensorError, match=f"device {place} is invalid"):
            safetensors.safe_open(file, framework, device=place)
    for place in ("neuron:9", torch.device("neuron:9")):
        with pytest.raises(ValueError, match="neuron:9' does not exist: this process sees 4 logical cores"):
            safetensors.safe_open(file, "pt", device=place)


def test_models(tmp_path):
    model, twin = (torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)) for _ in range(2))
    model[1].bias = model[0].bias  # shared: save_model stores it once
    twin[1].bias = twin[0].bias
    save_model(model.to("neuron"), tmp_path / "model.safetensors")
    assert load_model(twin.to("neuron:1"), tmp_path / "model.safetensors", device="neuron:1") == (set(), [])
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        assert a.device.index == 1 and torch.equal(a.cpu(), b.cpu())


def test_saving_from_the_device(tmp_path):
    x = torch.randn(3, 4, device="neuron:1")
    save_file({"x": x, "copy": x.clone()}, tmp_path / "x.safetensors")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["x"], x.cpu())
    with pytest.raises(RuntimeError, match="share memory"):
        save_file({"x": x, "view": x.view(-1)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="non contiguous"):
        save_file({"x": x.t()}, tmp_path / "x.safetensors")


ORDERS = {
    "safetensors first": "import safetensors.torch; from safetensors import safe_open; import optimum_neuron_torch",
    "plugin first": "import optimum_neuron_torch; import safetensors.torch; from safetensors import safe_open",
}
CHECK = """
import sys, safetensors, optimum_neuron_torch as ont
assert safe_open is safetensors.safe_open is safetensors.torch.safe_open
assert safe_open(sys.argv[1], "pt", device="neuron:1").get_tensor("x").device.index == 1
ont.unwire()
assert safe_open is safetensors.safe_open is safetensors.torch.safe_open
assert not hasattr(safe_open, "stock")
try:
    safe_open(sys.argv[1], "pt", device="neuron")
except safetensors.SafetensorError:
    ont.wire()
assert safetensors.torch.load_file(sys.argv[1], device="neuron")["x"].device.index == 0
"""


@pytest.mark.parametrize("order", ORDERS)
def test_either_import_order_and_undo(file, order):
    code = f"import torch; {ORDERS[order]}\n{CHECK}"
    result = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


MEASURE = """
import sys, threading, torch, optimum_neuron_torch
from safetensors.torch import load_file

def anonymous() -> int:
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

torch.ones(1, device="neuron")
before, peak, done = anonymous(), [0], threading.Event()

def watch() -> None:
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
loaded = load_file(sys.argv[1], device="neuron")
done.set()
watcher.join()
print(max(peak[0], anonymous()) - before, torch.neuron.memory_allocated())
"""


@pytest.mark.slow
def test_loading_takes_the_memory_of_the_model_alone(tmp_path):
    """The file is mapped, not read: at the peak no more than the tensors on the device, and a tenth."""
    nbytes = 16 * 2**23
    save_file({str(i): torch.randn(2**21) for i in range(16)}, tmp_path / "large.safetensors")
    command = [sys.executable, "-c", MEASURE, tmp_path / "large.safetensors"]
    peak, allocated = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert nbytes <= allocated < 1.01 * nbytes
    assert peak <= 1.1 * nbytes


def test_wired():
    assert "safetensors.safe_open" in ont.wiring.wired()
