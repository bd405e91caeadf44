"""Kernels in the dialect of before NKI 0.1, or with what later releases removed, and calls that fit no signature."""

import numpy as np

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


def sbuf(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)


def filled(*shape, dtype=nl.float32):
    tile = sbuf(*shape, dtype=dtype)
    nisa.memset(dst=tile, value=1.0 if dtype == nl.float32 else 1)
    return tile


# Removed arguments


@refused("mask= is gone", "slice", "dst", op="tensor_copy")
def test_mask():
    tile = filled(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=tile, mask=True)  # <- here


@refused("dtype= is gone", "destination", op="tensor_copy")
def test_dtype():
    tile = filled(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=tile, dtype=nl.bfloat16)  # <- here


@refused("psumAccumulateFlag= is gone", "accumulate", op="nc_matmul")
def test_psum_accumulate_flag():
    tile, target = filled(128, 64), nl.ndarray((64, 64), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=target, stationary=tile, moving=tile, psumAccumulateFlag=1)  # <- here


# Instructions that gave a tensor


@refused("dst", "return no tensor", op="tensor_copy")
def test_value_of_an_instruction():
    tile = filled(128, 64)
    tile = nisa.tensor_copy(src=tile)  # <- here


@refused("instruction", "dst", op="tensor_copy")
def test_handle_as_an_operand():
    tile, other = filled(128, 64), sbuf(128, 64)
    handle = nisa.tensor_copy(dst=other, src=tile)
    nisa.tensor_copy(dst=tile, src=handle)  # <- here


@refused("instruction", "dst=")
def test_handle_as_a_tensor():
    tile, other = filled(128, 64), sbuf(128, 64)
    handle = nisa.tensor_copy(dst=other, src=tile)
    handle.shape  # <- here


@refused("instruction", "dst=")
def test_handle_that_is_indexed():
    tile, other = filled(128, 64), sbuf(128, 64)
    handle = nisa.tensor_copy(dst=other, src=tile)
    handle[:, 0:4]  # <- here


@refused("handle of an instruction", "writes to", "the result")
def test_handle_as_the_result():
    tile = filled(128, 64)
    return nisa.tensor_copy(dst=sbuf(128, 64), src=tile)


@refused("'sbuf'", "write nl.sbuf", "strings")
def test_buffer_that_is_a_string():
    nl.ndarray((128, 512), nl.float32, buffer="sbuf")  # <- here


@refused("dst_rmw_op= is gone", "dma_compute", op="dma_copy")
def test_dma_that_adds():
    tile = filled(128, 64)
    nisa.dma_copy(dst=sbuf(128, 64), src=tile, dst_rmw_op=nl.add)  # <- here


# Removed names


@refused("nl.arange", "slice", "ap(")
def test_arange():
    nl.arange(128)  # <- here


@refused("nl.mgrid", "slice", "ap(")
def test_mgrid():
    nl.mgrid[0:128, 0:512]  # <- here


@refused("nl.par_dim", "first dimension")
def test_par_dim():
    nl.ndarray((nl.par_dim(128), 512), nl.float32)  # <- here


@refused("tensor_copy_dynamic_src", "tensor_copy", "scalar_offset")
def test_tensor_copy_dynamic_src():
    nisa.tensor_copy_dynamic_src  # <- here


@refused("tensor_copy_dynamic_dst", "tensor_copy", "scalar_offset")
def test_tensor_copy_dynamic_dst():
    nisa.tensor_copy_dynamic_dst  # <- here


@refused("nl.spmd_dim", "kernel[2]")
def test_spmd_dim():
    nl.spmd_dim  # <- here


@refused("nisa.nc_matmull", "nc_matmul")
def test_name_that_never_was():
    nisa.nc_matmull  # <- here


@refused("nl.bfloat61", "bfloat16")
def test_dtype_name_that_never_was():
    nl.bfloat61  # <- here


@refused("neuronxcc.nki", "import nki")
def test_import_of_the_old_package():
    import neuronxcc.nki.language  # noqa: F401  # <- here


# Arguments


@refused("src", "dst", op="tensor_copy")
def test_argument_that_is_missing():
    nisa.tensor_copy(dst=sbuf(128, 64))  # <- here


@refused("source", "src", op="tensor_copy")
def test_argument_that_does_not_exist():
    tile = filled(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), source=tile)  # <- here


@refused("dst", "src", op="tensor_copy")
def test_more_arguments_than_there_are():
    tile = filled(128, 64)
    nisa.tensor_copy(sbuf(128, 64), tile, nisa.engine.vector, 1, 2, 3)  # <- here


@refused("tensors", "array", op="tensor_copy")
def test_array_as_an_operand():
    nisa.tensor_copy(dst=sbuf(128, 64), src=np.ones((128, 64), np.float32))  # <- here


@refused("tensors", "None", op="tensor_copy")
def test_none_as_an_operand():
    nisa.tensor_copy(dst=sbuf(128, 64), src=None)  # <- here


@refused("tensors", "1.0", op="tensor_tensor")
def test_number_as_an_operand():
    tile = filled(128, 64)
    nisa.tensor_tensor(dst=sbuf(128, 64), data1=tile, data2=1.0, op=nl.add)  # <- here


@refused("op=", "np.add", "nl.", op="tensor_tensor")
def test_operator_of_numpy():
    tile = filled(128, 64)
    nisa.tensor_tensor(dst=sbuf(128, 64), data1=tile, data2=tile, op=np.add)  # <- here


@refused("engine", "'vector'", "nisa.engine", op="tensor_copy")
def test_engine_that_is_a_string():
    tile = filled(128, 64)
    nisa.tensor_copy(dst=sbuf(128, 64), src=tile, engine="vector")  # <- here


@refused("'one'", "number", op="memset")
def test_value_that_is_a_string():
    nisa.memset(dst=sbuf(128, 64), value="one")  # <- here


@refused("op=", "'add'", "nl.add", op="tensor_tensor")
def test_operator_that_is_a_string():
    tile = filled(128, 64)
    nisa.tensor_tensor(dst=sbuf(128, 64), data1=tile, data2=tile, op="add")  # <- here
