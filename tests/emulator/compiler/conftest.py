"""The compiler's tests keep their graphs in a directory of their own and start each test without compiled code."""

import os

import pytest
import torch


def pytest_collection_modifyitems(items):
    if not hasattr(torch, "neuron"):
        for item in items:
            item.add_marker(pytest.mark.skip(reason="the emulated neuron device is not active"))


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory):
    """A cache of this test run."""
    directory = tmp_path_factory.mktemp("neuron-cache")
    previous = os.environ.get("OPTIMUM_NEURON_CACHE")
    os.environ["OPTIMUM_NEURON_CACHE"] = str(directory)
    yield directory
    if previous is None:
        del os.environ["OPTIMUM_NEURON_CACHE"]
    else:
        os.environ["OPTIMUM_NEURON_CACHE"] = previous


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No compiled code and no records from other tests."""
    from optimum_neuron_torch.emulator.compiler import metrics

    torch._dynamo.reset()
    metrics.reset_dynamo_metrics()
    metrics.set_model_name(None)
    torch.manual_seed(0)
    yield


@pytest.fixture
def records():
    """The records of the graphs compiled so far."""
    from optimum_neuron_torch.emulator.compiler import metrics

    return metrics.get_dynamo_metrics


@pytest.fixture
def modules(monkeypatch, tmp_path):
    """The text of each module that is lowered, none of them from another test."""
    from optimum_neuron_torch.emulator.compiler import stablehlo

    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    texts = []
    lower = stablehlo.lower

    def recording(*args, **kwargs):
        lowered = lower(*args, **kwargs)
        texts.append(lowered.module)
        return lowered

    monkeypatch.setattr(stablehlo, "lower", recording)
    return texts
