"""`optimum-cli neuron plan`: choose buckets for sizes that were observed."""

from argparse import ArgumentParser

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class PlanCommand(NeuronVerb):
    COMMAND = CommandInfo(name="plan", help="Choose buckets for observed input sizes.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("sizes", help="File with the observed sizes.")
        parser.add_argument("--graphs", type=int, default=6, help="Number of graphs to spend (default: 6).")

    def execute(self) -> int:
        import optimum_neuron_torch as ont

        print(ont.plan(self.args.sizes, graphs=self.args.graphs))
        return 0
