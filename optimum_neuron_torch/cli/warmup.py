"""`optimum-cli neuron warmup`: compile a model's buckets ahead of its first call."""

from argparse import ArgumentParser

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class WarmupCommand(NeuronVerb):
    COMMAND = CommandInfo(name="warmup", help="Compile a model's buckets into the compile cache.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Folder of a model, or its name on the Hub.")

    def execute(self) -> int:
        raise NotImplementedError(
            "warming up from the command line is not implemented yet. Meanwhile call "
            "optimum_neuron_torch.warmup(model) in Python: what it compiles stays in the cache."
        )
