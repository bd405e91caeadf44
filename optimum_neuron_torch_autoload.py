"""What `import torch` calls (entry point group `torch.backends`): loads the emulated device without the plugin.

Importing `optimum_neuron_torch.emulator` also imports the package above it, which wires Transformers and Diffusers.
That is for those who import `optimum_neuron_torch` themselves, not for every process that imports torch. So the
package is put into `sys.modules` dormant, and wakes when code outside the emulator imports it (the way of
`importlib.util.LazyLoader`, with that one more condition).
"""

import importlib.util
import sys
import types


PLUGIN = "optimum_neuron_torch"
EMULATOR = f"{PLUGIN}.emulator"
# Code that may pass through the dormant package without waking it; torch pickles the emulator's stored graphs, and
# `nki` is the emulator's where the Neuron SDK is not installed.
INSIDERS = (EMULATOR, __name__, "torch_neuronx", "torch.", "importlib", "nki.")


def autoload() -> None:
    """Register the emulated neuron device, or step aside; never raises (torch would fail to import)."""
    try:
        if PLUGIN not in sys.modules:
            sys.modules[PLUGIN] = _dormant_package()
        from optimum_neuron_torch.emulator import autoload as autoload_device

        autoload_device()
    except Exception as error:
        import warnings

        message = f"the emulated neuron device could not be loaded: {type(error).__name__}: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


class _DormantPackage(types.ModuleType):
    """A package whose code has not run. Importing it, or one of its modules, from outside runs it."""

    def __getattribute__(self, name: str):
        # An import statement asks for __spec__ (is it loaded?) or __path__ (where are its modules?). Other double
        # underscores are asked for by tools that walk through all modules.
        is_telling = name in ("__spec__", "__path__") or not name.startswith("__")
        if is_telling and not _is_insider(sys._getframe(1)):
            _wake(self)
        return types.ModuleType.__getattribute__(self, name)  # its class may have changed just now


def _dormant_package() -> _DormantPackage:
    package = _DormantPackage(PLUGIN)
    spec = importlib.util.find_spec(PLUGIN)
    package.__spec__, package.__loader__, package.__file__ = spec, spec.loader, spec.origin
    package.__path__, package.__package__ = spec.submodule_search_locations, PLUGIN
    return package


def _is_insider(frame: types.FrameType | None) -> bool:
    """Whether the code that caused an access, looking past the import system's own frames, belongs to the emulator."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib"):
        frame = frame.f_back
    name = "" if frame is None else frame.f_globals.get("__name__", "")
    return f"{name}.".startswith(INSIDERS)


def _wake(package: _DormantPackage) -> None:
    package.__class__ = types.ModuleType
    try:
        package.__spec__.loader.exec_module(package)
    except BaseException:
        package.__class__ = _DormantPackage
        raise
