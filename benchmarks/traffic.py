"""Real texts of all lengths through a model: planned buckets beside one graph per shape and beside one maximum.

    python benchmarks/traffic.py [--model minilm smollm2] [--executor aten] [--texts 200] [--runs 3] [--no-shapes]

The texts are the paragraphs of scikit-learn's data set descriptions and class documentation, one by one through MiniLM
(embedding) or SmolLM2 (prefill). `first pass` includes compilation, each contender starting with an empty cache;
`steady pass` is the median of passes made in turns. CPU seconds of this process stand beside wall seconds: they are
what to read on a machine that does other work too. One graph per shape is `torch.compile` with its recompile limit
lifted, on the same executor.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import sklearn
import torch
from rich.console import Console
from rich.table import Table
from sklearn.utils.discovery import all_estimators
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import optimum_neuron_torch as ont


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.packaged_models import minilm, smollm2


LONGEST = 256
GRAPHS = 6
Call = Callable[[torch.Tensor], None]


@dataclass
class Contender:
    """One way to serve the texts. Seconds are (wall, CPU)."""

    name: str
    make: Callable[[], Call]
    padding: float
    graphs: int = 0
    first: tuple[float, float] = (0.0, 0.0)
    steady: list[tuple[float, float]] = field(default_factory=list)
    call: Call | None = None

    def row(self) -> dict:
        facts = {name: getattr(self, name) for name in ("name", "graphs", "padding", "first")}
        return {**facts, "steady": [statistics.median(column) for column in zip(*self.steady, strict=True)]}


@dataclass(frozen=True)
class Family:
    """How a model is loaded and called."""

    path: Callable[[], Path]
    auto: type
    arguments: tuple[tuple[str, object], ...]
    has_cache: bool

    def load(self, **options: object) -> torch.nn.Module:
        return self.auto.from_pretrained(self.path(), **options)


FAMILIES = {
    "minilm": Family(minilm, AutoModel, (), has_cache=False),
    "smollm2": Family(smollm2, AutoModelForCausalLM, (("use_cache", True), ("logits_to_keep", 1)), has_cache=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--executor", choices=["aten", "inductor"], default="aten")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--runs", type=at_least_one, default=3, help="steady passes of each contender")
    parser.add_argument("--no-shapes", action="store_true", help="leave out one graph per shape, which takes longest")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    for name in arguments.model:
        rows = measure(FAMILIES[name], arguments)
        print(json.dumps({name: rows}, indent=2)) if arguments.json else show(name, rows, arguments)


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def texts(count: int) -> list[str]:
    """`count` paragraphs that ship with scikit-learn, in an order of their own."""
    folder = Path(sklearn.__file__).parent / "datasets" / "descr"
    documents = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.rst"))]
    documents += [kind.__doc__ or "" for _, kind in all_estimators()]
    paragraphs = [" ".join(part.split()) for document in documents for part in document.split("\n\n")]
    paragraphs = sorted({text for text in paragraphs if len(text) >= 40 and "|" not in text})
    return random.Random(0).sample(paragraphs, count)


def measure(family: Family, arguments: argparse.Namespace) -> list[dict]:
    tokenizer = AutoTokenizer.from_pretrained(family.path())
    ids = [
        tokenizer(text, return_tensors="pt", truncation=True, max_length=LONGEST).input_ids
        for text in texts(arguments.texts)
    ]
    plan = ont.plan([row.shape[1] for row in ids], graphs=GRAPHS)
    lengths = {row.shape[1] for row in ids}
    options = {"executor": arguments.executor, "lowering": "off"}
    contenders = [
        Contender("planned buckets", lambda: bucketed(family, plan.sizes, options), plan.waste),
        Contender(
            "powers of two",
            lambda: bucketed(family, plan.peer_grids["powers of two"].sequences, options),
            plan.peers["powers of two"],
        ),
        Contender("one maximum", lambda: bucketed(family, [max(lengths)], options), plan.peers["one maximum"]),
    ]
    if not arguments.no_shapes:
        contenders.append(Contender("one graph per shape", lambda: by_shape(family, len(lengths), options), 0.0))
    contenders[0].make()(ids[0])  # what the process loads once is no contender's
    for contender in contenders:
        first_pass(contender, ids)
    for _ in range(arguments.runs):
        for contender in contenders:
            contender.steady.append(timed(contender.call, ids))
    return [contender.row() for contender in contenders]


def first_pass(contender: Contender, ids: list[torch.Tensor]) -> None:
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as directory:
        os.environ["OPTIMUM_NEURON_CACHE"] = directory
        contender.call = contender.make()
        known = ont.report().graphs
        contender.first = timed(contender.call, ids)
        contender.graphs = ont.report().graphs - known


def timed(call: Call, ids: list[torch.Tensor]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    with torch.no_grad():
        for row in ids:
            call(row)
    return time.perf_counter() - wall, time.process_time() - cpu


def bucketed(family: Family, sizes: list[int], options: dict) -> Call:
    buckets = ont.Buckets(batch=[1], sequence=list(sizes), cache=[max(sizes) + 2])
    config = ont.NeuronConfig(buckets=buckets, options=options, verify=False)
    model = family.load(device_map="neuron", neuron_config=config)
    return lambda ids: model(input_ids=ids, attention_mask=torch.ones_like(ids), **dict(family.arguments))


def by_shape(family: Family, shapes: int, options: dict) -> Call:
    model = family.load(attn_implementation="sdpa", device_map="neuron", neuron_config=False)
    compiled = torch.compile(
        model, backend="neuron", dynamic=False, options=options, recompile_limit=2 * shapes, isolate_recompiles=True
    )
    arguments = dict(family.arguments) | ({"use_cache": False} if family.has_cache else {})
    return lambda ids: compiled(input_ids=ids.to("neuron"), **arguments)


def show(name: str, rows: list[dict], arguments: argparse.Namespace) -> None:
    table = Table(title=f"{name}: {arguments.texts} texts, executor {arguments.executor}")
    for column in ("contender", "graphs", "padding", "first pass s (CPU)", "steady pass s (CPU)", "first", "steady"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    ours = rows[0]
    for row in rows:
        table.add_row(
            row["name"],
            str(row["graphs"]),
            f"{row['padding']:.1%}",
            f"{row['first'][0]:.1f} ({row['first'][1]:.1f})",
            f"{row['steady'][0]:.2f} ({row['steady'][1]:.2f})",
            f"{ours['first'][1] / row['first'][1]:.2f}x",
            f"{ours['steady'][1] / row['steady'][1]:.2f}x",
        )
    table.caption = "last two columns: CPU seconds of planned buckets over those of the row"
    Console(width=119).print(table)


if __name__ == "__main__":
    main()
