"""What the device's dispatcher path adds to an operation: five small operations on neuron beside the CPU.

    python benchmarks/dispatch.py [--turns 41] [--calls 4000] [--json]

8 x 8 float32 tensors, one thread, gradients off, all counters on. Both devices in turns within one process; a turn is
many calls, the figure the median of the turns' differences, so that another program's load falls on both sides.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table


DEVICES = ("cpu", "neuron")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--calls", type=int, default=4000, help="calls in one turn")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = [compare(name, arguments.turns, arguments.calls) for name in operations("cpu")]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"8 x 8 float32, medians of {arguments.turns} turns of {arguments.calls} calls")
    for column in ("operation", "CPU us", "neuron us", "added us", "ratio"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for row in rows:
        table.add_row(row["operation"], *(f"{row[key]:.2f}" for key in ("cpu_us", "neuron_us", "added_us", "ratio")))
    added = statistics.median(row["added_us"] for row in rows)
    Console().print(table, f"median of the five: {added:+.2f} us", sep="\n")


def operations(device: str) -> dict[str, Callable[[], torch.Tensor]]:
    a, b = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device)
    return {
        "add": lambda: torch.add(a, b),
        "mm": lambda: torch.mm(a, b),
        "view": lambda: a.view(64),
        "empty": lambda: torch.empty(8, 8, device=device),
        "copy": lambda: a.copy_(b),
    }


def compare(name: str, turns: int, calls: int) -> dict:
    functions = {device: operations(device)[name] for device in DEVICES}
    times: dict[str, list[float]] = {device: [] for device in DEVICES}
    for turn in range(turns + 1):
        for device in DEVICES:
            function = functions[device]
            start = time.perf_counter()
            for _ in range(calls):
                function()
            if turn > 0:  # the first one warms up
                times[device].append((time.perf_counter() - start) / calls * 1e6)
    pairs = list(zip(times["cpu"], times["neuron"], strict=True))
    return {
        "operation": name,
        "cpu_us": statistics.median(times["cpu"]),
        "neuron_us": statistics.median(times["neuron"]),
        "added_us": statistics.median(neuron - cpu for cpu, neuron in pairs),
        "ratio": statistics.median(neuron / cpu for cpu, neuron in pairs),
    }


if __name__ == "__main__":
    main()
