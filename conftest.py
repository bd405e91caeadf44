"""Settings of the whole test run, unit and model tests: no hub, and a compile cache of its own."""

import os
import tempfile

import pytest


os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

pytest_plugins = ["tests.tiny_models"]


def pytest_configure(config: pytest.Config) -> None:
    """Gives this process, and the ones that tests start, a compile cache that ends with the run."""
    folder = tempfile.TemporaryDirectory(prefix="optimum-neuron-test-cache-")
    os.environ["OPTIMUM_NEURON_CACHE"] = folder.name
    config.add_cleanup(folder.cleanup)
