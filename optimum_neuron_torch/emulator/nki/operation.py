"""`neuron::nki_kernel`: the operation that stands for a call of a kernel in PyTorch's graphs.

It is one for every kernel: its text says which. It changes nothing: what a kernel writes to its arguments comes out as
further results. Graphs that were stored need it to be there, so that this file loads without the simulator.
"""

from typing import Any

import torch


NAME = "neuron::nki_kernel"

library = torch.library.Library("neuron", "FRAGMENT")
library.define("nki_kernel(Tensor[] tensors, str call) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
OPERATOR = torch.ops.neuron.nki_kernel.default


def run(tensors: list[torch.Tensor], call: str) -> list[torch.Tensor]:
    """The operation on the host; the device runs it there too."""
    from . import torch_calls

    return torch_calls.run(tensors, call)


def _empty_results(tensors: list[torch.Tensor], call: str) -> list[torch.Tensor]:
    from .torch_calls import empty_results

    return empty_results(tensors, call)


def _keep_call(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.call = inputs[1]


def _refuse_gradient(ctx: Any, *gradients: Any) -> Any:
    from .torch_calls import refuse_gradient

    refuse_gradient(ctx.call)


library.impl("nki_kernel", run, "CPU")
torch.library.register_fake(NAME, _empty_results, lib=library)
torch.library.register_autograd(NAME, _refuse_gradient, setup_context=_keep_call, lib=library)
