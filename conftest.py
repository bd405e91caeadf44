"""Settings of the whole test run, unit and model tests: no hub, one thread, and a compile cache of its own."""

import gc
import os
import sys
import tempfile
from collections.abc import Iterator

import pytest


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Results are compared bit for bit, and those of long sums depend on how many threads share them. A backward pass on
# neuron runs on a thread of its own, which keeps the number that was set when it started.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Graphs are compiled in the background only where a test asks for it.
os.environ.setdefault("NEURON_EMULATOR_BACKGROUND", "0")

pytest_plugins = ["tests.tiny_models"]


def pytest_configure(config: pytest.Config) -> None:
    """Gives this process, and the ones that tests start, a compile cache that ends with the run."""
    folder = tempfile.TemporaryDirectory(prefix="optimum-neuron-test-cache-")
    os.environ["OPTIMUM_NEURON_CACHE"] = folder.name
    config.add_cleanup(folder.cleanup)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Files are run in any order. Where one warmed a model up, graphs of the next are no errors under strict
    "recompile"; tensors that one left in cycles do not leave the device's memory while the next measures it.
    """
    gc.collect()
    yield
    mark_warm = getattr(sys.modules.get("torch_neuronx.metrics"), "mark_warm", None)
    if mark_warm is not None:
        mark_warm(False)
