"""The schedule: who waits for whom, worked out by hand on the clocks of Trn2."""

import pytest

from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.measuring.estimate import schedule
from tests.emulator.nki.made import in_hbm, record, tile


TRN2 = CHIPS[3]
VECTOR = 512 / 0.96  # a tensor_reduce of 512 elements
VECTOR_RESULT = 100 / 0.96
SCALAR = 512 / 1.2
SCALAR_RESULT = 200 / 1.2
DESCRIPTORS = 600
LOAD = 128 * (2048 / 23 + 4.5) / 16  # 128 rows of 2 KiB over 16 engines


def on_vector(written, *read, **more):
    return record("tensor_reduce", "vector", [written], read, **more)


def on_scalar(written, *read):
    return record("activation", "scalar", [written], read)


def load(written, source=None):
    return record("dma_copy", "dma", [written], [source or in_hbm(owner=99)])


def at(byte, space="sbuf", **more):
    return tile(space, byte=2048 * byte, **more)


def times(*records, chip=TRN2):
    core = schedule([records], chip).cores[0]
    return list(zip(core.starts, core.stops, strict=True))


def test_an_engine_executes_in_order():
    assert times(on_vector(at(0), at(1)), on_vector(at(2), at(3))) == [(0, VECTOR), (VECTOR, 2 * VECTOR)]


def test_engines_work_side_by_side():
    assert times(on_vector(at(0), at(1)), on_scalar(at(2), at(3))) == [(0, VECTOR), (0, pytest.approx(SCALAR))]


@pytest.mark.parametrize(
    ("second", "start"),
    [
        # Reads what the first wrote: after its result. Writes what it wrote: the same.
        (on_scalar(at(2), at(0)), VECTOR + VECTOR_RESULT),
        (on_scalar(at(0), at(3)), VECTOR + VECTOR_RESULT),
        # Writes what it read: after it has read.
        (on_scalar(at(1), at(3)), VECTOR),
        # Reads what it read, or other partitions or bytes of the same tensor.
        (on_scalar(at(2), at(1)), 0),
        (on_scalar(tile(shape=(32, 512), partition=96, byte=4096), tile(shape=(32, 512), partition=96, byte=4096)), 0),
        (on_scalar(at(2), tile(shape=(128, 4), byte=2048)), 0),
    ],
)
def test_who_waits_for_whom(second, start):
    first = on_vector(at(0), at(1))
    assert times(first, second)[1][0] == pytest.approx(start)


def test_partitions_keep_tensors_apart():
    first = on_vector(tile(shape=(32, 512), partition=32), tile(shape=(32, 512), byte=2048))
    beside = on_scalar(at(2, shape=(32, 512)), tile(shape=(32, 512), partition=64))
    inside = on_scalar(at(2, shape=(32, 512)), tile(shape=(64, 8), partition=0))
    assert times(first, beside)[1][0] == 0
    assert times(first, inside)[1][0] == pytest.approx(VECTOR + VECTOR_RESULT)


def test_a_covered_write_is_still_waited_for():
    """Whoever overwrites a tensor has waited for all that used it before, and the next one waits for that."""
    chain = [on_vector(at(0), at(5)), on_scalar(at(0), at(6)), on_vector(at(7), at(0))]
    second = VECTOR + VECTOR_RESULT
    assert times(*chain)[2][0] == pytest.approx(second + SCALAR + SCALAR_RESULT)


def test_accumulation_in_psum_has_no_gaps():
    def multiply():
        reads = [at(0, shape=(128, 128), dtype="bfloat16"), at(1, dtype="bfloat16")]
        return record("nc_matmul", "tensor", [tile("psum")], reads, k=128, m=128, n=512)

    result = times(multiply(), multiply(), on_vector(at(2), tile("psum")))
    assert [start for start, _ in result] == pytest.approx([0, 512 / 2.4, 2 * 512 / 2.4 + 64 / 2.4])


def test_transfers_take_their_time_to_start_and_share_the_engines():
    first, second = times(load(at(0)), load(at(1)))
    assert first == pytest.approx((1300, 1300 + LOAD))
    assert second == pytest.approx((1300 + LOAD, 1300 + 2 * LOAD))
    # Eight partitions need one engine of 16. Each transfer waits for the descriptors of those before it.
    small = [load(tile(shape=(8, 512), byte=4096 * i), in_hbm((8, 512), owner=99)) for i in range(17)]
    stops = [stop for _, stop in times(*small)]
    assert stops == pytest.approx([1300 + DESCRIPTORS * i + LOAD for i in range(17)])
    # Trn1 has them ready: sixteen run at once.
    duration = 8 * (2048 / 17 + 4.5)
    stops = [stop for _, stop in times(*small, chip=CHIPS[2])]
    assert stops == pytest.approx([1300 + duration] * 16 + [1300 + 2 * duration])


def test_dma_is_busy_with_data_or_with_descriptors():
    tiny = schedule([[load(tile(shape=(128, 1), byte=64 * i), in_hbm((128, 1), owner=99)) for i in range(10)]], TRN2)
    assert tiny.cores[0].busy["dma"] == pytest.approx(10 * DESCRIPTORS)
    large = schedule([[load(at(i)) for i in range(10)]], TRN2)
    assert large.cores[0].busy["dma"] == pytest.approx(10 * LOAD)
    # What keeps one engine of 16 busy counts as a sixteenth.
    rows = 16 * 1024
    narrow = schedule([[load(tile(shape=(8, rows)), in_hbm((8, rows), owner=99))]], TRN2)
    assert narrow.cores[0].busy["dma"] == pytest.approx(8 * (4 * rows / 23 + 4.5) / 16)


def test_a_store_that_waits_holds_no_load_up():
    store = record("dma_copy", "dma", [in_hbm(owner=1)], [at(0)])
    slow = [on_vector(at(0), at(10)) for _ in range(20)]
    result = times(*slow, store, load(at(1)))
    assert result[-1] == pytest.approx((1300, 1300 + LOAD))
    assert result[-2][0] == pytest.approx(20 * VECTOR + VECTOR_RESULT + 1300)


def test_tiles_of_a_matrix_in_hbm_are_apart():
    """Neighbours in the rows of a matrix overlap as ranges of addresses, but not as tiles."""
    matrix = {"owner": 1, "strides": (1024, 1)}
    left = record("dma_copy", "dma", [in_hbm((128, 512), **matrix)], [at(0)])
    right = record("dma_copy", "dma", [in_hbm((128, 512), byte=2048, **matrix)], [at(1)])
    again = load(at(2), in_hbm((64, 512), **matrix))
    result = times(left, right, again)
    assert result[1][0] == pytest.approx(1300 + LOAD)  # as soon as the engines are free
    assert result[2][0] >= result[0][1] + 1300  # reads what the first wrote


def test_data_is_fetched_ahead_as_far_as_there_is_room():
    """Two tensors of 100 KiB fit into the 224 KiB of a partition: the third waits for the first to be used up."""
    size = 25 * 1024
    made = []
    for i in range(3):
        tensor = tile(shape=(128, size), owner=i + 1)
        made += [load(tensor, in_hbm((128, size), owner=99)), on_vector(at(0, shape=(128, 1)), tensor)]
    result = times(*made)
    transfer, use = 128 * (4 * size / 23 + 4.5) / 16, size / 0.96
    assert result[2][0] == pytest.approx(1300 + transfer)
    first_used = 1300 + transfer + use + VECTOR_RESULT
    assert result[4][0] == pytest.approx(max(1300 + 2 * transfer, first_used + 1300))


def test_depends_on():
    first, second = on_vector(at(0), at(1)), on_scalar(at(2), at(3))
    second.detail = {"after": (first,)}
    assert times(first, second)[1][0] == pytest.approx(VECTOR + VECTOR_RESULT)


@pytest.mark.parametrize("engine", ["sync", "gpsimd"])
def test_two_cores_meet_at_a_barrier(engine):
    shared = in_hbm(owner=1)
    slow = [on_vector(at(0), at(1)), record("core_barrier", engine, [], [shared], core=0), on_scalar(at(2), at(3))]
    slow.insert(1, record("dma_copy", "dma", [shared], [at(0)]))
    quick = [record("core_barrier", engine, [], [shared], core=1), load(at(0), shared)]
    result = schedule([slow, quick], TRN2)
    barrier = result.cores[0].starts[2]
    assert barrier == result.cores[1].starts[0]
    assert barrier >= result.cores[0].stops[1]
    assert result.cores[0].stops[2] == barrier  # it waits, and reads nothing of the data
    assert result.cores[1].starts[1] >= barrier  # what the other core wrote is read after the barrier
    assert result.cores[0].starts[3] == 0  # what has nothing to do with it goes on
    assert result.total_ns == max(max(core.stops) for core in result.cores)


def test_a_core_that_meets_nobody_goes_on():
    alone = schedule([[record("core_barrier", "sync"), on_vector(at(0), at(1))], []], TRN2)
    assert len(alone.cores[0].starts) == 2


def test_engines_share_ports_before_trn2():
    made = [on_vector(at(0), at(1)), record("iota", "gpsimd", [at(2)])]
    assert times(*made, chip=CHIPS[2])[1][0] == pytest.approx(512 / 1.12)
    assert times(*made)[1][0] == 0
    in_psum = [on_vector(at(0), tile("psum")), on_scalar(at(2), tile("psum", byte=2048))]
    assert times(*in_psum, chip=CHIPS[2])[1][0] == pytest.approx(512 / 1.12)
    assert times(*in_psum)[1][0] == 0


def test_nothing_takes_no_time():
    assert schedule([[]], TRN2).total_ns == 0
