"""Registers `optimum-cli neuron`.

Read at every start of `optimum-cli`, whatever the command, so it imports nothing heavy. The folders above hold no
`__init__.py`: `optimum` is a namespace that several distributions fill (PEP 420).
"""

from optimum_neuron_torch.cli.command import NeuronCommand


REGISTER_COMMANDS = [NeuronCommand]
