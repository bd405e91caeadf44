"""The `neuron` command of `optimum-cli` and the table of its verbs."""

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo


class NeuronCommand(BaseOptimumCLICommand):
    COMMAND = CommandInfo(name="neuron", help="Run models on PyTorch's neuron device, or on its emulation.")
