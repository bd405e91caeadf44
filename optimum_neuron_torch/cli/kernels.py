"""`optimum-cli neuron kernels`: the NKI kernels and what uses them."""

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class KernelsCommand(NeuronVerb):
    COMMAND = CommandInfo(name="kernels", help="List the NKI kernels, their limits and the ops they stand behind.")

    def execute(self) -> int:
        raise NotImplementedError(
            "there are no NKI kernels yet: the attention registered as 'nki' computes with PyTorch's own SDPA."
        )
