"""How long single instructions take: the formulas of their documentation pages, worked out by hand."""

import pytest

from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.measuring.costs import cost_of, matmul_flops, matmul_ideal_ns
from tests.emulator.nki.made import in_hbm, record, tile


def cycles(made, generation):
    chip = CHIPS[generation]
    return pytest.approx(cost_of(made, chip).busy_ns * chip.ghz(made.engine))


def matmul(k=128, m=128, n=512, dtype="bfloat16", **detail):
    return record(
        "nc_matmul",
        "tensor",
        [tile("psum", (m, n))],
        [tile(shape=(k, m), dtype=dtype), tile(shape=(k, n), dtype=dtype)],
        k=k,
        m=m,
        n=n,
        **detail,
    )


@pytest.mark.parametrize(
    ("made", "generation", "expected"),
    [
        (matmul(), 3, 512),
        (matmul(dtype="float32"), 3, 4 * 512),
        (matmul(dtype="tfloat32"), 3, 512),
        (matmul(n=1), 3, 64),
        (matmul(m=32, n=1), 3, 32),
        (matmul(k=32, m=32, tile_size=(32, 32)), 3, 512 / 16),
        (matmul(dtype="float32", n=128, transpose=True), 3, 2 * 128),
        (matmul(dtype="float32", n=128, transpose=True), 2, 4 * 128),
        (matmul(k=256, dtype="float8_e4m3", perf_mode="double_row"), 3, 512),
    ],
)
def test_matrix_multiplication(made, generation, expected):
    assert cycles(made, generation) == expected


def test_a_transpose_streams_an_identity():
    made = record("nc_transpose", "tensor", [tile("psum", (64, 128), "bfloat16")], [tile(shape=(128, 64))])
    assert cycles(record("nc_transpose", "tensor", made.written, [tile(shape=(128, 64), dtype="bfloat16")]), 3) == 128
    assert cycles(made, 3) == 2 * 128
    assert cycles(made, 2) == 4 * 128


def test_flops_are_those_of_multiplications_only():
    assert matmul_flops(matmul(64, 32, 16)) == 2 * 64 * 32 * 16
    assert matmul_flops(matmul(n=128, transpose=True)) == 0
    assert matmul_flops(record("nc_transpose", "tensor", [tile("psum")], [tile()])) == 0
    assert matmul_flops(record("tensor_copy", "vector", [tile()], [tile()])) == 0


@pytest.mark.parametrize(
    ("made", "generation", "rate"),
    [
        (matmul(), 3, 79e12),
        (matmul(), 2, 92e12),
        (matmul(dtype="float32"), 3, 79e12),
        (matmul(dtype="float8_e4m3"), 3, 158e12),
        (matmul(k=512, dtype="float8_e4m3fn_x4"), 4, 315e12),
    ],
)
def test_the_highest_rate_is_that_of_the_inputs(made, generation, rate):
    # The pages on the chips: TFLOPS of one core, "Compute Engine Specifications".
    ideal_seconds = matmul_ideal_ns(made, CHIPS[generation]) / 1e9
    assert matmul_flops(made) / ideal_seconds == pytest.approx(rate, rel=0.01)


def copy(destination, source, op="tensor_copy"):
    return record(op, "vector", [destination], [source])


HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("made", "by_generation"),
    [
        # Small ones start every 64 cycles.
        (copy(tile(shape=(128, 8)), tile(shape=(128, 8))), (64, 64, 64)),
        # Copies of 16-bit floats: all in SBUF and contiguous, one condition missing, in PSUM both.
        (copy(tile(**HALF), tile(**HALF, byte=1024)), (512, 128, 128)),
        (copy(tile(**HALF, strides=[2]), tile(**HALF)), (512, 256, 256)),
        (copy(tile(**HALF), tile("psum", **HALF)), (512, 256, 256)),
        (copy(tile("psum", **HALF), tile("psum", **HALF)), (512, 512, 512)),
        # Other types.
        (copy(tile(), tile()), (512, 256, 256)),
        (copy(tile("psum"), tile()), (512, 512, 512)),
        (copy(tile(dtype="float8_e4m3"), tile(dtype="float8_e4m3")), (512, 256, 128)),
        # Not a copy: no faster mode.
        (copy(tile(**HALF), tile(**HALF), "tensor_reduce"), (512, 512, 512)),
        # A stride of more than 16 bytes.
        (copy(tile(shape=(128, 64), strides=[8]), tile(shape=(128, 64)), "max8"), (128, 128, 128)),
        (copy(tile(), tile(), "reciprocal"), (8 * 512, 8 * 512, 8 * 512)),
        (copy(tile(), tile(), "exponential"), (512, 512, 128)),
        # Per-partition numbers beside a tile are no second tile.
        (record("tensor_scalar", "vector", [tile("psum")], [tile(), tile(shape=(128, 1))]), (512, 512, 512)),
        # Two tiles: twice as long, but for 16 bits or with one in PSUM.
        (record("tensor_tensor", "vector", [tile()], [tile(), tile()]), (1024, 1024, 1024)),
        (record("tensor_tensor", "vector", [tile()], [tile(), tile("psum")]), (512, 512, 512)),
        (record("tensor_tensor", "vector", [tile(**HALF)], [tile(**HALF), tile(**HALF)]), (512, 512, 512)),
        (record("tensor_tensor_scan", "vector", [tile(**HALF)], [tile(**HALF), tile(**HALF)]), (1024, 1024, 1024)),
        # Scalar Engine and GpSimd.
        (record("activation", "scalar", [tile()], [tile(), tile(shape=(128, 1))]), (512, 512, 512)),
        (record("activation_reduce", "scalar", [tile(), tile(shape=(128, 1))], [tile()]), (576, 576, 576)),
        (record("tensor_copy", "scalar", [tile(**HALF)], [tile(**HALF)]), (512, 512, 256)),
        (record("iota", "gpsimd", [tile()], []), (662, 662, 662)),
        (record("affine_select", "gpsimd", [tile(shape=(16, 2))], [tile(shape=(16, 2))]), (152, 152, 152)),
    ],
)
def test_engines_that_stream(made, by_generation):
    for generation, expected in zip((2, 3, 4), by_generation, strict=True):
        assert cycles(made, generation) == expected


def test_the_clock_turns_cycles_into_time():
    # 189 ns of [perf] Opt #5a: 264 cycles at 1.4 GHz between the starts of dependent instructions of one element.
    cost = cost_of(record("activation", "scalar", [tile(shape=(128, 1))], [tile(shape=(128, 1))]), CHIPS[2])
    assert cost.busy_ns + cost.result_ns == pytest.approx(189, abs=1)


def transfer(source, destination, op="dma_copy"):
    return record(op, "dma", [destination], [source])


def load(shape, dtype, strides=None):
    made = transfer(in_hbm(shape, dtype, strides=strides), tile(shape=shape, dtype=dtype))
    return cost_of(made, CHIPS[3])


def test_transfers_of_the_documentation_take_as_long_as_there():
    # nki-dma-overview, profiles of Trn2. Example 1: [4, 4096] bfloat16 into four partitions, one engine: 1416 ns.
    one = load((4, 4096), "bfloat16")
    assert one.engines == 1 and one.busy_ns == pytest.approx(1416, rel=0.02)
    # Example 2: the same bytes as [128, 128], so 2 KiB for each of 16 engines: 97 ns.
    all_of_them = load((128, 128), "bfloat16")
    assert all_of_them.engines == 16 and all_of_them.busy_ns == pytest.approx(97, abs=30)


def test_transfers_of_a_profile_take_as_long_as_there():
    # kernel-optimization, first kernel, float32: 4096 x 8192 by 8192 x 8192 in 32768 steps, each of which loads a tile
    # of either matrix; 16 engines. Dma Packet Time 519.58 ms, in all 39.87 ms, which the making of descriptors bounds.
    left = load((128, 128), "float32", strides=(4096, 1))
    right = load((128, 512), "float32", strides=(8192, 1))
    assert left.busy_ns + right.busy_ns == pytest.approx(519.58e6 / 16 / 32768, rel=0.03)
    assert left.descriptors_ns + right.descriptors_ns == pytest.approx(39.87e6 / 32768, rel=0.02)


@pytest.mark.parametrize(("nbytes", "share"), [(128, 0.05), (512, 0.206), (1024, 0.424), (4096, 0.966), (32768, 1)])
def test_small_transfers_cost_about_the_throughput_that_the_documentation_draws(nbytes, share):
    # nki-dma-overview, "DMA throughput varying bytes per partition for p_dim = 128": points over the highest.
    made = load((128, nbytes), "uint8")
    throughput = 128 * nbytes / max(made.busy_ns, made.descriptors_ns)
    assert throughput / CHIPS[3].dma_peak_bytes_per_ns == pytest.approx(share, rel=0.5)


def test_pieces_are_what_lies_together_on_both_sides():
    whole, strided = load((128, 2048), "float32"), load((128, 2048), "float32", strides=(4096, 2))
    # 2048 pieces for each partition where there was one.
    assert strided.busy_ns - whole.busy_ns == pytest.approx(2047 * 128 * 4.5 / 16)


def test_transposes_by_dma():
    source, destination = in_hbm((512, 128), "bfloat16"), tile(shape=(128, 512), dtype="bfloat16")
    made = transfer(source, destination, "dma_transpose")
    nbytes = 512 * 128 * 2
    assert cost_of(made, CHIPS[3]).busy_ns == pytest.approx(nbytes / 368 / 0.9)
    in_sbuf = transfer(tile(shape=(128, 128), dtype="bfloat16"), tile(shape=(128, 128), dtype="bfloat16"), made.op)
    assert cost_of(in_sbuf, CHIPS[3]).busy_ns == pytest.approx(128 * 128 * 2 / 368 / 0.5)
    assert cost_of(made, CHIPS[2]).busy_ns > 40 * cost_of(made, CHIPS[3]).busy_ns
