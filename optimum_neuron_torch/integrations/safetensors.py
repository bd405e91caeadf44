"""Safetensors files opened for neuron: by the number of the core, the only name of the device that the library takes.

The library maps the file and copies each tensor from there into the memory of the device: nothing is read to the host.
"""

from typing import Any

from .. import runtime


_TORCH = ("pt", "torch", "pytorch")


class OpensOnNeuron(type):
    """Type of a stand-in for `safe_open`: calls make the stock object, and `isinstance` knows it."""

    stock: type

    def __call__(cls, filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if framework in _TORCH and str(device).partition(":")[0] == runtime.DEVICE_TYPE:
            device = runtime.resolve_device(device).index
        return cls.stock(filename, framework, device, **options)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.stock)


def on_neuron(stock: type) -> type:
    """
    `safe_open` that also takes "neuron", "neuron:1" and a `torch.device` of the type as `device`.

    Raises ValueError for a core that does not exist, NeuronNotAvailableError where there is no device.
    """
    namespace = {"stock": stock, "__doc__": stock.__doc__, "__module__": stock.__module__}
    return OpensOnNeuron(stock.__name__, (), namespace)
