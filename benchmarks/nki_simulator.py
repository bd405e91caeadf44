"""What the NKI simulator takes per instruction, and for whole kernels beside the same computation in PyTorch.

    python benchmarks/nki_simulator.py [--library nki-library/src/nkilib_src] [--turns 9] [--json]

One thread, in turns within one process; figures are medians of the turns, in CPU time, so that the load of other
programs falls on both sides and counts little. `--library` names a checkout of the public nki-library, whose attention
kernel then runs unmodified.
"""

import argparse
import contextlib
import functools
import importlib
import io
import json
import os
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path


for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # read when NumPy and torch are imported
    os.environ[variable] = "1"

import torch  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from optimum_neuron_torch.emulator.nki import install  # noqa: E402


install()

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402


ATTENTION_SIZES = ((2048, 128), (4096, 128))
REPEATS = 64  # of one instruction in a kernel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="directory that contains `nkilib`")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = {"instructions": instruction_rows(arguments.turns), "kernels": kernel_rows(arguments)}
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    show("One instruction on 128 x 512 elements", rows["instructions"])
    show(f"Whole kernels, medians of {arguments.turns} turns", rows["kernels"])


def show(title: str, rows: list[dict]) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:,.4g}" for value in row.values()))
    Console(width=120).print(table)


def instruction_rows(turns: int) -> list[dict]:
    """Each instruction `REPEATS` times in a kernel, less the same kernel without them."""
    rows = []
    for name, issue in INSTRUCTIONS.items():
        for dtype in (torch.float32, torch.bfloat16):
            times: dict[int, list[float]] = {0: [], REPEATS: []}
            tile = torch.rand(128, 512).to(dtype)
            for turn in range(turns + 1):
                for repeats, taken in times.items():
                    elapsed = seconds_of(functools.partial(repeated, tile, issue, repeats))
                    if turn:  # the first one warms up
                        taken.append(elapsed)
            pairs = zip(times[0], times[REPEATS], strict=True)
            added = statistics.median(many - none for none, many in pairs)
            rows.append({"instruction": name, "dtype": str(dtype).removeprefix("torch."), "us": added / REPEATS * 1e6})
    return rows


@nki.jit
def repeated(tile, issue, repeats):
    result = nl.ndarray(tile.shape, tile.dtype, buffer=nl.shared_hbm)
    source, other = nl.ndarray(tile.shape, tile.dtype), nl.ndarray(tile.shape, tile.dtype)
    column = nl.ndarray((tile.shape[0], 1), nl.float32)
    total = nl.ndarray(tile.shape, nl.float32, buffer=nl.psum)
    nisa.dma_copy(dst=source, src=tile)
    nisa.dma_copy(dst=other, src=tile)
    nisa.memset(dst=column, value=1.0)
    for _ in range(repeats):
        issue(other, source, column, total, result)
    nisa.dma_copy(dst=result, src=other)
    return result


INSTRUCTIONS: dict[str, Callable] = {
    "dma_copy": lambda dst, src, column, total, result: nisa.dma_copy(dst=result, src=src),
    "tensor_copy": lambda dst, src, column, total, result: nisa.tensor_copy(dst=dst, src=src),
    "tensor_tensor add": lambda dst, src, column, total, result: nisa.tensor_tensor(
        dst=dst, data1=src, data2=src, op=nl.add
    ),
    "tensor_scalar multiply, add": lambda dst, src, column, total, result: nisa.tensor_scalar(
        dst=dst, data=src, op0=nl.multiply, operand0=column, op1=nl.add, operand1=1.0
    ),
    "tensor_reduce maximum": lambda dst, src, column, total, result: nisa.tensor_reduce(
        dst=column, op=nl.maximum, data=src, axis=1
    ),
    "activation exp": lambda dst, src, column, total, result: nisa.activation(dst=dst, op=nl.exp, data=src),
    "nc_matmul 128 x 128 x 512": lambda dst, src, column, total, result: nisa.nc_matmul(
        dst=total, stationary=src[:, 0:128], moving=src, accumulate=False
    ),
}


def kernel_rows(arguments: argparse.Namespace) -> list[dict]:
    left, right = torch.rand(1024, 1024).bfloat16(), torch.rand(1024, 1024).bfloat16()
    rows = [row("matmul 1024", lambda: product(left, right), lambda: left.T @ right, arguments.turns)]
    if arguments.library is None:
        return rows
    attention = library_attention(arguments.library)
    for length, depth in ATTENTION_SIZES:
        query, key, value = (torch.randn(1, length, depth).bfloat16() for _ in range(3))
        key_transposed = key.transpose(1, 2).contiguous()
        rows.append(
            row(
                f"attention_cte {length} x {depth}, causal",
                lambda q=query, k=key_transposed, v=value: attention(
                    q, k, v, scale=q.shape[-1] ** -0.5, causal_mask=True, tp_q=True
                ),
                lambda q=query, k=key, v=value: torch.nn.functional.scaled_dot_product_attention(
                    q[:, None], k[:, None], v[:, None], is_causal=True
                ),
                arguments.turns,
            )
        )
    return rows


@nki.jit
def product(left, right):
    """`left.T @ right` in tiles, each column of them on chip once."""
    result = nl.ndarray((left.shape[1], right.shape[1]), left.dtype, buffer=nl.shared_hbm)
    depth = left.shape[0] // 128
    for n in range(right.shape[1] // 512):
        columns = nl.ndarray((128, depth, 512), right.dtype)
        for k in range(depth):
            nisa.dma_copy(dst=columns[:, k], src=right[nl.ds(k * 128, 128), nl.ds(n * 512, 512)])
        for m in range(left.shape[1] // 128):
            total = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for k in range(depth):
                rows = nl.ndarray((128, 128), left.dtype)
                nisa.dma_copy(dst=rows, src=left[nl.ds(k * 128, 128), nl.ds(m * 128, 128)])
                nisa.nc_matmul(dst=total, stationary=rows, moving=columns[:, k])
            finished = nl.ndarray((128, 512), result.dtype)
            nisa.tensor_copy(dst=finished, src=total)
            nisa.dma_copy(dst=result[nl.ds(m * 128, 128), nl.ds(n * 512, 512)], src=finished)
    return result


def library_attention(directory: Path, name: str = "attention_cte") -> Callable:
    """One of the library's kernels, without what its packages import beside it."""
    sys.path.insert(0, str(directory))
    for parent in ("nkilib", "nkilib.core", "nkilib.core.attention", "nkilib.core.utils"):
        package = sys.modules[parent] = types.ModuleType(parent)
        package.__path__ = [str(directory / parent.replace(".", "/"))]
    return nki.jit(getattr(importlib.import_module(f"nkilib.core.attention.{name}"), name))


def row(name: str, simulated: Callable, on_cpu: Callable, turns: int) -> dict:
    times: dict[Callable, list[float]] = {simulated: [], on_cpu: []}
    with nki.simulation() as reports:
        simulated()
    report = reports[0]
    asked = seconds_of(lambda: report.estimated_us)
    for turn in range(turns + 1):
        for function, taken in times.items():
            elapsed = seconds_of(function)
            if turn:
                taken.append(elapsed)
    instructions = sum(report.instructions.values())
    host, cpu = (statistics.median(times[function]) for function in (simulated, on_cpu))
    return {
        "kernel": name,
        "instructions": instructions,
        "ms": host * 1e3,
        "us each": host / instructions * 1e6,
        "CPU ms": cpu * 1e3,
        "ratio": statistics.median(a / b for a, b in zip(times[simulated], times[on_cpu], strict=True)),
        "estimate us": report.estimated_us,
        "made in ms": asked * 1e3,
    }


def seconds_of(function: Callable) -> float:
    with contextlib.redirect_stdout(io.StringIO()):  # kernels print
        start = time.process_time()
        function()
        return time.process_time() - start


if __name__ == "__main__":
    main()
