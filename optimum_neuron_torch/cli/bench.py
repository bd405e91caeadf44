"""`optimum-cli neuron bench`: time a model in its buckets."""

from argparse import ArgumentParser

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class BenchCommand(NeuronVerb):
    COMMAND = CommandInfo(name="bench", help="Time a model: compilation, steady state, padding.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Folder of a model, or its name on the Hub.")

    def execute(self) -> int:
        raise NotImplementedError(
            "timing a model from the command line is not implemented yet. Meanwhile use the programs in benchmarks/."
        )
