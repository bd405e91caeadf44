"""How fast the attention kernels would be on the chip, by the NKI simulator's estimate.

    python benchmarks/attention_kernels.py [--library nki-library/src/nkilib_src] [--length 4096] [--json]

For Trn2 and Trn3, one core and two: the estimated time, the share of the Tensor Engine's highest rate for 16 bits, the
engine that works longest, and the most that was needed of SBUF and PSUM. `--library` names a checkout of the public
nki-library, whose attention_cte and attention_bwd then stand beside ours, for the same inputs. Kernels are traced,
without data.
Estimates come from documented clocks, no hardware is asked, and they do not depend on the machine that this runs on.
"""

import argparse
import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from nki_simulator import library_attention, show

from optimum_neuron_torch.emulator.nki import trace
from optimum_neuron_torch.emulator.nki.chips import chip_of
from optimum_neuron_torch.nki.kernels.decode_attention import decode_attention_kernel
from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel
from optimum_neuron_torch.nki.kernels.flash_attention_backward import flash_attention_backward_kernel


BATCH = 2
HEAD = 128
SCALE = HEAD**-0.5
TARGETS = ("trn2", "trn3")
CORES = (1, 2)


class Case(NamedTuple):
    name: str
    kernel: Callable
    tensors: tuple[torch.Tensor, ...]
    options: dict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, help="directory that contains `nkilib`")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    cases = [*prefill(arguments.length, arguments.library), *changed_scores(arguments.length)]
    cases += training(arguments.length, arguments.library)
    cases.append(decode(arguments.length))
    rows = [row(case, target, cores) for case in cases for target in TARGETS for cores in CORES]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        show(f"Attention in bfloat16, batch {BATCH}, head size {HEAD}", rows)


def prefill(length: int, library: Path | None) -> Iterator[Case]:
    """Ours takes (B, H, Q, D) for all three; attention_cte (B, Q, D), the keys transposed."""
    tensors = (empty(BATCH, 1, length, HEAD),) * 3
    flat = (empty(BATCH, length, HEAD), empty(BATCH, HEAD, length), empty(BATCH, length, HEAD))
    for is_causal in (True, False):
        kind = f"{length} x {length}{', causal' if is_causal else ''}"
        options = {"scale": SCALE, "is_causal": is_causal}
        yield Case(f"flash_attention {kind}", flash_attention_kernel, tensors, options)
        if library is not None:
            options = {"scale": SCALE, "causal_mask": is_causal, "tp_q": True}
            yield Case(f"attention_cte {kind}", library_attention(library), flat, options)


def changed_scores(length: int) -> Iterator[Case]:
    """Scores that a bias or a cap changes before the softmax."""
    tensors = (empty(BATCH, 1, length, HEAD),) * 3
    for name, option in (("bias", {"bias_BHQK": empty(1, 1, length, length)}), ("softcap", {"softcap": 50.0})):
        for is_causal in (True, False):
            kind = f"{length} x {length}, {name}{', causal' if is_causal else ''}"
            options = {"scale": SCALE, "is_causal": is_causal, **option}
            yield Case(f"flash_attention {kind}", flash_attention_kernel, tensors, options)


def training(length: int, library: Path | None) -> Iterator[Case]:
    """The backward. Ours takes (B, H, Q, D) and the logsumexp; attention_bwd all transposed, and float32 sums."""
    grad, *tensors = (empty(BATCH, 1, length, HEAD),) * 5
    logsumexp = torch.empty(BATCH, 1, length, dtype=torch.float32, device="meta")
    for is_causal in (True, False):
        kind = f"{length} x {length}{', causal' if is_causal else ''}"
        options = {"scale": SCALE, "is_causal": is_causal}
        yield Case(
            f"flash_attention_backward {kind}",
            flash_attention_backward_kernel,
            (grad, *tensors, logsumexp),
            options,
        )
        if library is not None:
            transposed = (empty(BATCH, 1, HEAD, length),) * 5
            by_tiles = logsumexp.reshape(BATCH, 1, 128, -1)
            options = {"softmax_scale": SCALE, "use_causal_mask": is_causal, "mixed_precision": True}
            kernel = library_attention(library, "attention_bwd")
            yield Case(f"attention_bwd {kind}", kernel, (*transposed, by_tiles), options)


def decode(length: int) -> Case:
    cache = empty(BATCH, 8, length, HEAD)
    ranges = torch.empty(BATCH, 1, 2, dtype=torch.int32, device="meta")
    tensors = (empty(BATCH, 32, 1, HEAD), cache, cache, ranges)
    return Case(f"decode_attention 1 x {length}, 32 heads of 8", decode_attention_kernel, tensors, {"scale": SCALE})


def empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def row(case: Case, target: str, cores: int) -> dict:
    with contextlib.redirect_stdout(io.StringIO()):  # kernels print
        report = trace(case.kernel, *case.tensors, lnc=cores, chip=chip_of(target), **case.options).report
    engine, busy_us = max(report.busy_us.items(), key=lambda item: item[1])
    peaks = {space: f"{peak.nbytes / peak.limit:.0%}" for space, peak in report.peaks.items()}
    return {
        "kernel": case.name,
        "chip": target,
        "cores": str(cores),
        "us": report.estimated_us,
        "Tensor Engine": f"{report.matmul_utilisation:.1%}",
        "busiest": f"{engine} {busy_us / report.estimated_us:.0%}",
        "SBUF": peaks["sbuf"],
        "PSUM": peaks["psum"],
    }


if __name__ == "__main__":
    main()
