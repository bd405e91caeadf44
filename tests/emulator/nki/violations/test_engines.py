"""Kernels that ask an engine for what it does not do, or a chip for what a later one has."""

import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


def sbuf(*shape, dtype=nl.float32):
    tile = nl.ndarray(shape, dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0 if tile.dtype.is_packed else 1)
    return tile


def psum(*shape, dtype=nl.float32):
    tile = nl.ndarray(shape, dtype, buffer=nl.psum)
    nisa.memset(dst=tile, value=1)
    return tile


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


# GpSimd cannot reach PSUM


@refused("gpsimd", "PSUM", "vector", op="tensor_copy")
def test_gpsimd_copies_from_psum():
    source = psum(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=source, engine=nisa.engine.gpsimd)  # <- here


@refused("gpsimd", "PSUM", op="tensor_copy")
def test_gpsimd_copies_to_psum():
    source = sbuf(128, 64)
    nisa.tensor_copy(dst=psum(128, 64), src=source, engine=nisa.engine.gpsimd)  # <- here


@refused("gpsimd", "PSUM", op="memset")
def test_gpsimd_fills_psum():
    tile = nl.ndarray((128, 64), nl.float32, buffer=nl.psum)
    nisa.memset(dst=tile, value=0.0, engine=nisa.engine.gpsimd)  # <- here


@refused("gpsimd", "PSUM", op="tensor_tensor")
def test_gpsimd_adds_what_is_in_psum():
    left, right = psum(128, 64), sbuf(128, 64)
    nisa.tensor_tensor(  # <- here
        dst=sbuf(128, 64), data1=left, data2=right, op=nl.add, engine=nisa.engine.gpsimd
    )


@refused("SBUF", "psum", op="iota")
def test_iota_into_psum():
    nisa.iota(dst=psum(128, 64, dtype=nl.int32), pattern=[[1, 64]], offset=0)  # <- here


@refused("SBUF", "psum", op="affine_select")
def test_affine_select_of_what_is_in_psum():
    tile = psum(128, 64)
    nisa.affine_select(  # <- here
        dst=sbuf(128, 64), pattern=[[1, 64]], channel_multiplier=1, on_true_tile=tile, on_false_value=0.0
    )


@refused("SBUF", "psum", op="nc_n_gather")
def test_gather_from_psum():
    source, index = psum(16, 64), nl.ndarray((16, 4), nl.uint32)
    nisa.memset(dst=index, value=0)
    nisa.nc_n_gather(dst=sbuf(16, 4), data=source, indices=index)  # <- here


# What an engine has


@refused("engine=tensor", "vector", op="tensor_copy")
def test_copy_on_the_tensor_engine():
    source = sbuf(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=source, engine=nisa.engine.tensor)  # <- here


@refused("engine=scalar", "vector", op="tensor_tensor")
def test_two_tensors_on_the_scalar_engine():
    source = sbuf(128, 64)
    nisa.tensor_tensor(  # <- here
        dst=sbuf(128, 64), data1=source, data2=source, op=nl.add, engine=nisa.engine.scalar
    )


@refused("engine=dma", "vector", op="memset")
def test_memset_by_dma():
    nisa.memset(dst=nl.ndarray((128, 64), nl.float32), value=0.0, engine=nisa.engine.dma)  # <- here


@refused("engine", "gpsimd", "Tensor", "Vector", op="nc_transpose")
def test_transpose_on_gpsimd():
    source = sbuf(32, 32)
    nisa.nc_transpose(dst=sbuf(32, 32), data=source, engine=nisa.engine.gpsimd)  # <- here


@refused("32 x 32", "64", op="nc_transpose")
def test_large_transpose_on_the_vector_engine():
    source = sbuf(64, 64)
    nisa.nc_transpose(dst=sbuf(64, 64), data=source, engine=nisa.engine.vector)  # <- here


@refused("PSUM", "sbuf", op="nc_transpose")
def test_transpose_on_the_tensor_engine_into_sbuf():
    source = sbuf(64, 64)
    nisa.nc_transpose(dst=sbuf(64, 64), data=source, engine=nisa.engine.tensor)  # <- here


@refused("engine=scalar", "vector", op="tensor_scalar")
def test_bits_on_the_scalar_engine():
    source = sbuf(128, 64, dtype=nl.int32)
    nisa.tensor_scalar(  # <- here
        dst=source, data=source, op0=nl.bitwise_and, operand0=1, engine=nisa.engine.scalar
    )


@refused("engine=vector", "Sync", "Scalar", op="dma_copy")
def test_descriptors_by_the_vector_engine():
    source = sbuf(128, 64)
    nisa.dma_copy(  # <- here
        dst=hbm(128, 64), src=source, dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.vector
    )


@refused("engine=scalar", "hwdge", op="dma_copy")
def test_engine_for_descriptors_in_software():
    source = sbuf(128, 64)
    nisa.dma_copy(dst=hbm(128, 64), src=source, engine=nisa.engine.scalar)  # <- here


# Generations


@refused("activate2", "NeuronCore-v4", "Trn2", op="activate2")
def test_activate2_on_trn2():
    tile = sbuf(128, 64)
    nisa.activate2(  # <- here
        dst=tile, op=nl.exp, data=tile, imm0=1.0, imm1=0.0, op0=nl.multiply, op1=nl.add
    )


@refused("exponential", "NeuronCore-v4", "Trn2", op="exponential")
def test_exponential_on_trn2():
    tile = sbuf(128, 64)
    nisa.exponential(dst=tile, src=tile)  # <- here


@refused("priority", "NeuronCore-v4", "Trn2", op="dma_copy")
def test_dma_priority_on_trn2():
    source = sbuf(128, 64)
    nisa.dma_copy(dst=hbm(128, 64), src=source, priority=1)  # <- here


@refused("float8_e4m3fn", "NeuronCore-v4", op="nc_matmul")
def test_ocp_float8_on_trn2():
    left, right = sbuf(128, 64, dtype=nl.float8_e4m3fn), sbuf(128, 32, dtype=nl.float8_e4m3fn)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right)  # <- here


@refused("nc_matmul_mx", "NeuronCore-v4", "Trn2", op="nc_matmul_mx")
def test_mx_matmul_on_trn2():
    left, right = sbuf(32, 64, dtype=nl.float8_e4m3fn_x4), sbuf(32, 64, dtype=nl.float8_e4m3fn_x4)
    scale = sbuf(32, 64, dtype=nl.uint8)
    nisa.nc_matmul_mx(  # <- here
        dst=psum(64, 64), stationary=left, moving=right, stationary_scale=scale, moving_scale=scale
    )


@refused("quantize_mx", "NeuronCore-v4", "Trn2", op="quantize_mx")
def test_mx_quantization_on_trn2():
    tile, scale = sbuf(32, 64, dtype=nl.bfloat16), sbuf(32, 16, dtype=nl.uint8)
    nisa.quantize_mx(dst=sbuf(32, 16, dtype=nl.float8_e4m3fn_x4), src=tile, dst_scale=scale)  # <- here


@refused("tensor_copy", "Scalar", "NeuronCore-v3", "Trn1", op="tensor_copy", target="trn1")
def test_copy_on_the_scalar_engine_of_trn1():
    tile = sbuf(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=tile, engine=nisa.engine.scalar)  # <- here


@refused("bias", "NeuronCore-v2", op="activation", target="trn1")
def test_bias_of_one_number_on_trn1():
    tile = sbuf(128, 64)
    nisa.activation(dst=tile, op=nl.exp, data=tile, bias=1.0)  # <- here


@refused("range_select", "NeuronCore-v3", "Trn1", op="range_select", target="trn1")
def test_range_select_on_trn1():
    tile, bound = sbuf(128, 64), sbuf(128, 1)
    nisa.range_select(  # <- here
        dst=tile, on_true_tile=tile, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=bound, bound1=bound
    )


@refused("double_row", "NeuronCore-v3", op="nc_matmul", target="trn1")
def test_double_row_on_trn1():
    left, right = sbuf(64, 2, 32, dtype=nl.float8_e5m2), sbuf(64, 2, 32, dtype=nl.float8_e5m2)
    nisa.nc_matmul(  # <- here
        dst=psum(32, 32), stationary=left, moving=right, perf_mode=nisa.matmul_perf_mode.double_row
    )


@refused("tile_size (32, 32)", "Trn1", op="nc_matmul", target="trn1")
def test_small_tiles_on_trn1():
    left, right = sbuf(32, 32, dtype=nl.bfloat16), sbuf(32, 32, dtype=nl.bfloat16)
    nisa.nc_matmul(  # <- here
        dst=psum(32, 32), stationary=left, moving=right, tile_position=(0, 0), tile_size=(32, 32)
    )


@refused("hwdge", "NeuronCore-v3", "Trn1", op="dma_copy", target="trn1")
def test_descriptors_in_hardware_on_trn1():
    source = sbuf(128, 64)
    nisa.dma_copy(dst=hbm(128, 64), src=source, dge_mode=nisa.dge_mode.hwdge)  # <- here


def test_what_trn2_refuses_trn3_does(monkeypatch):
    """The same kernel, on the chip that has it."""
    import numpy as np

    import nki

    @nki.jit
    def kernel():
        tile, out = sbuf(128, 64), hbm(128, 64)
        nisa.exponential(dst=tile, src=tile)
        nisa.dma_copy(dst=out, src=tile, priority=1)
        return out

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
    np.testing.assert_allclose(kernel(), np.full((128, 64), np.e), rtol=1e-5)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    with pytest.raises(nisa.NkiValidationError, match="exponential needs NeuronCore-v4"):
        kernel()


@refused("nl.power", "PSUM", op="tensor_tensor")
def test_power_of_what_is_in_psum():
    """Only GpSimd computes powers."""
    left, right = psum(128, 64), sbuf(128, 64)
    nisa.tensor_tensor(dst=sbuf(128, 64), data1=left, data2=right, op=nl.power)  # <- here


@refused("PSUM", "psum", op="tensor_partition_reduce")
def test_reduction_across_partitions_of_psum():
    source = psum(128, 64)
    nisa.tensor_partition_reduce(dst=sbuf(1, 64), op=nl.add, data=source)  # <- here


@refused("engine=gpsimd", "nl.add", "vector", op="tensor_scalar")
def test_arithmetic_on_gpsimd():
    source = sbuf(128, 64)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add, operand0=1.0, engine=nisa.engine.gpsimd)  # <- here


@refused("nl.maximum", "scalar", op="tensor_scalar")
def test_maximum_on_the_scalar_engine():
    source = sbuf(128, 64)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.maximum, operand0=1.0, engine=nisa.engine.scalar)  # <- here


@refused("nl.abs_max", "NeuronCore-v4", "Trn2", op="tensor_tensor")
def test_operator_of_trn3_on_trn2():
    tile = sbuf(128, 64)
    nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.abs_max)  # <- here


@refused("indirect", "NeuronCore-v4", "Trn2")
def test_tensor_indirection_on_trn2():
    tile, index = sbuf(128, 64), sbuf(128, 1, dtype=nl.uint16)
    tile.indirect(index)  # <- here
