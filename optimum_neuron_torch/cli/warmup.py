"""`optimum-cli neuron warmup`: compile a model's buckets ahead of its first call, or look up which are cached."""

import json
from argparse import ArgumentParser
from typing import Any

from optimum.commands.base import CommandInfo

from .model import add_buckets, add_model, buckets_of, load
from .verb import NeuronVerb


class WarmupCommand(NeuronVerb):
    COMMAND = CommandInfo(name="warmup", help="Compile a model's buckets into the compile cache, or look them up.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        add_model(parser)
        add_buckets(parser)
        parser.add_argument("--gradients", action="store_true", help="Also calls with gradients enabled.")
        parser.add_argument(
            "--dry-run", action="store_true", help="Say what is cached and what is missing; compile nothing."
        )
        parser.add_argument("--json", action="store_true", help="Print the steps as JSON.")

    def execute(self) -> int:
        import optimum_neuron_torch as ont

        steps = ont.warmup(
            load(self.args), buckets_of(self.args), dry_run=self.args.dry_run, gradients=self.args.gradients
        )
        if self.args.json:
            facts = ("function", "bucket", "gradients", "state", "seconds")
            print(json.dumps([{fact: getattr(step, fact) for fact in facts} for step in steps], indent=2))
        else:
            _print(steps)
        return 0


def _print(steps: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("bucket", "state", "seconds", box=None)
    for step in steps:
        table.add_row(str(step), step.state, "" if step.seconds is None else f"{step.seconds:.1f}")
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
    missing = sum(step.state == "missing" for step in steps)
    if missing:
        print(f"{missing} of {len(steps)} buckets are missing in the cache and would be compiled.")
