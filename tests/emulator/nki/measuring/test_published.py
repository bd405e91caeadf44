"""Estimates against what profiles in the Neuron documentation measured, on kernels that do the same.

They are traced, without data. Times of a part of the documentation's sizes are compared with that part of its time.
"""

import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki import TensorSpec, trace
from optimum_neuron_torch.emulator.nki.chips import CHIPS


P, N = 128, 512


def tile(shape, **options):
    return nl.ndarray(shape, nl.float32, **options)


def loaded(source):
    found = tile(source.shape)
    nisa.dma_copy(dst=found, src=source)
    return found


def store(destination, product):
    copy = tile(product.shape)
    nisa.tensor_copy(dst=copy, src=product)
    nisa.dma_copy(dst=destination, src=copy)


@nki.jit
def product_of_tiles(left, right):
    """Loads both operands of every multiplication."""
    (k, m), n = left.shape, right.shape[1]
    out = tile((m, n), buffer=nl.shared_hbm)
    for row in range(0, m, P):
        for column in range(0, n, N):
            total = tile((P, N), buffer=nl.psum)
            for i in range(0, k, P):
                a = loaded(left[i : i + P, row : row + P])
                b = loaded(right[i : i + P, column : column + N])
                nisa.nc_matmul(dst=total, stationary=a, moving=b)
            store(out[row : row + P, column : column + N], total)
    return out


@nki.jit
def product_of_columns(left, right):
    """Keeps the tiles of `left` for a row of results."""
    (k, m), n = left.shape, right.shape[1]
    out = tile((m, n), buffer=nl.shared_hbm)
    for row in range(0, m, P):
        kept = [loaded(left[i : i + P, row : row + P]) for i in range(0, k, P)]
        for column in range(0, n, N):
            total = tile((P, N), buffer=nl.psum)
            for i in range(0, k, P):
                b = loaded(right[i : i + P, column : column + N])
                nisa.nc_matmul(dst=total, stationary=kept[i // P], moving=b)
            store(out[row : row + P, column : column + N], total)
    return out


@pytest.mark.parametrize(("kernel", "measured_ms"), [(product_of_tiles, 39.89), (product_of_columns, 28.20)])
def test_matrix_multiplication(kernel, measured_ms):
    # nki/guides/tutorials/kernel-optimization, first two kernels: 4096 x 8192 by 8192 x 8192 float32 on Trn2. What two
    # sizes differ by is without the start, which counts for little there.
    def estimated_us(rows, columns=2048):
        shapes = TensorSpec((8192, rows), "float32"), TensorSpec((8192, columns), "float32")
        return trace(kernel, *shapes, chip=CHIPS[3]).report.estimated_us

    part = (256 / 4096) * (2048 / 8192)
    assert estimated_us(512) - estimated_us(256) == pytest.approx(measured_ms * 1000 * part, rel=0.02)


@nki.jit
def state_space(delta, u, a, b, c):
    """`delta`, `u`: channels by steps; `a`: channels by states; `b`, `c`: states by steps. Rows of b and c are spread
    over the partitions by the Tensor Engine, as the profile shows it.
    """
    (channels, steps), states = delta.shape, b.shape[0]
    out = tile((channels, steps), buffer=nl.shared_hbm)
    ones = tile((1, P))
    nisa.memset(ones, 1.0)
    rows = [(loaded(b[i : i + 1, :]), loaded(c[i : i + 1, :])) for i in range(states)]
    for first in range(0, channels, P):
        part = slice(first, first + P)
        deltas, decays = loaded(delta[part, :]), loaded(a[part, :])
        inputs, total = tile((P, steps)), tile((P, steps))
        nisa.tensor_tensor(dst=inputs, data1=deltas, data2=loaded(u[part, :]), op=nl.multiply)
        nisa.memset(total, 0.0)
        for i, row in enumerate(rows):
            decay, fed, state, seen = tile((P, steps)), tile((P, steps)), tile((P, steps)), tile((P, steps))
            spread = [tile((P, steps), buffer=nl.psum) for _ in row]
            for moving, dst in zip(row, spread, strict=True):
                nisa.nc_matmul(dst=dst, stationary=ones, moving=moving)
            nisa.activation(dst=decay, op=nl.exp, data=deltas, scale=decays[:, i : i + 1])
            nisa.tensor_tensor(dst=fed, data1=inputs, data2=spread[0], op=nl.multiply)
            nisa.tensor_tensor_scan(dst=state, data0=decay, data1=fed, initial=0.0, op0=nl.multiply, op1=nl.add)
            nisa.tensor_tensor(dst=seen, data1=state, data2=spread[1], op=nl.multiply)
            nisa.tensor_tensor(dst=total, data1=total, data2=seen, op=nl.add)
        nisa.dma_copy(dst=out[part, :], src=total)
    return out


def test_state_space():
    # nki/guides/tutorials/fused_mamba, "mamba_v2" on Trn1: 4096 channels, 512 steps, 16 states: 1.61 ms.
    channels, steps, states = 1024, 512, 16
    shapes = [(channels, steps), (channels, steps), (channels, states), (states, steps), (states, steps)]
    report = trace(state_space, *[TensorSpec(shape, "float32") for shape in shapes], chip=CHIPS[2]).report
    assert report.estimated_us == pytest.approx(1610 * channels / 4096, rel=0.1)
    assert max(report.busy_us, key=report.busy_us.get) == "vector"
