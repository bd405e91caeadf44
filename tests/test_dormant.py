"""`import torch` loads the device and not the plugin; importing the plugin, in any form, wires it."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


IS_WIRED = "print('optimum_neuron_torch.wiring' in sys.modules)"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, torch",
        "import sys, torch; torch.ones(2, device='neuron') + 1",
        "import sys, torch, torch_neuronx, torch_neuronx.metrics; torch_neuronx.metrics.report()",
        "import sys, torch; torch.compile(lambda x: x + 1, backend='neuron')(torch.ones(2, device='neuron'))",
        "import sys, torch, inspect; inspect.getmodule(inspect.currentframe())",
        "import sys, torch; [getattr(module, '__file__', None) for module in list(sys.modules.values())]",
    ],
)
def test_using_the_device_wires_nothing(code):
    assert run(f"{code}; {IS_WIRED}") == "False"


@pytest.mark.parametrize(
    "code",
    [
        "import sys, torch, optimum_neuron_torch",
        "import sys, optimum_neuron_torch",
        "import sys, torch; from optimum_neuron_torch import NeuronConfig",
        "import sys, torch; import optimum_neuron_torch.config",
        "import sys, torch; from optimum_neuron_torch.config import Buckets",
        "import sys, torch, importlib; importlib.import_module('optimum_neuron_torch')",
    ],
)
def test_importing_the_plugin_wires_it(code):
    assert (
        run(f"{code}; import optimum_neuron_torch as ont; assert ont.NeuronConfig().nki == 'torch'; {IS_WIRED}")
        == "True"
    )
