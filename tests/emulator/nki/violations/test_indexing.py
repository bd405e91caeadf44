"""Kernels that index tensors where there is nothing, or in ways that no access pattern can express."""

import numpy as np

import nki
import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


def sbuf(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


def number(value):
    """A tensor of one int32."""
    tile = sbuf(1, 1, dtype=nl.int32)
    nisa.memset(dst=tile, value=value)
    return tile


# Static


@refused("out of bounds", "elements 500 to 519", "512", "sbuf float32[128, 512]")
def test_slice_past_the_end():
    tile = sbuf(128, 512)
    tile[:, 500:520]  # <- here


@refused("out of bounds", "element 512", "512", "sbuf float32[128, 512]")
def test_index_past_the_end():
    tile = sbuf(128, 512)
    tile[:, 512]  # <- here


@refused("out of bounds", "-513", "512")
def test_negative_index_past_the_start():
    tile = sbuf(128, 512)
    tile[:, -513]  # <- here


@refused("out of bounds", "elements 120 to 135", "128")
def test_dynamic_slice_with_a_number_past_the_end():
    tile = sbuf(128, 512)
    tile[nl.ds(120, 16)]  # <- here


@refused("empty", "0 elements", "dimension 1", "sbuf float32[128, 512]")
def test_empty_slice():
    tile = sbuf(128, 512)
    tile[:, 8:8]  # <- here


@refused("empty", "dimension 1")
def test_slice_that_ends_before_it_starts():
    tile = sbuf(128, 512)
    tile[:, 8:4]  # <- here


@refused("step 0", "dimension 1")
def test_slice_of_step_zero():
    tile = sbuf(128, 512)
    tile[:, 0:8:0]  # <- here


@refused("step -1", "dimension 1", "sbuf float32[128, 512]")
def test_slice_that_runs_backwards():
    tile = sbuf(128, 512)
    tile[:, 8:0:-1]  # <- here


@refused("3 indices", "sbuf float32[128, 512]")
def test_more_indices_than_dimensions():
    tile = sbuf(128, 512)
    tile[0, 0, 0]  # <- here


@refused("`...`")
def test_two_ellipses():
    tile = sbuf(128, 512)
    tile[..., ...]  # <- here


@refused("indexed with integers", "'row'")
def test_index_that_is_a_string():
    tile = sbuf(128, 512)
    tile["row"]  # <- here


@refused("indexed with integers", "0.5")
def test_index_that_is_a_fraction():
    tile = sbuf(128, 512)
    tile[0.5]  # <- here


@refused("slice bounds", "0.5", "integers")
def test_slice_bound_that_is_a_fraction():
    tile = sbuf(128, 512)
    tile[:, 0.5:8]  # <- here


@refused("indexed with integers", "array", ".ap()")
def test_index_that_is_an_array():
    tile = sbuf(128, 512)
    tile[np.arange(4)]  # <- here


@refused("indexed with integers", "None", "expand_dim")
def test_index_that_is_none():
    tile = sbuf(128, 512)
    tile[:, None]  # <- here


# Views


@refused("partition dimension", "[64, 1024]", "sbuf float32[128, 512]")
def test_reshape_of_partitions():
    tile = sbuf(128, 512)
    tile.reshape((64, 1024))  # <- here


@refused("[128, 500]", "65536", "sbuf float32[128, 512]")
def test_reshape_to_another_number_of_elements():
    tile = sbuf(128, 512)
    tile.reshape((128, 500))  # <- here


@refused("not contiguous", "[128, 512]", "[128, 16, 32]")
def test_reshape_of_what_is_not_contiguous():
    tile = sbuf(128, 32, 16)
    tile.permute((0, 2, 1)).reshape((128, 512))  # <- here


@refused("permute", "partition dimension")
def test_permute_that_moves_partitions():
    tile = sbuf(128, 128)
    tile.permute((1, 0))  # <- here


@refused("permute", "not a permutation", "3 dimensions")
def test_permute_of_a_dimension_twice():
    tile = sbuf(128, 4, 4)
    tile.permute((0, 1, 1))  # <- here


@refused("broadcast", "512 elements")
def test_broadcast_of_a_dimension_that_is_not_one():
    tile = sbuf(128, 512)
    tile.broadcast(1, 4)  # <- here


@refused("broadcast", "partition")
def test_broadcast_of_partitions():
    tile = sbuf(1, 512)
    tile.broadcast(0, 128)  # <- here


@refused("there is no dimension 2", "sbuf float32[128, 512]")
def test_dimension_that_does_not_exist():
    tile = sbuf(128, 512)
    tile.slice(2, 0, 4)  # <- here


@refused("no multiple", "float32", "6 bytes")
def test_view_as_a_wider_dtype_that_does_not_fit():
    tile = sbuf(128, 3, dtype=nl.bfloat16)
    tile.view(nl.float32)  # <- here


@refused("rearrange", "does not name")
def test_rearrange_that_forgets_a_dimension():
    tile = sbuf(128, 4, 8)
    tile.rearrange(("p", "a", "b"), ("p", "a"))  # <- here


@refused("ap", "multiple", "512")
def test_pattern_whose_partitions_are_not_a_row_apart():
    tile = sbuf(128, 512)
    tile.ap([[500, 128], [1, 8]])  # <- here


@refused("out of bounds", "[[512, 128], [1, 600]]", "sbuf float32[128, 512]", op="memset")
def test_pattern_past_the_end_of_a_partition():
    tile = sbuf(128, 512)
    wrong = tile.ap([[512, 128], [1, 600]])  # <- here
    nisa.memset(dst=wrong, value=0.0)


@refused("out of bounds", "partition 128", "sbuf float32[128, 512]", op="dma_copy")
def test_pattern_past_the_last_partition():
    tile = sbuf(128, 512)
    wrong = tile.ap([[512, 128], [1, 8]], offset=512)  # <- here
    nisa.dma_copy(dst=hbm(128, 8), src=wrong)


@refused("out of bounds", "shared_hbm float32[4, 8]", op="dma_copy")
def test_pattern_past_the_end_of_hbm():
    tensor = hbm(4, 8)
    wrong = tensor.ap([[8, 4], [1, 9]])  # <- here
    nisa.dma_copy(dst=sbuf(4, 9), src=wrong)


@refused("out of bounds", "offset -1", op="dma_copy")
def test_pattern_that_starts_before_the_tensor():
    tensor = hbm(4, 8)
    wrong = tensor.ap([[8, 4], [1, 8]], offset=-1)  # <- here
    nisa.dma_copy(dst=sbuf(4, 8), src=wrong)


def test_pattern_that_is_not_used():
    """Kernels make them ahead of the condition that guards their use."""

    @nki.jit
    def kernel():
        sbuf(128, 512).ap([[512, 128], [1, 600]])

    kernel()


@refused("pattern", "[stride, count]", "[8, 4, 1]")
def test_pattern_that_is_not_made_of_pairs():
    tensor = hbm(4, 8)
    tensor.ap([[8, 4, 1], [1, 8]])  # <- here


# Dynamic


@refused("out of bounds", op="dma_copy", given=lambda: (_ones(4, 8),))
def test_dynamic_index_past_the_end(x):
    index = number(4)
    nisa.dma_copy(dst=sbuf(1, 8), src=x.select(0, index))  # <- here


@refused("out of bounds", op="dma_copy", given=lambda: (_ones(4, 8),))
def test_negative_dynamic_index(x):
    index = number(-1)
    nisa.dma_copy(dst=sbuf(1, 8), src=x.select(0, index))  # <- here


@refused("out of bounds", "oob_mode.skip", op="dma_copy", given=lambda: (_ones(4, 8),))
def test_row_offsets_past_the_end(x):
    rows = sbuf(8, 1, dtype=nl.int32)
    nisa.memset(dst=rows, value=4)
    nisa.dma_copy(dst=sbuf(8, 8), src=x.ap([[8, 8], [1, 8]], vector_offset=rows))  # <- here


@refused("one dynamic index", given=lambda: (_ones(4, 8, 8),))
def test_two_dynamic_indices(x):
    index = number(1)
    x.select(0, index).select(0, index)  # <- here


@refused("partition", "chosen", "sbuf float32[128, 512]")
def test_dynamic_partition():
    tile, index = sbuf(128, 512), number(1)
    tile.select(0, index)  # <- here


@refused("HBM", "vector_select")
def test_row_offsets_into_sbuf():
    tile, rows = sbuf(128, 512), sbuf(128, 1, dtype=nl.int32)
    tile.vector_select(0, rows)  # <- here


@refused("exclude each other", given=lambda: (_ones(4, 8),))
def test_scalar_and_row_offsets_at_once(x):
    index = number(1)
    x.ap([[8, 1], [1, 8]], scalar_offset=index, vector_offset=index)  # <- here


@refused("integer", "float32", given=lambda: (_ones(4, 8),))
def test_dynamic_index_of_fractions(x):
    index = sbuf(1, 1)
    nisa.memset(dst=index, value=1.0)
    x.select(0, index)  # <- here


# Assignments, and Python's own operations


@refused("not assigned to", "nisa.tensor_copy")
def test_assignment():
    tile = sbuf(128, 512)
    tile[:, 0:4] = 0.0  # <- here


@refused("nl.add", "+")
def test_arithmetic_of_python():
    tile = sbuf(128, 512)
    tile + 1.0  # <- here


@refused("nl.multiply", "*")
def test_arithmetic_in_place():
    tile = sbuf(128, 512)
    tile *= 2.0  # <- here


@refused("nl.greater", ">")
def test_comparison_of_python():
    tile = sbuf(128, 512)
    tile > 0  # <- here


@refused("number", "only while the kernel runs")
def test_tensor_as_a_number():
    tile = sbuf(1, 1)
    float(tile)  # <- here


@refused("NumPy", "only while the kernel runs")
def test_tensor_in_numpy():
    tile = sbuf(2, 2)
    np.exp(tile)  # <- here


def _ones(*shape):
    return np.ones(shape, np.float32)
