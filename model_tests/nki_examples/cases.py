"""Which kernels of the Neuron documentation run, on what, and what their results are compared with.

`Script` is a file that runs as it is, with a check of what it left behind. `Block` is a code block of a page: the
kernel it defines is called on arrays from here. Every reference is NumPy or PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np


BF16_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Script:
    """
    A script of the documentation.

    Args:
        check: given the script's globals and what it printed, raises where something is wrong.
        refused: for a script that shows a mistake: words of the error it is to end with.
    """

    file: str
    check: Callable[[dict[str, Any], str], None] | None = None
    platform: str = "trn2"
    arguments: tuple[str, ...] = ()
    refused: str = ""

    @property
    def name(self) -> str:
        return self.file


@dataclass(frozen=True)
class Block:
    """
    A kernel that a code block defines.

    Args:
        occurrence: which of the blocks that define a function of that name, from 0.
        inputs: makes the arguments. expected: given them, what the kernel returns, or leaves in its last argument.
        replaces: words of the block to run in place of others, where the documentation contradicts itself.
        refused: words of the error that is right, where there is one.
    """

    file: str
    kernel: str
    inputs: Callable[[], tuple[Any, ...]]
    expected: Callable[..., Any] | None = None
    occurrence: int = 0
    platform: str = "trn2"
    lnc: int = 1
    tolerance: float = 1e-5
    is_in_place: bool = False
    replaces: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    @property
    def name(self) -> str:
        change = " (nl.shared_hbm)" if self.replaces else ""
        return f"{self.file}: {self.kernel} {self.occurrence}{change}"


def _random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _indices(*shape: int, below: int, dtype: Any = np.uint32) -> np.ndarray:
    count = int(np.prod(shape))
    return np.random.default_rng(1).permutation(below)[:count].reshape(shape).astype(dtype)


def _product(lhs_t: np.ndarray, rhs: np.ndarray, *_: Any) -> np.ndarray:
    return lhs_t.astype(np.float32).T @ rhs.astype(np.float32)


def _exp(*arrays: np.ndarray) -> Any:
    results = tuple(np.exp(array.astype(np.float32)) for array in arrays)
    return results if len(results) > 1 else results[0]


def _gelu(values: np.ndarray) -> np.ndarray:
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(values * np.float32(2) + np.float32(0.5))).numpy()


def _scattered(source: np.ndarray, indices: np.ndarray, target: np.ndarray) -> np.ndarray:
    result = target.copy()
    result[indices[:, 0]] = source
    return result


def _gathered_transpose(source: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return source[indices.T.reshape(-1)].T


def _gathered_transpose_4d(source: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return source[indices.T.reshape(-1)].transpose(3, 1, 2, 0)


def _says_match(times: int) -> Callable[[dict[str, Any], str], None]:
    def check(_: dict[str, Any], printed: str) -> None:
        if printed.count("match\n") != times or "differ" in printed:
            raise AssertionError(f"expected {times} results that match:\n{printed[-2000:]}")

    return check


def _microscaled(_: dict[str, Any], printed: str) -> None:
    if printed.count("np.allclose pass? True") != 8 or "pass? False" in printed:
        raise AssertionError(f"expected 8 products that are close:\n{printed[-2000:]}")


def _split(names: dict[str, Any], _: str) -> None:
    source = names["in_tensor"]
    assert names["out1_tensor"].equal(source[:, 0::2]) and names["out2_tensor"].equal(source[:, 1::2])


def _transposed_halves(names: dict[str, Any], _: str) -> None:
    import torch

    a, out = names["a"], names["a_t_nki"]
    rows, blocks, width = 5, 3, 4
    expected = torch.arange(60, dtype=torch.int8).reshape(rows, blocks, width).transpose(1, 2).reshape(rows, -1)
    assert a.shape == (rows, blocks * width) and out.equal(expected)


def _all_two(names: dict[str, Any], _: str) -> None:
    assert bool((np.asarray(names["c"], dtype=np.float32) == 2).all())


def _all_e(names: dict[str, Any], _: str) -> None:
    assert bool((abs(names["out_tensor"].float() - np.e) < BF16_TOLERANCE * np.e).all())


def _sum(names: dict[str, Any], _: str) -> None:
    np.testing.assert_allclose(names["result"], names["a"] + names["b"], rtol=1e-5)


def _added(names: dict[str, Any], _: str) -> None:
    """The file only defines the kernel."""
    a, b = _random(256, 1024), _random(256, 1024, seed=1)
    np.testing.assert_array_equal(names["nki_tensor_add"](a, b), a + b)


SCRIPTS = [
    Script("examples/getting_started_baremetal.py", _all_two),
    Script("examples/getting_started_torch.py", _all_two),
    Script("examples/simulate/nki_simulate_example.py", _sum),
    Script("examples/tensor_addition/tensor_addition_nki_kernels.py", _added),
    Script("examples/index-case-1.py", _split),
    Script("examples/layout-pass.py", _all_e),
    Script("examples/layout-violation.py", refused="the first dimension is the partition"),
    Script("examples/transpose2d/transpose2d_torch.py", _transposed_halves),
    Script("examples/average_pool2d/average_pool2d_torch.py", _says_match(1)),
    Script("examples/matrix_multiplication/matrix_multiplication_torch.py", _says_match(5)),
    Script("examples/fused_mamba/mamba_torch.py", _says_match(1), arguments=("--mode", "accuracy")),
    Script("deep-dives/src/mxfp-matmul/mx_toplevel.py", _microscaled, platform="trn3"),
    # Listed with what is wrong in them: neither is the simulator's.
    Script("examples/layout-dynamic-loop.py", refused="was never closed"),
    Script("examples/layout-loop.py", refused="torch_neuronx"),
]

_OPTIMIZATION = "guides/tutorials/kernel-optimization.rst"
_SCHEDULING = "guides/how-to-scheduling-apis.rst"
_SHARED = {"nl.hbm": "nl.shared_hbm"}
_NOT_SHARED = "a kernel returns tensors in shared HBM"


def _small() -> tuple[Any, ...]:
    return _random(128, 128, dtype=ml_dtypes.bfloat16), _random(128, 512, dtype=ml_dtypes.bfloat16, seed=1)


def _large() -> tuple[Any, ...]:
    return _random(1024, 2048, dtype=ml_dtypes.bfloat16), _random(1024, 1024, dtype=ml_dtypes.bfloat16, seed=1)


def _three() -> tuple[Any, ...]:
    return tuple(_random(128, 64, seed=seed) for seed in range(3))


BLOCKS = [
    Block(
        "get-started/quickstart-implement-run-kernel.rst",
        "nki_tensor_add_kernel",
        lambda: (_random(4, 3, dtype=np.float16), _random(4, 3, dtype=np.float16, seed=1)),
        np.add,
        occurrence=1,
    ),
    Block(
        "get-started/nki-language-guide.rst",
        "nki_tensor_add_kernel",
        lambda: (_random(4, 3, dtype=np.float16), _random(4, 3, dtype=np.float16, seed=1)),
        np.add,
    ),
    Block(
        "get-started/nki-language-guide.rst",
        "relu_kernel",
        lambda: (_random(256, 512), np.zeros((256, 512), np.float32)),
        lambda source, _: np.maximum(source, 0),
        is_in_place=True,
    ),
    Block(
        "get-started/nki-language-guide.rst",
        "scale_kernel",
        lambda: (_random(256, 512), np.zeros((256, 512), np.float32)),
        lambda source, _: source * np.float32(0.5),
        is_in_place=True,
    ),
    Block(
        "get-started/about/tiling-overview.rst",
        "tensor_exp_kernel_",
        lambda: (_random(256, 200) + 3,),
        lambda values: 1 / values,
        occurrence=1,
        tolerance=1e-4,
    ),
    Block(
        "get-started/about/nki-dma-overview.rst",
        "tensor_exp_kernel_isa",
        lambda: (_random(128, 128, dtype=ml_dtypes.bfloat16),),
        _exp,
        occurrence=1,
        tolerance=BF16_TOLERANCE,
    ),
    *[
        Block(
            _OPTIMIZATION,
            "matrix_multiply_kernel",
            inputs,
            _product,
            occurrence=occurrence,
            tolerance=tolerance,
            replaces=replaces,
            refused="" if replaces else _NOT_SHARED,
        )
        for occurrence, (inputs, tolerance) in enumerate([(_small, 1e-4)] + [(_large, BF16_TOLERANCE)] * 4)
        for replaces in ({}, _SHARED)
    ],
    *[
        Block(_SCHEDULING, kernel, _three, _exp, occurrence=occurrence, replaces=_SHARED)
        for kernel, occurrence in (("kernel", 1), ("loop", 0), ("loop", 1))
    ],
    Block(_SCHEDULING, "kernel", lambda: (_random(128, 64) + 3,), lambda t: 1 / t + (t + 1), replaces=_SHARED),
    Block(
        "migration/index.rst",
        "sb_blocks_migrated",
        lambda: (_random(8, 128, 512),),
        lambda values: values,
        occurrence=0,
    ),
    Block(
        "migration/index.rst",
        "sb_blocks_migrated",
        lambda: (_random(8, 128, 512),),
        lambda values: values,
        occurrence=1,
    ),
    Block(
        "migration/index.rst", "sb_blocks_migrated_incorrect", lambda: (_random(8, 128, 512),), lambda values: values
    ),
    Block(
        "migration/index.rst",
        "sb_blocks",
        lambda: (_random(8, 128, 512),),
        refused="par_dim",
    ),
    Block(
        "api/nki/isa/__init__.py",
        "indirect_gather_kernel",
        lambda: (_random(200, 64), _indices(128, 1, below=200)),
        lambda data, indices: data[indices[:, 0]],
    ),
    Block(
        "api/nki/isa/__init__.py",
        "indirect_scatter_kernel",
        lambda: (_random(128, 64), _indices(128, 1, below=200), np.zeros((200, 64), np.float32)),
        _scattered,
    ),
    Block(
        "api/nki/isa/__init__.py",
        "gather_transpose_kernel",
        lambda: (_random(256, 128, dtype=ml_dtypes.bfloat16), _indices(128, 1, below=256)),
        _gathered_transpose,
    ),
    Block(
        "api/nki/isa/__init__.py",
        "gather_transpose_2d_kernel",
        lambda: (_random(512, 128, dtype=ml_dtypes.bfloat16), _indices(128, 2, below=512)),
        _gathered_transpose,
    ),
    Block(
        "api/nki/isa/__init__.py",
        "gather_transpose_4d_kernel",
        lambda: (_random(512, 1, 3, 64, dtype=ml_dtypes.bfloat16), _indices(128, 2, below=512)),
        _gathered_transpose_4d,
    ),
    Block(
        "api/nki/isa/__init__.py",
        "nc_matmul_accumulate_kernel",
        lambda: (
            _random(512, 128, dtype=ml_dtypes.bfloat16),
            _random(512, 512, dtype=ml_dtypes.bfloat16, seed=1),
        ),
        _product,
        tolerance=1e-4,
    ),
    Block(
        "api/nki/isa/__init__.py",
        "activate2_scale_bias_kernel",
        lambda: (_random(128, 256),),
        _gelu,
        platform="trn3",
        tolerance=1e-4,
    ),
    Block(
        "guides/nki_simulator.rst",
        "bad_kernel",
        lambda: (_random(128, 512),),
        refused="the first dimension is the partition",
    ),
]

CASES: dict[str, Script | Block] = {case.name: case for case in (*SCRIPTS, *BLOCKS)}
