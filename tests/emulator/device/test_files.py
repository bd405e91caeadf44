"""`torch.save` and `torch.load` on the device: places, shared storages, dtypes, optimizers, subclasses, bad places."""

import io

import pytest
import torch
from torch import nn


@pytest.fixture
def state(neuron) -> dict:
    base = torch.arange(12.0, device=neuron)
    return {
        "base": base,
        "rows": base.view(3, 4)[1:],
        "columns": base.view(3, 4).t(),
        "parameter": nn.Parameter(base[:3].clone()),
        "module": nn.Linear(3, 3, device="neuron:1").state_dict(),
        "bfloat16": torch.ones(2, dtype=torch.bfloat16, device=neuron),
        "float8": torch.ones(2, device=neuron).to(torch.float8_e4m3fn),
        "conjugate": torch.tensor([1 + 2j], device=neuron).conj(),
        "empty": torch.empty(0, 3, device=neuron),
        "number": torch.tensor(3, device="neuron:2"),
    }


CASES = {
    "as saved": ({}, "neuron:0", "neuron:2"),
    "host": ({"map_location": "cpu"}, "cpu", "cpu"),
    "current core": ({"map_location": "neuron"}, "neuron:0", "neuron:0"),
    "core": ({"map_location": "neuron:1"}, "neuron:1", "neuron:1"),
    "device": ({"map_location": torch.device("neuron", 3)}, "neuron:3", "neuron:3"),
    "mapping": ({"map_location": {"neuron:0": "cpu", "neuron:2": "neuron:3"}}, "cpu", "neuron:3"),
    "callable": ({"map_location": lambda storage, place: storage.neuron(1)}, "neuron:1", "neuron:1"),
    "callable that leaves it": ({"map_location": lambda storage, place: None}, "neuron:0", "neuron:2"),
    "with code": ({"map_location": "neuron:1", "weights_only": False}, "neuron:1", "neuron:1"),
    "mapped": ({"map_location": "neuron:1", "mmap": True}, "neuron:1", "neuron:1"),
    "mapped as saved": ({"mmap": True}, "neuron:0", "neuron:2"),
    "mapped host": ({"map_location": "cpu", "mmap": True}, "cpu", "cpu"),
}


def assert_loaded(loaded: dict, saved: dict, place: str, other_place: str) -> None:
    """Values, dtypes, strides, classes, places; tensors that shared a storage share a new one."""
    assert str(loaded["base"].device) == place and str(loaded["number"].device) == other_place
    for name in saved:
        pairs = [(loaded[name], saved[name])]
        if name == "module":
            pairs = [(loaded[name][key], saved[name][key]) for key in saved[name]]
        for actual, expected in pairs:
            assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
            assert torch.equal(actual.cpu().to(torch.complex64), expected.cpu().to(torch.complex64))
    assert isinstance(loaded["parameter"], nn.Parameter) and loaded["parameter"].requires_grad
    loaded["base"][4] = 99
    assert loaded["rows"][0, 0].item() == loaded["columns"][0, 1].item() == 99
    assert saved["base"][4].item() == 4


@pytest.mark.parametrize("case", CASES)
def test_places(state, tmp_path, case):
    options, place, other_place = CASES[case]
    torch.save(state, tmp_path / "state.pt")
    assert_loaded(torch.load(tmp_path / "state.pt", **options), state, place, other_place)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("place", ["cpu", "neuron:1"])
def test_streams_and_the_old_format(neuron, place, legacy):
    x, file = torch.randn(3, 4, device=neuron).t(), io.BytesIO()
    torch.save(x, file, _use_new_zipfile_serialization=not legacy)
    file.seek(0)
    loaded = torch.load(file, map_location=place)
    assert str(loaded.device) == place and torch.equal(loaded.cpu(), x.cpu())


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize(
    ("map_location", "place"),
    [
        ("neuron", "neuron:0"),
        (torch.device("neuron:2"), "neuron:2"),
        ({"cpu": "neuron:1"}, "neuron:1"),
        (lambda storage, place: storage.neuron(3), "neuron:3"),
    ],
)
def test_files_of_the_host(neuron, tmp_path, map_location, place, mmap):
    x = torch.arange(4.0)
    torch.save([x, x[1:]], tmp_path / "host.pt")
    loaded, view = torch.load(tmp_path / "host.pt", map_location=map_location, mmap=mmap)
    assert str(loaded.device) == place and view.tolist() == [1.0, 2.0, 3.0]
    view.zero_()
    assert loaded.tolist() == [0.0] * 4
    assert torch.load(tmp_path / "host.pt")[0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_current_core_is_the_place_without_an_index(neuron, tmp_path):
    torch.save(torch.ones(2), tmp_path / "x.pt")
    with torch.neuron.device(2):
        assert torch.load(tmp_path / "x.pt", map_location="neuron").device.index == 2


@pytest.mark.parametrize("map_location", ["neuron:9", {"neuron:0": "neuron:9"}])
def test_cores_that_do_not_exist(state, tmp_path, map_location):
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(RuntimeError, match=r"device 9 but torch\.neuron\.device_count\(\) is 4.*map_location"):
        torch.load(tmp_path / "state.pt", map_location=map_location)


def test_optimizers(neuron, tmp_path):
    """Steps after loading equal those of the optimizer that was saved; on the host counters, on the device moments."""
    model = nn.Linear(3, 3, device=neuron)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        model(torch.ones(1, 3, device=neuron)).sum().backward()
        optimizer.step()
        return model.weight.detach().clone()

    step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    expected = step()
    loaded = torch.load(tmp_path / "checkpoint.pt", map_location="cpu")
    assert loaded["optimizer"]["state"][0]["exp_avg"].is_cpu
    model.load_state_dict(loaded["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    optimizer.load_state_dict(loaded["optimizer"])
    moments = optimizer.state[model.weight]
    assert moments["exp_avg"].device == neuron and moments["step"].is_cpu
    assert torch.equal(step(), expected)


class Tagged(torch.Tensor):
    """A subclass without behaviour."""


@pytest.mark.parametrize("place", [None, "cpu", "neuron:1"])
def test_subclasses_and_modules(neuron, tmp_path, place):
    kept = {"tagged": torch.ones(2, device=neuron).as_subclass(Tagged), "module": nn.Linear(2, 2, device=neuron)}
    torch.save(kept, tmp_path / "kept.pt")
    loaded = torch.load(tmp_path / "kept.pt", map_location=place, weights_only=False)
    assert type(loaded["tagged"]) is Tagged
    assert {str(loaded["tagged"].device), str(loaded["module"].weight.device)} == {place or "neuron:0"}
