"""What `import torch` calls (entry point group `torch.backends`): loads the emulated device without the plugin.

A module of its own, beside the package, because importing `optimum_neuron_torch.emulator` by its name would import the package above it
and so wire Transformers and Diffusers in every process that imports torch. Wiring is for those who import `optimum_neuron_torch`.
"""

import importlib.util
import sys
from pathlib import Path


EMULATOR = "optimum_neuron_torch.emulator"


def autoload() -> None:
    """Register the emulated neuron device, or step aside; never raises (torch would turn that into a failed `import torch`)."""
    try:
        _load_emulator().autoload()
    except Exception as error:
        import warnings

        warnings.warn(f"the emulated neuron device could not be loaded: {type(error).__name__}: {error}", stacklevel=2)


def _load_emulator():
    if EMULATOR in sys.modules:
        return sys.modules[EMULATOR]
    package = importlib.util.find_spec("optimum_neuron_torch")  # a top-level name: found without being imported
    folder = Path(package.submodule_search_locations[0]) / "emulator"
    spec = importlib.util.spec_from_file_location(EMULATOR, folder / "__init__.py", submodule_search_locations=[str(folder)])
    module = importlib.util.module_from_spec(spec)
    sys.modules[EMULATOR] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[EMULATOR]
        raise
    return module
