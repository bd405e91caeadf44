"""Streams and events: their identity per thread and core, their order of calls, the errors of timing."""

import threading
import time

import pytest
import torch


def timed(core: int = 0) -> torch.Event:
    event = torch.neuron.Event(enable_timing=True)
    event.record(torch.neuron.Stream(core))
    return event


def test_a_stream_is_current_in_its_scope_and_on_its_core(neuron):
    outer, inner = torch.neuron.Stream(2, priority=-1), torch.Stream("neuron:1")
    with pytest.raises(KeyError), torch.neuron.stream(outer):
        assert torch.neuron.current_device() == 2 and torch.neuron.current_stream() == outer
        with inner:
            assert torch.neuron.current_stream() == inner and torch.empty(1, device="neuron").device.index == 1
            assert torch.neuron.current_stream(2) == outer
        assert torch.accelerator.current_stream() == outer
        raise KeyError
    assert torch.neuron.current_device() == 0
    assert torch.neuron.current_stream(2) == torch.neuron.default_stream(2)


def test_set_stream(neuron):
    stream = torch.neuron.Stream(3)
    try:
        torch.neuron.set_stream(None)
        assert torch.neuron.current_device() == 0
        torch.neuron.set_stream(stream)
        assert torch.neuron.current_device() == 3 and torch.neuron.current_stream() == stream
    finally:
        torch.neuron.set_stream(torch.neuron.default_stream(3))
    with torch.neuron.stream(None):
        assert torch.neuron.current_device() == 3


def test_streams_have_identity(neuron):
    assert torch.neuron.Stream() != torch.neuron.Stream()
    assert torch.neuron.current_stream() == torch.neuron.default_stream() == torch.accelerator.current_stream()
    assert hash(torch.neuron.current_stream()) == hash(torch.neuron.default_stream())
    assert isinstance(torch.neuron.current_stream(), torch.neuron.Stream)
    assert torch.neuron.Stream.priority_range() == (0, -1)


def test_current_stream_is_per_thread(neuron):
    seen = []
    with torch.neuron.stream(torch.neuron.Stream(1)):
        other = threading.Thread(
            target=lambda: seen.append((torch.neuron.current_device(), torch.neuron.current_stream(1).stream_id))
        )
        other.start()
        other.join()
    assert seen == [(0, 0)]


@pytest.mark.parametrize("make", [torch.neuron.Stream, lambda: torch.Stream("neuron")], ids=["neuron", "generic"])
def test_order_of_work(neuron, make):
    """The calls that FSDP and group offloading make; what they order is done when they return."""
    copying, computing = make(), torch.neuron.current_stream()
    with torch.neuron.stream(copying):
        x = torch.arange(1000.0).pin_memory().to(neuron, non_blocking=True)
        done = copying.record_event()
    computing.wait_event(done)
    computing.wait_stream(copying)
    x.record_stream(computing)
    total = x.sum()
    event = torch.neuron.record_event()
    torch.neuron.wait_event(event)
    torch.neuron.wait_stream(copying)
    event.wait(torch.neuron.Stream(1))  # across cores
    for waited in (event, copying, torch.neuron, torch.accelerator):
        waited.synchronize()
    assert event.query() and copying.query() and torch.neuron.query()
    assert total.item() == 499500 and event.device == torch.device("neuron:0")


def test_elapsed_time(neuron):
    start = timed()
    time.sleep(0.02)
    assert 20 <= start.elapsed_time(timed()) < 20_000


def test_events_without_times(neuron):
    new, plain = torch.neuron.Event(enable_timing=True), torch.neuron.Event()
    plain.record()
    with pytest.raises(ValueError, match="must be recorded"):
        new.elapsed_time(timed())
    with pytest.raises(ValueError, match="must be recorded"):
        timed().elapsed_time(new)
    with pytest.raises(ValueError, match="enable_timing"):
        timed().elapsed_time(plain)
    with pytest.raises(RuntimeError, match="same core.* neuron:0 and neuron:1"):
        timed(0).elapsed_time(timed(1))
    with pytest.raises(RuntimeError, match="event of neuron:0 cannot be recorded on a stream of neuron:1"):
        timed(0).record(torch.neuron.Stream(1))
    assert new.query()  # nothing to wait for
    new.synchronize()


@pytest.mark.parametrize("use", [torch.neuron.stream, torch.neuron.set_stream])
@pytest.mark.parametrize("wrong", ["neuron:0", 1])
def test_things_that_are_no_streams(neuron, use, wrong):
    with pytest.raises(TypeError, match="Expected a stream of the neuron device"):
        use(wrong)


def test_graphs_are_refused(neuron):
    with pytest.raises(RuntimeError, match="Graph is not supported on device type: neuron"):
        torch.accelerator.Graph()
