"""Kernels that ask for memory that the chip does not have, or that an instruction cannot reach."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.violating import refused


KiB = 1024


def sbuf(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.sbuf, **options)


def psum(*shape, dtype=nl.float32, **options):
    return nl.ndarray(shape, dtype, buffer=nl.psum, **options)


def hbm(*shape, dtype=nl.float32):
    return nl.ndarray(shape, dtype, buffer=nl.shared_hbm)


# Shapes


@refused("[256, 512]", "partition", "128")
def test_more_partitions_than_sbuf_has():
    nl.ndarray((256, 512), nl.float32, buffer=nl.sbuf)  # <- here


@refused("[129, 4]", "partition", "128")
def test_more_partitions_than_psum_has():
    nl.ndarray((129, 4), nl.float32, buffer=nl.psum)  # <- here


@refused("[128]", "partition", "free")
def test_on_chip_tensor_of_one_dimension():
    nl.ndarray((128,), nl.float32, buffer=nl.sbuf)  # <- here


@refused("[128, 0]", "one element")
def test_tensor_without_elements():
    nl.ndarray((128, 0), nl.float32, buffer=nl.sbuf)  # <- here


@refused("[-1, 4]", "one element")
def test_tensor_of_negative_size():
    nl.ndarray((-1, 4), nl.float32, buffer=nl.shared_hbm)  # <- here


@refused("'sbuff'", "nl.sbuf", "nl.psum", "nl.shared_hbm")
def test_buffer_that_does_not_exist():
    nl.ndarray((128, 4), nl.float32, buffer="sbuff")  # <- here


@refused("(128, 2.5)", "integers")
def test_shape_of_fractions():
    nl.ndarray((128, 2.5), nl.float32)  # <- here


@refused("float64", "float32")
def test_float64_tensor():
    nl.ndarray((128, 4), "float64")  # <- here


@refused("int64", "int32")
def test_int64_tensor():
    nl.ndarray((128, 4), np.int64)  # <- here


@refused("floaty", "bfloat16")
def test_dtype_that_does_not_exist():
    nl.ndarray((128, 4), "floaty")  # <- here


# Capacity


@refused("[128, 60000]", "240000", "Trn2")
def test_row_longer_than_a_partition_of_sbuf():
    nl.ndarray((128, 60_000), nl.float32)  # <- here


@refused("[128, 50000]", "200000", "196608", "Trn1", target="trn1")
def test_row_longer_than_a_partition_of_trn1():
    nl.ndarray((128, 50_000), nl.float32)  # <- here


@refused("[128, 5000]", "20000", "16384")
def test_row_longer_than_a_partition_of_psum():
    nl.ndarray((128, 5000), nl.float32, buffer=nl.psum)  # <- here


@refused("SBUF", "capacity", "2 tensors", "245760", "first", "second")
def test_tensors_in_use_at_once_over_the_capacity_of_sbuf():
    first, second = sbuf(128, 120 * KiB // 4, name="first"), sbuf(128, 120 * KiB // 4, name="second")
    nisa.memset(dst=first, value=1.0)
    nisa.memset(dst=second, value=2.0)  # <- here
    nisa.tensor_copy(dst=second, src=first)


@refused("PSUM", "capacity", "3 tensors", "24576", "16384")
def test_tensors_in_use_at_once_over_the_capacity_of_psum():
    tiles = [psum(128, 2048, name=f"tile{i}") for i in range(3)]
    nisa.memset(dst=tiles[0], value=0.0)
    nisa.memset(dst=tiles[1], value=0.0)
    nisa.memset(dst=tiles[2], value=0.0)  # <- here
    nisa.tensor_copy(dst=sbuf(128, 2048), src=tiles[0])
    nisa.tensor_copy(dst=sbuf(128, 2048), src=tiles[1])


@refused("SBUF", "capacity")
def test_tensors_with_and_without_an_address_share_the_capacity():
    fixed, free = sbuf(128, 110 * KiB // 4, address=(0, 0)), sbuf(128, 120 * KiB // 4)
    nisa.memset(dst=fixed, value=1.0)
    nisa.memset(dst=free, value=1.0)  # <- here
    nisa.tensor_copy(dst=free[:, 0:4], src=fixed[:, 0:4])


# Addresses


@refused("(0, 229000)", "[128, 512]", "229376")
def test_address_past_the_end_of_sbuf():
    nl.ndarray((128, 512), nl.float32, address=(0, 229_000))  # <- here


@refused("(0, 15360)", "[128, 512]", "16384")
def test_address_past_the_end_of_psum():
    nl.ndarray((128, 512), nl.float32, buffer=nl.psum, address=(0, 15_360))  # <- here


@refused("(96, 0)", "[64, 4]", "partitions 96 to 159", "128")
def test_address_past_the_last_partition():
    nl.ndarray((64, 4), nl.float32, address=(96, 0))  # <- here


@refused("(0, 2)", "multiple of 4")
def test_address_that_is_not_aligned():
    nl.ndarray((128, 4), nl.float32, address=(0, 2))  # <- here


@refused("(0, 1)", "multiple of 2")
def test_address_of_two_byte_elements_that_is_not_aligned():
    nl.ndarray((128, 4), nl.bfloat16, address=(0, 1))  # <- here


@refused("(0, 2)", "multiple of 4", "psum")
def test_address_in_psum_that_is_not_aligned():
    nl.ndarray((128, 4), nl.bfloat16, buffer=nl.psum, address=(0, 2))  # <- here


@refused("(0, -4)", "[128, 4]")
def test_negative_address():
    nl.ndarray((128, 4), nl.float32, address=(0, -4))  # <- here


@refused("address", "pair", "64")
def test_address_of_one_number():
    nl.ndarray((128, 4), nl.float32, address=64)  # <- here


@refused("address", "HBM")
def test_address_in_hbm():
    nl.ndarray((128, 4), nl.float32, buffer=nl.shared_hbm, address=(0, 0))  # <- here


# Partitions that an instruction starts at


@refused("10 partitions", "partition 10", "0 or 32 or 64 or 96", op="memset")
def test_access_that_starts_at_partition_10():
    tile = sbuf(128, 64)
    nisa.memset(dst=tile[10:20], value=0.0)  # <- here


@refused("40 partitions", "partition 32", "0 or 64", op="memset")
def test_access_to_40_partitions_that_starts_at_32():
    tile = sbuf(128, 64)
    nisa.memset(dst=tile[32:72], value=0.0)  # <- here


@refused("65 partitions", "partition 32", "partition 0", op="tensor_copy")
def test_access_to_65_partitions_that_starts_at_32():
    tile, other = sbuf(128, 64), sbuf(65, 64)
    nisa.memset(dst=tile, value=0.0)
    nisa.tensor_copy(dst=other, src=tile[32:97])  # <- here


@refused("8 partitions", "partition 4", op="memset")
def test_tensor_with_an_address_that_starts_between_quadrants():
    tile = nl.ndarray((8, 64), nl.float32, address=(4, 0))
    nisa.memset(dst=tile, value=0.0)  # <- here


# Who can reach what


@refused("DMA", "psum float32[128, 64]", "PSUM", op="dma_copy")
def test_dma_from_psum():
    tile = psum(128, 64)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=hbm(128, 64), src=tile)  # <- here


@refused("DMA", "psum float32[128, 64]", "PSUM", op="dma_copy")
def test_dma_to_psum():
    nisa.dma_copy(dst=psum(128, 64), src=hbm(128, 64))  # <- here


@refused("shared_hbm float32[128, 64]", "dma_copy", op="tensor_copy")
def test_engine_that_reads_hbm():
    nisa.tensor_copy(dst=sbuf(128, 64), src=hbm(128, 64))  # <- here


@refused("PSUM", "sbuf float32[64, 32]", op="nc_matmul")
def test_matmul_into_sbuf():
    left, right = sbuf(128, 64), sbuf(128, 32)
    nisa.memset(dst=left, value=1.0)
    nisa.memset(dst=right, value=1.0)
    nisa.nc_matmul(dst=sbuf(64, 32), stationary=left, moving=right)  # <- here


@refused("SBUF", "psum float32[128, 64]", op="nc_matmul")
def test_matmul_of_what_is_in_psum():
    left, right = psum(128, 64), sbuf(128, 32)
    nisa.memset(dst=left, value=1.0)
    nisa.memset(dst=right, value=1.0)
    nisa.nc_matmul(dst=psum(64, 32), stationary=left, moving=right)  # <- here


@refused("both", "PSUM", "psum float32[128, 64]", op="tensor_tensor")
def test_both_operands_in_psum():
    left, right = psum(128, 64), psum(128, 64)
    nisa.memset(dst=left, value=1.0)
    nisa.memset(dst=right, value=1.0)
    nisa.tensor_tensor(dst=sbuf(128, 64), data1=left, data2=right, op=nl.add)  # <- here


# Results


@refused("shared HBM", "sbuf float32[128, 64]", "nl.shared_hbm")
def test_result_in_sbuf():
    tile = sbuf(128, 64)
    nisa.memset(dst=tile, value=0.0)
    return tile


@refused("shared HBM", "private_hbm float32[128, 64]", "nl.shared_hbm")
def test_result_in_private_hbm():
    return nl.ndarray((128, 64), nl.float32, buffer=nl.private_hbm)


KEPT = []


@refused("another", "call", "sbuf float32[128, 4]", op="tensor_copy")
def test_tensor_of_an_earlier_run():
    nisa.tensor_copy(dst=sbuf(128, 4), src=KEPT[0])  # <- here


@pytest.fixture(autouse=True)
def tensor_of_an_earlier_run():
    from nki import simulate

    def kernel():
        KEPT.append(sbuf(128, 4))

    KEPT.clear()
    simulate(kernel)()


@refused("read-only", "[2, 2]", op="dma_copy", given=lambda: (_read_only(),))
def test_write_to_a_read_only_argument(x):
    tile = sbuf(2, 2)
    nisa.memset(dst=tile, value=0.0)
    nisa.dma_copy(dst=x, src=tile)  # <- here


def _read_only():
    array = np.ones((2, 2), np.float32)
    array.flags.writeable = False
    return array
