"""`optimum-cli neuron check`: what a model would meet on the device, before it is run there."""

import json
from argparse import ArgumentParser
from dataclasses import asdict

from optimum.commands.base import CommandInfo

from .model import check_model
from .verb import FAILED, NeuronVerb


class CheckCommand(NeuronVerb):
    COMMAND = CommandInfo(name="check", help="Say what of a model would not lower, fall back or stay unpadded.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("model", help="Folder of a model, or its name on the Hub; its configuration is enough.")
        parser.add_argument("--json", action="store_true", help="Print the findings as JSON.")

    def execute(self) -> int:
        from rich.console import Console
        from rich.table import Table

        from ..integrations.checking import check

        check_model(self.args.model)
        findings = check(self.args.model)
        if self.args.json:
            print(json.dumps([asdict(finding) for finding in findings], indent=2))
        else:
            table = Table(box=None, show_header=False)
            for finding in findings:
                table.add_row("ok" if finding.is_good else "!", finding.what, finding.detail)
            Console(soft_wrap=True, highlight=False, markup=False).print(table)
        return 0 if all(finding.is_good for finding in findings) else FAILED
