"""Records of compiled graphs, mirrored from `torch_neuronx.neuron_dynamo_backend` as TorchNeuron does."""

from typing import Any


def get_dynamo_metrics() -> list[dict[str, Any]]:
    """One record per graph compiled in this process."""
    from torch_neuronx import neuron_dynamo_backend

    return neuron_dynamo_backend.get_dynamo_metrics()


def reset_dynamo_metrics() -> None:
    from torch_neuronx import neuron_dynamo_backend

    neuron_dynamo_backend.reset_dynamo_metrics()
