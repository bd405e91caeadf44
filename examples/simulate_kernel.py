"""An NKI kernel in the simulator: softmax over rows, checked against PyTorch, with its report and timeline.

python examples/simulate_kernel.py [--rows 512] [--columns 1024] [--cores 2] [--output DIRECTORY]
"""

import argparse
from pathlib import Path

import torch

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def softmax(scores):
    """Softmax along the columns of `scores` (rows, columns), in float32; the cores take turns at tiles of 128 rows."""
    rows, columns = scores.shape
    result = nl.ndarray((rows, columns), scores.dtype, buffer=nl.shared_hbm)
    for start in range(nl.program_id(0) * 128, rows, nl.num_programs(0) * 128):
        size = min(128, rows - start)
        tile = nl.ndarray((size, columns), scores.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=scores[start : start + size, :])

        negative_max = nl.ndarray((size, 1), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(dst=negative_max, op=nl.maximum, data=tile, axis=1, negate=True)

        # exp(x - max), and its sum per row from the same pass.
        weights = nl.ndarray((size, columns), nl.float32, buffer=nl.sbuf)
        total = nl.ndarray((size, 1), nl.float32, buffer=nl.sbuf)
        nisa.activation_reduce(
            dst=weights, op=nl.exp, data=tile, bias=negative_max, reduce_op=nl.add, reduce_res=total
        )

        nisa.reciprocal(dst=total, data=total)
        nisa.tensor_scalar(dst=tile, data=weights, op0=nl.multiply, operand0=total)
        nisa.dma_copy(dst=result[start : start + size, :], src=tile)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--cores", type=int, choices=(1, 2), default=2, help="cores of the logical NeuronCore")
    parser.add_argument("--output", type=Path, help="directory for timeline.png")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    scores = torch.randn(arguments.rows, arguments.columns)
    with nki.simulation() as reports:
        result = softmax[arguments.cores](scores)

    difference = (result - scores.softmax(-1)).abs().max().item()
    print(f"largest difference from torch.softmax: {difference:.1e}")
    print(reports[0])
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        reports[0].plot(arguments.output / "timeline.png")
        print(f"timeline: {arguments.output / 'timeline.png'}")


if __name__ == "__main__":
    main()
