"""`optimum-cli neuron check`: what a model would meet on the device, before it is run there."""

from argparse import ArgumentParser

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class CheckCommand(NeuronVerb):
    COMMAND = CommandInfo(name="check", help="Say what of a model would not lower, fall back or stay unpadded.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Folder of a model, or its name on the Hub.")

    def execute(self) -> int:
        raise NotImplementedError(
            "checking a model without running it is not implemented yet. Meanwhile load it with "
            'device_map="neuron", call it once and print optimum_neuron_torch.report().'
        )
