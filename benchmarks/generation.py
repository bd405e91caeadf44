"""Decoding in buckets beside Transformers on the CPU, and what the plugin's own code costs for each token.

    python benchmarks/generation.py tokens [--dtype bfloat16 float32] [--batch 1 8] [--runs 5] [--tokens 32] [--json]
    python benchmarks/generation.py host [--layers 2 30] [--runs 9] [--json]

`tokens`: SmolLM2's generate(), prepared and plain, in turns within one process. A decoded token's time is the
difference of a long and a short call over the tokens between them; ratios are medians over the turns, of wall and of
this process's CPU seconds. The first token is the first call of all: cold with an empty cache, warm in a new process
that finds the first one's.

`host`: a model whose compiled functions give the same tensors at every call and compute nothing. Its generate() minus
the stock loop of a plain model whose forward calls nothing but that function: the plugin's own time for each token, in
CPU microseconds of this thread. The same for one bucketed forward of an encoder.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast

import optimum_neuron_torch as ont


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.packaged_models import smollm2


PROMPT = 64
VOCABULARY = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    tokens = verbs.add_parser("tokens", help="decode tokens/s over the CPU's")
    tokens.add_argument("--dtype", nargs="+", choices=["bfloat16", "float32"], default=["bfloat16", "float32"])
    tokens.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    tokens.add_argument("--tokens", type=int, default=32, help="between the short and the long call")
    tokens.add_argument("--runs", type=int, default=5, help="turns")
    tokens.add_argument("--case", action="store_true", help=argparse.SUPPRESS)  # one case, in this process
    host = verbs.add_parser("host", help="own time for each token and forward")
    host.add_argument("--layers", nargs="+", type=int, default=[2, 30])
    host.add_argument("--runs", type=int, default=9, help="turns")
    for verb in (tokens, host):
        verb.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    if arguments.verb == "tokens" and arguments.case:
        print(json.dumps(measure_tokens(arguments.dtype[0], arguments.batch[0], arguments)))
        return
    if arguments.verb == "tokens":
        rows = list(all_tokens(arguments))
    else:
        rows = [measure_host(layers, arguments.runs) for layers in arguments.layers]
    print(json.dumps(rows, indent=2)) if arguments.json else show(arguments.verb, rows)


# ---- tokens ---------------------------------------------------------------------------------------------------------


def all_tokens(arguments: argparse.Namespace):
    """Each case in two processes that share a cache of their own: the first compiles, the second is measured."""
    for dtype in arguments.dtype:
        for batch in arguments.batch:
            with tempfile.TemporaryDirectory() as directory:
                case = ["--case", "--dtype", dtype, "--batch", str(batch), "--tokens", str(arguments.tokens)]
                cold = _in_new_process([*case, "--runs", "1"], directory)
                warm = _in_new_process([*case, "--runs", str(arguments.runs)], directory)
                yield {**warm, "cold_first_s": cold["first_s"], "warm_first_s": warm["first_s"]}


def _in_new_process(case: list[str], directory: str) -> dict:
    command = [sys.executable, __file__, "tokens", *case]
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": directory}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_tokens(dtype: str, batch: int, arguments: argparse.Namespace) -> dict:
    rows = 1 << (PROMPT + arguments.tokens + 4).bit_length()
    buckets = ont.Buckets(batch=[batch], sequence=[PROMPT], cache=[rows])
    config = ont.NeuronConfig(buckets=buckets, options={"executor": "inductor"})
    model = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=dtype, device_map="neuron", neuron_config=config)
    plain = AutoModelForCausalLM.from_pretrained(smollm2(), dtype=dtype)
    ids = torch.randint(1000, 20000, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    generate(model, ids, 1)
    first = time.perf_counter() - start
    for each in (model, plain):
        generate(each, ids, 3)
    turns = [[per_token(each, ids, arguments.tokens) for each in (plain, model)] for _ in range(arguments.runs)]
    (plain_wall, plain_cpu), (wall, cpu) = (
        [statistics.median(turn[side][clock] for turn in turns) for clock in (0, 1)] for side in (0, 1)
    )
    return {
        "case": f"{dtype}, batch {batch}",
        "tokens_per_s": batch / wall,
        "cpu_tokens_per_s": batch / plain_wall,
        "wall_ratio": statistics.median(turn[0][0] / turn[1][0] for turn in turns),
        "cpu_ratio": statistics.median(turn[0][1] / turn[1][1] for turn in turns),
        "cpu_ms": cpu * 1e3,
        "plain_cpu_ms": plain_cpu * 1e3,
        "first_s": first,
    }


def generate(model: torch.nn.Module, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
    )


def per_token(model: torch.nn.Module, ids: torch.Tensor, tokens: int) -> tuple[float, float]:
    """(wall, CPU) seconds of one decoded token of all rows."""
    wall, cpu = [], []
    for count in (2, 2 + tokens):
        wall.append(-time.perf_counter())
        cpu.append(-time.process_time())
        generate(model, ids, count)
        wall[-1] += time.perf_counter()
        cpu[-1] += time.process_time()
    return (wall[1] - wall[0]) / tokens, (cpu[1] - cpu[0]) / tokens


# ---- host time ------------------------------------------------------------------------------------------------------


def measure_host(layers: int, runs: int) -> dict:
    decoder = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=256,
            pad_token_id=0,
            eos_token_id=None,
        )
    ).eval()
    ids = torch.randint(3, VOCABULARY, (1, 32))
    logits = torch.zeros(1, 1, VOCABULARY)
    bare = LlamaForCausalLM(decoder.config).eval()
    bare.forward = _answering(bare, logits)
    model = prepared(decoder)
    generate(model, ids, 4)
    hollow(model)
    generate(model, ids, 4), generate(bare, ids, 4)
    turns = [[loop_time(each, ids) for each in (model, bare)] for _ in range(runs)]
    ours = statistics.median(prepared_s - bare_s for prepared_s, bare_s in turns)
    return {"layers": layers, "token_us": ours * 1e6, "forward_us": forward_time(layers, runs) * 1e6}


def loop_time(model: torch.nn.Module, ids: torch.Tensor, tokens: int = 64) -> float:
    """Seconds of one turn of generate()'s loop."""
    short, long = (thread_time(lambda: generate(model, ids, count)) for count in (2, 2 + tokens))  # noqa: B023
    return (long - short) / tokens


def _answering(model: torch.nn.Module, logits: torch.Tensor) -> Callable:
    """A forward that does nothing, with the signature that the loop reads."""
    stock = model.forward

    def forward(input_ids=None, attention_mask=None, position_ids=None, cache=None, logits_to_keep=0, **kwargs):
        return CausalLMOutputWithPast(logits=logits, cache=cache)

    forward.__wrapped__ = stock
    return forward


def forward_time(layers: int, runs: int) -> float:
    """Seconds of one bucketed forward of an encoder, over its compiled function."""
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
    )
    model = prepared(BertModel(config).eval())
    ids = torch.randint(3, VOCABULARY, (1, 20))
    mask = torch.ones_like(ids)
    with torch.no_grad():
        model(input_ids=ids, attention_mask=mask)
        hollow(model)
        model(input_ids=ids, attention_mask=mask)
        return statistics.median(
            thread_time(lambda: [model(input_ids=ids, attention_mask=mask) for _ in range(100)]) / 100
            for _ in range(runs)
        )


def prepared(model: torch.nn.Module) -> torch.nn.Module:
    config = ont.NeuronConfig(
        buckets=ont.Buckets(batch=[1], sequence=[32], cache=[128]),
        options={"executor": "aten", "lowering": "off"},
        verify=False,
    )
    return ont.prepare(model.to("neuron"), config)


def hollow(model: torch.nn.Module) -> None:
    """Let every compiled function of `model` give its next result for ever."""
    compiled = model.__dict__["_neuron_prepared"].module.graphs._compiled
    for key, function in compiled.items():
        compiled[key] = _remembering(function)


def _remembering(function: Callable) -> Callable:
    result: list = []

    def call(*args):
        if not result:
            result.append(function(*args))
        return result[0]

    return call


def thread_time(function: Callable) -> float:
    start = time.thread_time()
    function()
    return time.thread_time() - start


# ---- tables ---------------------------------------------------------------------------------------------------------

_COLUMNS = {
    "tokens": {
        "case": "{}",
        "tokens_per_s": "{:.1f}",
        "cpu_tokens_per_s": "{:.1f}",
        "wall_ratio": "{:.2f}x",
        "cpu_ratio": "{:.2f}x",
        "cold_first_s": "{:.1f}",
        "warm_first_s": "{:.1f}",
    },
    "host": {"layers": "{}", "token_us": "{:.0f}", "forward_us": "{:.0f}"},
}


def show(verb: str, rows: list[dict]) -> None:
    titles = {"tokens": "decoding SmolLM2, over Transformers on the CPU", "host": "own time of the plugin"}
    table = Table(title=titles[verb])
    for column in _COLUMNS[verb]:
        table.add_column(column.replace("_", " "), justify="left" if column == "case" else "right")
    for row in rows:
        table.add_row(*(form.format(row[column]) for column, form in _COLUMNS[verb].items()))
    Console(width=119).print(table)


if __name__ == "__main__":
    main()
