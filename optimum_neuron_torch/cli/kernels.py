"""`optimum-cli neuron kernels`: the NKI kernels, and whether they run here."""

import json
from argparse import ArgumentParser
from typing import Any

from optimum.commands.base import CommandInfo

from .verb import NeuronVerb


class KernelsCommand(NeuronVerb):
    COMMAND = CommandInfo(name="kernels", help="List the operators that launch NKI kernels, and where these run.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def execute(self) -> int:
        found = kernels()
        print(json.dumps(found, indent=2)) if self.args.json else _print_table(found)
        return 0


def kernels() -> dict[str, Any]:
    """`where` kernels run, the `cores` that one is launched on, and the `operators` by name, as plain JSON values."""
    import optimum_neuron_torch as ont

    from .. import runtime

    reason = runtime.why_no_kernels()
    if reason is not None:
        where = f"nowhere: {reason}"
    elif runtime.is_emulated():
        where = "in the simulator, within optimum_neuron_torch.nki.simulation() or NeuronConfig(nki='simulate')"
    else:
        where = "on the neuron device" if runtime.is_available() else "nowhere: there is no neuron device"
    return {"where": where, "cores": runtime.logical_core_size(), "operators": ont.nki.kernel_ops()}


def _print_table(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"kernels run {found['where']}; cores of a launch: {found['cores']}", markup=False, highlight=False)
    table = Table()
    table.add_column("operator", no_wrap=True)
    table.add_column("what it computes")
    for name, summary in found["operators"].items():
        table.add_row(name, summary)
    console.print(table)
