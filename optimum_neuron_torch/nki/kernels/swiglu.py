"""Gated linear units between their projections, act(gate) * up, and their gradients.

Shape legend: T rows, W width, N elements, P partitions, R elements on one partition.

What the shape is does not matter: elements are spread over the partitions as they lie in memory. The Scalar Engine
activates, the Vector Engine multiplies, and both take less time for 16-bit floats than the transfers.
"""

from typing import Any

import nki
import nki.isa as nisa
import nki.language as nl

from .rows import in_stages, loaded, row_bytes, tiles


# gelu_tanh(x) = x / 2 * (1 + tanh(u)) with u = ROOT * (x + CUBE * x^3).
ROOT = 0.7978845608028654
CUBE = 0.044715


@nki.jit
def swiglu_kernel(gate_TW, up_TW, activation="silu"):
    """`act(gate) * up`, (T, W) in their dtype.

    Args:
        gate_TW, up_TW: float32, bfloat16 or float16, of one shape and dtype; any size.
        activation: "silu", "gelu" (by the error function) or "gelu_tanh".

    The activation is computed in float32 and rounded to the dtype before it is multiplied. Runs on NeuronCore-v3 and
    later, each core taking a part of the elements.
    """
    output_TW = nl.ndarray(gate_TW.shape, dtype=gate_TW.dtype, buffer=nl.shared_hbm)
    gate_N1, up_N1, output_N1 = _flat(gate_TW), _flat(up_TW), _flat(output_TW)
    function = {"silu": nl.silu, "gelu": nl.gelu, "gelu_tanh": nl.gelu_apprx_tanh}[activation]

    def load(rows):
        return rows, loaded(gate_N1, rows), loaded(up_N1, rows)

    def activate(state):
        rows, gate, up = state
        nisa.activation(dst=gate, op=function, data=gate)
        return rows, gate, up

    def multiply(state):
        rows, activated, up = state
        nisa.tensor_tensor(dst=up, data1=activated, data2=up, op=nl.multiply)
        nisa.dma_copy(dst=rows.of(output_N1), src=up)

    in_stages(tiles(*gate_N1.shape), (load, activate, multiply), row_bytes(gate_N1, up_N1))
    return output_TW


@nki.jit
def swiglu_backward_kernel(grad_TW, gate_TW, up_TW, activation="silu"):
    """Gradients `(grad_gate_TW, grad_up_TW)` from that of the product; arguments as in `swiglu_kernel`."""
    grad_gate_TW, grad_up_TW = (nl.ndarray(gate_TW.shape, dtype=gate_TW.dtype, buffer=nl.shared_hbm) for _ in range(2))
    inputs = (_flat(grad_TW), _flat(gate_TW), _flat(up_TW))
    grad_gate_N1, grad_up_N1 = _flat(grad_gate_TW), _flat(grad_up_TW)
    activate = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh}[activation]

    def load(rows):
        return rows, *(loaded(matrix_N1, rows) for matrix_N1 in inputs)

    def differentiate(state):
        rows, grad, gate, up = state
        value, slope = activate(gate)
        return rows, grad, up, value, slope

    def multiply(state):
        rows, grad, up, value, slope = state
        nisa.tensor_tensor(dst=value, data1=grad, data2=value, op=nl.multiply)
        nisa.dma_copy(dst=rows.of(grad_up_N1), src=value)
        nisa.tensor_tensor(dst=up, data1=grad, data2=up, op=nl.multiply)
        nisa.tensor_tensor(dst=up, data1=up, data2=slope, op=nl.multiply)
        nisa.dma_copy(dst=rows.of(grad_gate_N1), src=up)

    in_stages(tiles(*inputs[0].shape), (load, differentiate, multiply), 2 * row_bytes(*inputs))
    return grad_gate_TW, grad_up_TW


def _flat(tensor_TW: Any) -> Any:
    """(N, 1): all elements, as rows of which a partition has thousands."""
    return tensor_TW.reshape((tensor_TW.shape[0] * tensor_TW.shape[1], 1))


# Values, in the dtype of the gate, and slopes, in float32


def _silu(gate: Any) -> tuple[Any, Any]:
    return _activated(gate, nl.silu, gate.dtype), _activated(gate, nl.silu_dx)


def _gelu(gate: Any) -> tuple[Any, Any]:
    return _activated(gate, nl.gelu, gate.dtype), _activated(gate, nl.gelu_dx)


def _gelu_tanh(gate: Any) -> tuple[Any, Any]:
    """The Scalar Engine has no slope of it: (1 + t) / 2 + x / 2 * (1 - t^2) * du/dx, with t = tanh(u)."""
    square = _activated(gate, nl.square)
    slope = _affine(square, ROOT * CUBE, ROOT)
    _multiply(slope, slope, gate)
    tanh = _activated(slope, nl.tanh)
    _multiply(square, _affine(square, 1.5 * ROOT * CUBE, 0.5 * ROOT), gate)  # x / 2 * du/dx
    nisa.activation(dst=slope, op=nl.square, data=tanh)
    _multiply(slope, _affine(slope, -1.0, 1.0), square)
    half = _affine(tanh, 0.5, 0.5)
    nisa.tensor_tensor(dst=slope, data1=slope, data2=half, op=nl.add)
    return _activated(gate, nl.gelu_apprx_tanh, gate.dtype), slope


def _activated(data: Any, op: Any, dtype: Any = nl.float32) -> Any:
    result = nl.ndarray(data.shape, dtype=dtype)
    nisa.activation(dst=result, op=op, data=data)
    return result


def _affine(data: Any, factor: float, summand: float) -> Any:
    """`data * factor + summand`, in float32."""
    result = nl.ndarray(data.shape, dtype=nl.float32)
    nisa.tensor_scalar(dst=result, data=data, op0=nl.multiply, operand0=factor, op1=nl.add, operand1=summand)
    return result


def _multiply(dst: Any, data1: Any, data2: Any) -> None:
    nisa.tensor_tensor(dst=dst, data1=data1, data2=data2, op=nl.multiply, engine=nisa.engine.gpsimd)
