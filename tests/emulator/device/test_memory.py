"""The device's memory: aliases without copies, statistics, the limit, pinned memory, files."""

from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.device import hardware


MIB = 2**20


@pytest.fixture
def limit():
    """Sets the memory limit of this process, and puts the right one back."""
    from optimum_neuron_torch.emulator.device import extension

    torch.neuron.empty_cache()
    yield lambda nbytes: extension.load().set_memory_limit(nbytes, "a test")
    machine_limit = hardware.Machine.from_environment().memory_limit()
    extension.load().set_memory_limit(machine_limit.nbytes, machine_limit.reason)


def test_host_alias_is_the_same_memory(neuron):
    x = torch.arange(12.0, device=neuron).view(3, 4).t()
    host = device.host_alias(x)
    assert host.is_cpu and host.stride() == x.stride()
    host[0, 0] = 42
    assert x[0, 0].item() == 42
    del x
    assert host[0, 0].item() == 42  # the alias keeps the memory
    with pytest.raises(TypeError, match="neuron"):
        device.host_alias(torch.ones(1))


def test_aliases_are_kept_until_the_memory_changes(neuron):
    x = torch.ones(4, device=neuron)
    assert device.host_alias(x).data_ptr() == device.host_alias(x).data_ptr() == x.data_ptr()
    x.data = torch.full((2,), 3.0, device=neuron)
    assert device.host_alias(x).tolist() == [3.0, 3.0]
    x.resize_(5000).fill_(2)
    assert device.host_alias(x).sum().item() == 10000
    assert device.host_alias(x.detach()).shape == (5000,)


def test_list_versions_pass_other_things_through(neuron):
    x, y = torch.ones(2, device=neuron), torch.zeros(3)
    hosts = device.host_aliases([x, y, 5, None])
    assert hosts[0].is_cpu and hosts[1] is y and hosts[2:] == [5, None]
    back = device.device_aliases([hosts[0], x, "text"], 0)
    assert back[0].is_neuron and back[1] is x and back[2] == "text"
    back[0].add_(1)
    assert x.tolist() == [2.0, 2.0]


def test_device_alias_is_counted_and_does_not_copy(neuron):
    host = torch.ones(MIB)
    before = torch.neuron.memory_allocated()
    x = device.device_alias(host, 0)
    assert torch.neuron.memory_allocated() - before == 4 * MIB
    x.mul_(3)
    assert host[5].item() == 3
    del x
    assert torch.neuron.memory_allocated() == before


def test_adopted_memory_is_limited_too(neuron, limit):
    limit(8 * MIB)
    host = torch.ones(4 * MIB)
    before = torch.neuron.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError, match="16.00 MiB were asked for"):
        device.device_alias(host, 0)
    assert torch.neuron.memory_allocated() == before and host[7].item() == 1
    assert device.device_alias(host[: MIB // 4].clone(), 0).sum().item() == MIB // 4


def test_results_of_the_host_are_allocated_on_the_device(neuron):
    before = torch.neuron.memory_allocated()
    with device.allocating_on(0):
        host = torch.ones(MIB)
    assert torch.ones(1).is_cpu and torch.neuron.memory_allocated() - before == 4 * MIB
    x = device.device_alias(host, 0)
    assert torch.neuron.memory_allocated() - before == 4 * MIB
    del host, x
    assert torch.neuron.memory_allocated() == before


def test_statistics(neuron):
    torch.neuron.empty_cache()
    before = torch.neuron.memory_allocated()
    torch.neuron.reset_peak_memory_stats()
    x = torch.ones(2 * MIB, device=neuron)
    y = x * 2
    assert torch.neuron.memory_allocated() - before == 16 * MIB
    assert torch.accelerator.memory_allocated() == torch.neuron.memory_allocated()
    del x, y
    assert torch.neuron.memory_allocated() == before
    assert 16 * MIB <= torch.neuron.max_memory_allocated() - before < 17 * MIB
    assert torch.neuron.memory_reserved() >= before + 16 * MIB  # kept for the next request
    torch.neuron.empty_cache()
    assert torch.neuron.memory_reserved() < before + 16 * MIB
    free, total = torch.neuron.mem_get_info()
    assert 0 < free <= total
    assert "limit" in torch.neuron.memory_summary()


def test_many_allocations_return_to_the_start(neuron):
    """Sizes of both pools, live sets that come and go in random order, on two cores."""
    random = Random(0)
    torch.neuron.empty_cache()
    start = [torch.neuron.memory_allocated(core) for core in range(2)]
    reserved = [torch.neuron.memory_reserved(core) for core in range(2)]
    live: list[tuple[int, torch.Tensor]] = []
    sizes = [0, 0]
    for _ in range(10_000):
        if live and random.random() < 0.5:
            core, tensor = live.pop(random.randrange(len(live)))
            sizes[core] -= tensor.nbytes
        else:
            core = random.randrange(2)
            tensor = torch.empty(int(2 ** random.uniform(0, 21)), dtype=torch.uint8, device=f"neuron:{core}")
            sizes[core] += tensor.nbytes
            live.append((core, tensor))
        used = [torch.neuron.memory_allocated(core) - start[core] for core in range(2)]
        assert all(have >= asked for have, asked in zip(used, sizes, strict=True))
    assert torch.neuron.memory_stats()["num_tensor_frees"] > 1000
    live.clear()
    del tensor
    assert [torch.neuron.memory_allocated(core) for core in range(2)] == start
    torch.neuron.empty_cache()
    assert [torch.neuron.memory_reserved(core) for core in range(2)] == reserved


def test_the_process_goes_on_after_running_out_of_memory(neuron, limit):
    limit(32 * MIB)
    model = torch.nn.Linear(1024, 1024, device=neuron)
    inputs = torch.ones(8, 1024, device=neuron)
    expected = model(inputs).detach().cpu()
    before = torch.neuron.memory_allocated()
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            model(inputs.repeat(4096, 1))
        with pytest.raises(torch.OutOfMemoryError):
            inputs.resize_(64 * MIB)
    assert torch.neuron.memory_allocated() == before and inputs.shape == (8, 1024)
    torch.testing.assert_close(model(inputs).detach().cpu(), expected)
    assert torch.neuron.memory_stats()["num_ooms"] >= 6


def test_memory_summary_has_what_the_statistics_have(neuron):
    x = torch.ones(3 * MIB, device=neuron)
    summary, stats = torch.neuron.memory_summary(), torch.neuron.memory_stats()
    assert f"{stats['allocated_bytes.all.current'] / MIB:.1f} MiB" in summary and "large pool" in summary
    assert len(torch.neuron.memory_summary(abbreviated=True)) < len(summary)
    del x


def test_out_of_memory_says_what_and_why(neuron, limit):
    limit(64 * MIB)
    kept = torch.empty(40 * MIB, dtype=torch.int8, device=neuron)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(50 * MIB, dtype=torch.int8, device="neuron:1")  # cores share the limit
    message = str(caught.value)
    assert "50.00 MiB were asked for" in message and "64.00 MiB (a test)" in message
    assert "NEURON_EMULATOR_HBM" in message
    with pytest.raises(torch.OutOfMemoryError):
        kept + kept  # results of operations are limited too
    torch.ones(50 * MIB, dtype=torch.int8)  # the host is not
    del kept
    torch.empty(50 * MIB, dtype=torch.int8, device=neuron)  # cached memory makes room


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "make",
    [
        lambda where: torch.empty(2, 3, device=where),
        lambda where: torch.empty(3, dtype=torch.int32, device=where),
        lambda where: torch.empty_strided((2, 3), (1, 2), dtype=torch.bfloat16, device=where),
        lambda where: torch.ones(1, device=where).resize_(3),
    ],
)
def test_new_memory_is_known_under_deterministic_algorithms(neuron, deterministic, make):
    made = make(neuron)
    assert torch.equal(made.cpu().nan_to_num(7), make("cpu").nan_to_num(7))


def test_pinned_memory(neuron):
    x = torch.ones(100)
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[50:].is_pinned() and not x.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.equal(pinned.to(neuron, non_blocking=True).cpu(), x)
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(2, device=neuron).pin_memory()


def test_safetensors(neuron, tmp_path):
    x = torch.randn(4, 3, device=neuron)
    save_file({"x": x}, tmp_path / "x.safetensors")
    assert torch.equal(load_file(tmp_path / "x.safetensors")["x"], x.cpu())


@pytest.mark.parametrize(
    ("text", "nbytes"), [("4096", 4096), ("2GiB", 2**31), ("1.5 GB", 1_500_000_000), ("512 mib", 2**29)]
)
def test_sizes(text, nbytes):
    assert hardware.parse_size(text) == nbytes


@pytest.mark.parametrize(
    ("environment", "cores", "hbm_gib"),
    [
        ({}, 4, 24),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "trn3"}, 4, 36),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 8, 12),
        ({"NEURON_RT_VISIBLE_CORES": "0-1,3"}, 3, 24),
    ],
)
def test_machine(monkeypatch, environment, cores, hbm_gib):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    machine = hardware.Machine.from_environment()
    assert machine.core_count == cores and machine.hbm_per_core == hbm_gib * 2**30


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9", "trn2, trn3"),
        ("NEURON_LOGICAL_NC_CONFIG", "3", "1 or 2"),
        ("NEURON_RT_VISIBLE_CORES", "2-7", "4 logical cores"),
        ("NEURON_RT_VISIBLE_CORES", "all", "0-3"),
    ],
)
def test_impossible_machines(monkeypatch, variable, value, says):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=says):
        hardware.Machine.from_environment()


def test_memory_limit_names_its_reason(monkeypatch):
    machine = hardware.Machine.from_environment()
    monkeypatch.setattr(hardware, "host_memory", lambda: 2**50)
    assert machine.memory_limit().nbytes == 24 * 2**30
    monkeypatch.setattr(hardware, "host_memory", lambda: 2**30)
    assert machine.memory_limit() == hardware.MemoryLimit(3 * 2**28, "75% of this host's memory, shared by all cores")
    monkeypatch.setenv("NEURON_EMULATOR_HBM", "2GiB")
    assert machine.memory_limit().nbytes == 2**31
    monkeypatch.setenv("NEURON_EMULATOR_HBM", "plenty")
    with pytest.raises(ValueError, match="not a size"):
        machine.memory_limit()
