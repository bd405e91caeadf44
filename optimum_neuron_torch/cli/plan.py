"""`optimum-cli neuron plan`: choose buckets for sizes that were observed."""

import json
import sys
from argparse import ArgumentParser

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class PlanCommand(NeuronVerb):
    COMMAND = CommandInfo(name="plan", help="Choose buckets for observed input sizes, or for limits alone.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument(
            "sizes",
            nargs="?",
            help="File with observed lengths, or batch and length: JSON, JSON lines, CSV, or numbers line by line.",
        )
        parser.add_argument("--graphs", type=int, default=6, help="Number of graphs to spend on them (default: 6).")
        pair = {"type": int, "nargs": 2, "metavar": ("SMALLEST", "LARGEST")}
        parser.add_argument("--limits", **pair, help="Lengths to serve, whatever was observed.")
        parser.add_argument("--batch-limits", **pair, help="Batches to serve; needs --limits.")
        parser.add_argument("--plot", metavar="FILE", help="Draw the sizes and the buckets: a .png, .svg or .pdf.")
        parser.add_argument("--json", action="store_true", help="Print the plan as JSON.")

    def execute(self) -> int:
        import optimum_neuron_torch as ont

        limits = self.args.limits and tuple(self.args.limits)
        if self.args.batch_limits:
            if limits is None:
                raise ValueError("--batch-limits needs --limits, the lengths to serve")
            limits = (tuple(self.args.batch_limits), limits)
        made = ont.plan(self.args.sizes, graphs=self.args.graphs, limits=limits)
        print(json.dumps(made.to_dict(), indent=2) if self.args.json else made)
        if self.args.plot:
            print(f"drawn in {made.plot(self.args.plot)}", file=sys.stderr)
        return 0
