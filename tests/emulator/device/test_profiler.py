"""torch.profiler on the device: operations, copies, graphs and memory, linked to the calls that started them."""

import json
import threading
import time

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function, schedule


ACTIVITIES = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def device_events(profiler: profile) -> list:
    return [event for event in profiler.events() if event.device_type == DeviceType.PrivateUse1]


def test_operations_and_copies_are_on_the_device(neuron):
    x = torch.randn(32, 32, requires_grad=True)
    with profile(activities=ACTIVITIES) as profiler, record_function("step"):
        y = x.to(neuron)
        (y @ y).relu().sum().backward()
    names = [event.name for event in device_events(profiler)]
    assert names.count("neuron aten::mm") == 3  # forward, and two in the backward pass on a thread of its own
    assert "neuron aten::relu" in names and "Memcpy HtoD" in names and "Memcpy DtoH" in names
    assert all(event.device_index == 0 for event in device_events(profiler))


def test_device_time_belongs_to_the_operation_that_started_it(neuron):
    x = torch.randn(64, 64, device=neuron)
    with profile(activities=ACTIVITIES) as profiler:
        x @ x
        x @ x
    rows = {row.key: row for row in profiler.key_averages() if row.device_type == DeviceType.CPU}
    kernels = [event for event in device_events(profiler) if event.name == "neuron aten::mm"]
    assert rows["aten::mm"].count == len(kernels) == 2
    # The table has whole microseconds.
    assert rows["aten::mm"].device_time_total == pytest.approx(sum(k.device_time_total for k in kernels), abs=1)
    assert "neuron aten::mm" in profiler.key_averages().table(sort_by="device_time_total")


def test_other_cores_and_threads(neuron):
    def work() -> None:
        torch.ones(4, device="neuron:1").exp_()

    with profile(activities=ACTIVITIES) as profiler:
        torch.ones(4, device=neuron).log_()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    cores = {event.name: event.device_index for event in device_events(profiler)}
    assert cores["neuron aten::log_"] == 0 and cores["neuron aten::exp_"] == 1


def test_memory(neuron):
    with profile(activities=ACTIVITIES, profile_memory=True) as profiler:
        kept = torch.ones(1024, 256, device=neuron)
        kept * 2
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::ones"].device_memory_usage == kept.nbytes == 2**20
    assert rows["aten::ones"].cpu_memory_usage == 0


def test_a_compiled_graph_is_one_range(neuron):
    function = torch.compile(lambda x: (x.sin() + 1).sum(), backend="neuron", options={"executor": "aten"})
    x = torch.ones(5, device=neuron)
    function(x)
    with profile(activities=ACTIVITIES) as profiler:
        function(x)
    names = [event.name for event in device_events(profiler)]
    assert len(names) == 1 and names[0].startswith("neuron graph ")


def test_chrome_trace(neuron, tmp_path):
    with profile(activities=ACTIVITIES) as profiler:
        torch.ones(8, 8, device=neuron).cpu()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy"]
    assert [copy["args"]["bytes"] for copy in copies] == [256]
    assert {"neuron:0"} <= {event["args"]["name"] for event in events if event.get("name") == "process_name"}


def test_schedule_records_only_its_steps(neuron):
    x = torch.ones(3, device=neuron)
    seen: list[list[str]] = []
    with profile(
        activities=ACTIVITIES,
        schedule=schedule(wait=1, warmup=1, active=1, repeat=2),
        on_trace_ready=lambda profiler: seen.append([event.name for event in device_events(profiler)]),
    ) as profiler:
        for step in (torch.sin, torch.cos, torch.tan) * 2:
            step(x)
            profiler.step()
    assert seen == [["neuron aten::tan"]] * 2


def test_without_the_device_activity_nothing_is_recorded(neuron):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        torch.ones(3, device=neuron).exp()
    assert device_events(profiler) == []
    assert "aten::exp" in {event.name for event in profiler.events()}


def test_markers_of_the_older_profiler(neuron):
    x = torch.randn(128, 128, device=neuron)
    with torch.autograd.profiler.profile(use_device="neuron", use_kineto=False) as profiler:
        x @ x
    rows = {row.key: row for row in profiler.key_averages()}
    assert rows["aten::mm"].device_time_total > 0


def test_elapsed_time_of_events(neuron):
    start, end = torch.neuron.Event(enable_timing=True), torch.neuron.Event(enable_timing=True)
    start.record()
    time.sleep(0.02)
    end.record()
    torch.neuron.synchronize()
    assert 20 <= start.elapsed_time(end) < 2000
    assert end.elapsed_time(start) <= -20
