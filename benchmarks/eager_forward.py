"""Eager forward passes of two real models on neuron beside the CPU: what the device adds to a model's time.

    python benchmarks/eager_forward.py [--turns 15] [--json]

Plain Transformers on both sides, no buckets and no compilation, float32, on the same inputs; both devices in turns
within one process, ratio of each turn, medians.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoModelForCausalLM


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.packaged_models import minilm, smollm2


SIZES = {"MiniLM": ((1, 32), (8, 128)), "SmolLM2": ((1, 32), (1, 128))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    loaders = {"MiniLM": lambda: AutoModel.from_pretrained(minilm()), "SmolLM2": load_smollm2}
    rows = [row for name, load in loaders.items() for row in compare(name, load, arguments.turns)]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(title=f"eager forward, float32, {torch.get_num_threads()} threads, medians of {arguments.turns}")
    for column in ("model", "batch x sequence", "CPU ms", "neuron ms", "neuron / CPU", "largest difference"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        figures = (f"{row[key]:.{digits}f}" for key, digits in (("cpu_ms", 1), ("neuron_ms", 1), ("ratio", 3)))
        table.add_row(row["model"], row["size"], *figures, f"{row['difference']:.1e}")
    Console().print(table)


def load_smollm2() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(smollm2(), dtype=torch.float32)


def compare(name: str, load, turns: int):
    models = {"cpu": load(), "neuron": load().to("neuron")}
    for batch, sequence in SIZES[name]:
        ids = torch.randint(1000, 20000, (batch, sequence), generator=torch.Generator().manual_seed(0))
        inputs = {
            device: {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}
            for device in models
        }
        times: dict[str, list[float]] = {device: [] for device in models}
        results = {}
        with torch.no_grad():
            for turn in range(turns + 1):
                for device, model in models.items():
                    start = time.perf_counter()
                    results[device] = model(**inputs[device])[0]
                    if turn > 0:  # the first one warms up
                        times[device].append(time.perf_counter() - start)
        yield {
            "model": name,
            "size": f"{batch} x {sequence}",
            "cpu_ms": statistics.median(times["cpu"]) * 1e3,
            "neuron_ms": statistics.median(times["neuron"]) * 1e3,
            "ratio": statistics.median(n / c for c, n in zip(times["cpu"], times["neuron"], strict=True)),
            "difference": (results["neuron"].cpu() - results["cpu"]).abs().max().item(),
        }


if __name__ == "__main__":
    main()
