"""Kernels whose operands have shapes, dtypes or values that an instruction does not take."""

import numpy as np

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


def sbuf(*shape, dtype=nl.float32, **options):
    """A tile in SBUF that is filled with ones."""
    tile = nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)
    if not tile.dtype.is_packed:
        nisa.memset(dst=tile, value=1)
    return tile


def psum(*shape, dtype=nl.float32):
    tile = nl.ndarray(shape, dtype, buffer=nl.psum)
    nisa.memset(dst=tile, value=1)
    return tile


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def matrix(rows, columns, dtype=nl.bfloat16):
    return sbuf(rows, columns, dtype=dtype)


# Shapes


@refused("64 partitions", "128", "[64, 512]", op="tensor_copy")
def test_copy_to_fewer_partitions():
    source, target = sbuf(128, 512), sbuf(64, 512)
    nisa.tensor_copy(dst=target, src=source)  # <- here


@refused("512", "256", "[128, 256]", op="tensor_copy")
def test_copy_to_fewer_elements():
    source, target = sbuf(128, 512), sbuf(128, 256)
    nisa.tensor_copy(dst=target, src=source)  # <- here


@refused("[128, 1]", "[128, 512]", op="tensor_tensor")
def test_operands_are_not_broadcast():
    source, column = sbuf(128, 512), sbuf(128, 1)
    nisa.tensor_tensor(dst=source, data1=source, data2=column, op=nl.add)  # <- here


@refused("operand0", "(128, 1)", "[64, 1]", op="tensor_scalar")
def test_operand_of_other_partitions():
    source, column = sbuf(128, 512), sbuf(64, 1)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add, operand0=column)  # <- here


@refused("operand0", "(128, 1)", "[128, 2]", op="tensor_scalar")
def test_operand_of_two_numbers_per_partition():
    source, columns = sbuf(128, 512), sbuf(128, 2)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add, operand0=columns)  # <- here


@refused("operand0", "nl.add", op="tensor_scalar")
def test_operator_without_its_operand():
    source = sbuf(128, 512)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add)  # <- here


@refused("operand1", "op1", op="tensor_scalar")
def test_operand_without_its_operator():
    source = sbuf(128, 512)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add, operand0=1.0, operand1=2.0)  # <- here


@refused("axis=0", "partition", op="tensor_reduce")
def test_reduction_of_partitions():
    source, target = sbuf(128, 512), sbuf(128, 1)
    nisa.tensor_reduce(dst=target, op=nl.add, data=source, axis=0)  # <- here


@refused("axis=1", "last", "[128, 8, 64]", op="tensor_reduce")
def test_reduction_of_a_dimension_in_the_middle():
    source, target = sbuf(128, 8, 64), sbuf(128, 64)
    nisa.tensor_reduce(dst=target, op=nl.add, data=source, axis=1)  # <- here


@refused("axis", "2", "sbuf float32[128, 512]", op="tensor_reduce")
def test_reduction_of_a_dimension_that_does_not_exist():
    source, target = sbuf(128, 512), sbuf(128, 1)
    nisa.tensor_reduce(dst=target, op=nl.add, data=source, axis=2)  # <- here


@refused("[128, 2]", "dst", op="tensor_reduce")
def test_reduction_into_another_shape():
    source, target = sbuf(128, 512), sbuf(128, 2)
    nisa.tensor_reduce(dst=target, op=nl.add, data=source, axis=1)  # <- here


@refused("one partition", "[128, 512]", op="tensor_partition_reduce")
def test_reduction_across_partitions_into_all_of_them():
    source, target = sbuf(128, 512), sbuf(128, 512)
    nisa.tensor_partition_reduce(dst=target, op=nl.add, data=source)  # <- here


@refused("32768 elements into 65536", "[128, 512]", op="dma_copy")
def test_dma_of_fewer_elements():
    target, source = sbuf(128, 512), sbuf(64, 512)
    nisa.dma_copy(dst=target, src=source)  # <- here


@refused("[64, 128]", "[128, 64]", "dst", op="dma_transpose")
def test_dma_transpose_into_the_shape_of_its_source():
    nisa.dma_transpose(dst=sbuf(128, 64, dtype=nl.bfloat16), src=hbm(128, 64, dtype=nl.bfloat16))  # <- here


@refused("axes=(0, 1)", "(1, 0)", op="dma_transpose")
def test_dma_transpose_by_other_axes():
    source, target = hbm(128, 64, dtype=nl.bfloat16), sbuf(64, 128, dtype=nl.bfloat16)
    nisa.dma_transpose(dst=target, src=source, axes=(0, 1))  # <- here


@refused("8", "[128, 16]", op="max8")
def test_sixteen_largest_values():
    source, target = sbuf(128, 512), sbuf(128, 16)
    nisa.max8(dst=target, src=source)  # <- here


@refused("8 to 16384", "[128, 4]", op="max8")
def test_largest_of_four_values():
    source, target = sbuf(128, 4), sbuf(128, 8)
    nisa.max8(dst=target, src=source)  # <- here


@refused("512", "600", op="bn_stats")
def test_statistics_of_too_many_elements():
    source, target = sbuf(128, 600), sbuf(128, 6)
    nisa.bn_stats(dst=target, data=source)  # <- here


@refused("triples", "[128, 8]", op="bn_aggr")
def test_statistics_that_are_no_triples():
    source, target = sbuf(128, 8), sbuf(128, 2)
    nisa.bn_aggr(dst=target, data=source)  # <- here


@refused("pattern", "256", "[128, 512]", op="iota")
def test_pattern_of_other_size():
    nisa.iota(dst=sbuf(128, 512, dtype=nl.int32), pattern=[[1, 256]], offset=0)  # <- here


@refused("pattern", "four", op="iota")
def test_pattern_of_five_dimensions():
    nisa.iota(dst=sbuf(128, 32, dtype=nl.int32), pattern=[[1, 2]] * 5, offset=0)  # <- here


@refused("32", "31", op="nc_stream_shuffle")
def test_shuffle_mask_of_31():
    source, target = sbuf(128, 64), sbuf(128, 64)
    nisa.nc_stream_shuffle(dst=target, src=source, shuffle_mask=list(range(31)))  # <- here


@refused("32", "255", op="nc_stream_shuffle")
def test_shuffle_from_another_quadrant():
    source, target = sbuf(128, 64), sbuf(128, 64)
    nisa.nc_stream_shuffle(dst=target, src=source, shuffle_mask=[32] * 32)  # <- here


@refused("num_elem_per_idx=3", "16", op="local_gather")
def test_gather_of_three_elements_at_once():
    source, index = sbuf(16, 64), sbuf(16, 1, dtype=nl.uint16)
    nisa.local_gather(dst=sbuf(16, 48), src_buffer=source, index=index, num_elem_per_idx=3)  # <- here


@refused("out of bounds", "64", op="nc_n_gather")
def test_gather_past_the_end():
    source, index = sbuf(16, 64), nl.ndarray((16, 4), nl.uint32)
    nisa.memset(dst=index, value=64)
    nisa.nc_n_gather(dst=sbuf(16, 4), data=source, indices=index)  # <- here


# Matrix multiplication


@refused("64 partitions", "128", op="nc_matmul")
def test_matmul_of_different_contractions():
    left, right = matrix(64, 32), matrix(128, 32)
    nisa.nc_matmul(dst=psum(32, 32), stationary=left, moving=right)  # <- here


@refused("160", "128", op="nc_matmul")
def test_matmul_with_too_many_stationary_columns():
    left, right = matrix(128, 160), matrix(128, 32)
    nisa.nc_matmul(dst=psum(128, 40), stationary=left, moving=right)  # <- here


@refused("600", "512", op="nc_matmul")
def test_matmul_with_too_many_moving_columns():
    left, right = matrix(128, 64), matrix(128, 600)
    nisa.nc_matmul(dst=psum(64, 600), stationary=left, moving=right)  # <- here


@refused("(64, 32)", "[32, 64]", op="nc_matmul")
def test_matmul_into_the_transposed_shape():
    left, right = matrix(128, 64), matrix(128, 32)
    nisa.nc_matmul(dst=psum(32, 64), stationary=left, moving=right)  # <- here


@refused("float32", "bfloat16", "tensor_copy", op="nc_matmul")
def test_matmul_of_float32_and_bfloat16():
    left, right = matrix(128, 64, nl.float32), matrix(128, 32)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right)  # <- here


@refused("int32", "bfloat16", op="nc_matmul")
def test_matmul_of_integers():
    left, right = matrix(128, 64, nl.int32), matrix(128, 32, nl.int32)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right)  # <- here


@refused("dst is bfloat16", "float32", "Trn2", op="nc_matmul")
def test_matmul_into_bfloat16():
    left, right = matrix(128, 64), matrix(128, 32)
    nisa.nc_matmul(dst=psum(64, 32, dtype=nl.bfloat16), stationary=left, moving=right)  # <- here


@refused("bank", "2048", op="nc_matmul")
def test_matmul_across_two_banks():
    left, right = matrix(128, 64), matrix(128, 512)
    target = nl.ndarray((64, 512), nl.float32, buffer=nl.psum, address=(0, 1024))
    nisa.nc_matmul(dst=target, stationary=left, moving=right)  # <- here


@refused("tile_position", "tile_size", "together", op="nc_matmul")
def test_matmul_with_a_tile_of_no_size():
    left, right = matrix(32, 32), matrix(32, 32)
    nisa.nc_matmul(dst=psum(32, 32), stationary=left, moving=right, tile_position=(0, 0))  # <- here


@refused("tile_position (16, 0)", "multiple", "(32, 32)", op="nc_matmul")
def test_matmul_with_a_tile_between_tiles():
    left, right = matrix(32, 32), matrix(32, 32)
    nisa.nc_matmul(  # <- here
        dst=psum(32, 32), stationary=left, moving=right, tile_position=(16, 0), tile_size=(32, 32)
    )


@refused("64 partitions", "32", op="nc_matmul")
def test_matmul_larger_than_its_tile():
    left, right = matrix(64, 32), matrix(64, 32)
    nisa.nc_matmul(  # <- here
        dst=psum(32, 32), stationary=left, moving=right, tile_position=(0, 0), tile_size=(32, 32)
    )


@refused("double_row", "float8", "bfloat16", op="nc_matmul")
def test_double_row_of_bfloat16():
    left, right = sbuf(64, 2, 32, dtype=nl.bfloat16), sbuf(64, 2, 32, dtype=nl.bfloat16)
    nisa.nc_matmul(  # <- here
        dst=psum(32, 32), stationary=left, moving=right, perf_mode=nisa.matmul_perf_mode.double_row
    )


@refused("128 x 128", "[128, 512]", op="nc_transpose")
def test_transpose_of_too_many_columns():
    source = sbuf(128, 512)
    nisa.nc_transpose(dst=psum(128, 512), data=source, engine=nisa.engine.tensor)  # <- here


@refused("dtype", "float32", "bfloat16", op="nc_transpose")
def test_transpose_into_another_dtype():
    source = sbuf(128, 64, dtype=nl.bfloat16)
    nisa.nc_transpose(dst=psum(64, 128), data=source)  # <- here


@refused("64 x 128", "[128, 64]", op="nc_transpose")
def test_transpose_into_the_shape_of_its_source():
    source = sbuf(128, 64)
    nisa.nc_transpose(dst=psum(128, 64), data=source)  # <- here


# Dtypes


@refused("scale", "float32", "bfloat16", op="activation")
def test_scale_of_bfloat16():
    source, scale = sbuf(128, 512), sbuf(128, 1, dtype=nl.bfloat16)
    nisa.activation(dst=source, op=nl.exp, data=source, scale=scale)  # <- here


@refused("operand0", "float32", "bfloat16", op="tensor_scalar")
def test_operand_of_bfloat16():
    source, operand = sbuf(128, 512), sbuf(128, 1, dtype=nl.bfloat16)
    nisa.tensor_scalar(dst=source, data=source, op0=nl.add, operand0=operand)  # <- here


@refused("predicate", "uint8", "float32", op="tensor_copy_predicated")
def test_predicate_of_float32():
    source, predicate = sbuf(128, 512), sbuf(128, 512)
    nisa.tensor_copy_predicated(dst=source, src=source, predicate=predicate)  # <- here


@refused("predicate", "int8", op="tensor_copy_predicated")
def test_predicate_of_signed_integers():
    source, predicate = sbuf(128, 512), sbuf(128, 512, dtype=nl.int8)
    nisa.tensor_copy_predicated(dst=source, src=source, predicate=predicate)  # <- here


@refused("dtype", "bfloat16", "float32", op="tensor_copy_predicated")
def test_predicated_copy_into_another_dtype():
    source, target = sbuf(128, 512), sbuf(128, 512, dtype=nl.bfloat16)
    predicate = sbuf(128, 512, dtype=nl.uint8)
    nisa.tensor_copy_predicated(dst=target, src=source, predicate=predicate)  # <- here


@refused("bitwise", "integer", "float32", op="tensor_tensor")
def test_bitwise_operator_on_floats():
    source = sbuf(128, 512)
    nisa.tensor_tensor(dst=source, data1=source, data2=source, op=nl.bitwise_and)  # <- here


@refused("bitwise", "nl.add", op="tensor_scalar")
def test_bitwise_and_arithmetic_operator():
    source = sbuf(128, 512, dtype=nl.int32)
    nisa.tensor_scalar(  # <- here
        dst=source, data=source, op0=nl.bitwise_and, operand0=1, op1=nl.add, operand1=1.0
    )


@refused("bound0", "float32", "int32", op="range_select")
def test_bounds_of_integers():
    source, bound = sbuf(128, 512), sbuf(128, 1, dtype=nl.int32)
    nisa.range_select(  # <- here
        dst=source, on_true_tile=source, comp_op0=nl.greater_equal, comp_op1=nl.less, bound0=bound, bound1=bound
    )


@refused("on_false_value", "-3.4028235e+38", op="range_select")
def test_range_select_of_another_value():
    source, bound = sbuf(128, 512), sbuf(128, 1)
    nisa.range_select(  # <- here
        dst=source,
        on_true_tile=source,
        comp_op0=nl.greater_equal,
        comp_op1=nl.less,
        bound0=bound,
        bound1=bound,
        on_false_value=0.0,
    )


@refused("uint32", "int32", op="nc_find_index8")
def test_positions_as_signed_integers():
    source, values = sbuf(128, 512), sbuf(128, 8)
    nisa.nc_find_index8(dst=sbuf(128, 8, dtype=nl.int32), data=source, vals=values)  # <- here


@refused("uint16", "int32", op="local_gather")
def test_gather_by_int32():
    source, index = sbuf(16, 64), sbuf(16, 1, dtype=nl.int32)
    nisa.local_gather(dst=sbuf(16, 16), src_buffer=source, index=index)  # <- here


@refused("uint32", "int32", op="nc_n_gather")
def test_gather_per_partition_by_int32():
    source, index = sbuf(16, 64), sbuf(16, 4, dtype=nl.int32)
    nisa.nc_n_gather(dst=sbuf(16, 4), data=source, indices=index)  # <- here


@refused("float8_e4m3fn_x4", "0", op="memset")
def test_fill_of_packed_elements():
    tile = nl.ndarray((128, 64), nl.float8_e4m3fn_x4)
    nisa.memset(dst=tile, value=1)  # <- here


@refused("float8_e4m3fn_x4", "nc_matmul_mx", op="tensor_scalar")
def test_arithmetic_on_packed_elements():
    packed, target = nl.ndarray((128, 64), nl.float8_e4m3fn_x4), sbuf(128, 64)
    nisa.memset(dst=packed, value=0)
    nisa.tensor_scalar(dst=target, data=packed, op0=nl.add, operand0=1.0)  # <- here


@refused("dtype", "float16", "bfloat16", op="dma_transpose")
def test_dma_transpose_into_another_dtype():
    nisa.dma_transpose(dst=sbuf(64, 128, dtype=nl.float16), src=hbm(128, 64, dtype=nl.bfloat16))  # <- here


@refused("hwdge", "cast", "float32", "bfloat16", op="dma_copy")
def test_cast_by_descriptors_in_hardware():
    source, target = sbuf(128, 64), hbm(128, 64, dtype=nl.bfloat16)
    nisa.dma_copy(dst=target, src=source, dge_mode=nisa.dge_mode.hwdge)  # <- here


# Operators


@refused("op", "nl.add", "activation", op="activation")
def test_arithmetic_operator_as_an_activation():
    source = sbuf(128, 512)
    nisa.activation(dst=source, op=nl.add, data=source)  # <- here


@refused("nl.exp", "nl.exp is no arithmetic", "nisa.activation", op="tensor_tensor")
def test_activation_of_two_tensors():
    source = sbuf(128, 512)
    nisa.tensor_tensor(dst=source, data1=source, data2=source, op=nl.exp)  # <- here


@refused("nl.exp", "reduc", op="tensor_reduce")
def test_reduction_by_an_activation():
    source, target = sbuf(128, 512), sbuf(128, 1)
    nisa.tensor_reduce(dst=target, op=nl.exp, data=source, axis=1)  # <- here


@refused("reduce_op", "nl.maximum", "nl.add", op="activation_reduce")
def test_activation_that_reduces_to_a_maximum():
    source, target = sbuf(128, 512), sbuf(128, 1)
    nisa.activation_reduce(dst=source, op=nl.exp, data=source, reduce_op=nl.maximum, reduce_res=target)  # <- here


@refused("nl.bitwise_and", "arithmetic", op="scalar_tensor_tensor")
def test_bitwise_operator_with_a_tensor():
    source = sbuf(128, 512)
    nisa.scalar_tensor_tensor(  # <- here
        dst=source, data=source, op0=nl.add, operand0=1.0, op1=nl.bitwise_and, operand1=source
    )


@refused("cmp_op", "nl.add", op="affine_select")
def test_selection_by_what_compares_nothing():
    tile = sbuf(128, 512)
    nisa.affine_select(  # <- here
        dst=tile,
        pattern=[[1, 512]],
        channel_multiplier=1,
        on_true_tile=tile,
        on_false_value=0.0,
        cmp_op=nl.add,
    )


@refused("reduce_cmd", "'reset'", "nisa.reduce_cmd", op="activation")
def test_command_that_is_a_string():
    source = sbuf(128, 512)
    nisa.activation(dst=source, op=nl.exp, data=source, reduce_cmd="reset")  # <- here


@refused("dge_mode", "7", "nisa.dge_mode", op="dma_copy")
def test_mode_that_is_a_number_of_none():
    source = sbuf(128, 64)
    nisa.dma_copy(dst=hbm(128, 64), src=source, dge_mode=7)  # <- here


@refused("oob_mode", "True", "nisa.oob_mode", op="dma_copy")
def test_mode_that_is_a_truth_value():
    source = sbuf(128, 64)
    nisa.dma_copy(dst=hbm(128, 64), src=source, oob_mode=True)  # <- here


@refused("on_false_value", "sbuf float32", op="affine_select")
def test_tensor_where_a_number_is_wanted():
    tile = sbuf(128, 512)
    nisa.affine_select(  # <- here
        dst=tile, pattern=[[1, 512]], channel_multiplier=1, on_true_tile=tile, on_false_value=tile
    )


@refused("scale", "array", op="activation")
def test_array_where_a_number_is_wanted():
    source = sbuf(128, 512)
    nisa.activation(dst=source, op=nl.exp, data=source, scale=np.ones((128, 1), np.float32))  # <- here


@refused("nl.add", op="dma_compute")
def test_dma_that_multiplies():
    source, target = hbm(128, 64), hbm(128, 64)
    nisa.dma_compute(dst=target, srcs=[source, source], reduce_op=nl.multiply)  # <- here


@refused("pattern", "pairs", op="affine_select")
def test_pattern_that_is_flat():
    tile = sbuf(128, 512)
    nisa.affine_select(  # <- here
        dst=tile, pattern=[1, 512], channel_multiplier=1, on_true_tile=tile, on_false_value=0.0
    )


@refused("2.5", "int32", "integer", op="memset")
def test_fraction_into_integers():
    tile = nl.ndarray((128, 64), nl.int32)
    nisa.memset(dst=tile, value=2.5)  # <- here


@refused("300", "uint8", "0", "255", op="memset")
def test_number_that_its_dtype_does_not_hold():
    tile = nl.ndarray((128, 64), nl.uint8)
    nisa.memset(dst=tile, value=300)  # <- here


@refused("perf_mode", "'double_row'", "nisa.matmul_perf_mode", op="nc_matmul")
def test_perf_mode_that_is_a_string():
    left, right = matrix(128, 64), matrix(128, 32)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right, perf_mode="double_row")  # <- here


@refused("accumulate", "'yes'", op="nc_matmul")
def test_accumulate_that_is_a_string():
    left, right = matrix(128, 64), matrix(128, 32)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right, accumulate="yes")  # <- here
