"""Performance reports of kernels that ran: what is counted, and what users get to see."""

import json

import numpy as np
import pytest

import nki
import nki.isa as nisa
import nki.language as nl
from optimum_neuron_torch.emulator.nki import PerformanceReport, trace
from optimum_neuron_torch.emulator.nki.chips import CHIPS


ROWS, K, COLUMNS = 256, 256, 512


@nki.jit
def product(left, right):
    """`left.T @ right`; every core makes its share of the rows."""
    result = nl.ndarray((left.shape[1], right.shape[1]), nl.float32, buffer=nl.shared_hbm)
    columns = nl.ndarray((128, right.shape[0] // 128, right.shape[1]), right.dtype, name="columns")
    for k in range(right.shape[0] // 128):
        nisa.dma_copy(dst=columns[:, k], src=right[nl.ds(k * 128, 128)])
    for m in range(nl.program_id(0), left.shape[1] // 128, nl.num_programs(0)):
        total = nl.ndarray((128, right.shape[1]), nl.float32, buffer=nl.psum)
        for k in range(right.shape[0] // 128):
            rows = nl.ndarray((128, 128), left.dtype)
            nisa.dma_copy(dst=rows, src=left[nl.ds(k * 128, 128), nl.ds(m * 128, 128)])
            nisa.nc_matmul(dst=total, stationary=rows, moving=columns[:, k])
        finished = nl.ndarray(total.shape, nl.float32)
        nisa.tensor_copy(dst=finished, src=total)
        nisa.dma_copy(dst=result[nl.ds(m * 128, 128)], src=finished)
    return result


def arguments(dtype=np.float32):
    generator = np.random.default_rng(0)
    shapes = (K, ROWS), (K, COLUMNS)
    return [generator.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes]


def report_of(kernel, *args):
    with nki.simulation() as reports:
        kernel(*args)
    (report,) = reports
    assert isinstance(report, PerformanceReport)
    return report


@pytest.fixture(scope="module")
def report():
    return report_of(product, *arguments())


def test_what_was_issued_is_counted(report):
    tiles, parts = ROWS // 128, K // 128
    assert report.instructions == {"tensor": tiles * parts, "vector": tiles, "dma": parts + tiles * (parts + 1)}
    assert report.ops == {"dma_copy": 8, "nc_matmul": 4, "tensor_copy": 2}
    assert report.kernel == "product" and report.chip is CHIPS[3] and report.lnc == 1
    assert report.host_seconds > 0


def test_what_was_moved_and_multiplied(report):
    assert report.dma_bytes == {"HBM -> SBUF": 4 * (K * ROWS + K * COLUMNS), "SBUF -> HBM": 4 * ROWS * COLUMNS}
    assert report.matmul_flops == 2 * ROWS * K * COLUMNS


def test_utilisation_follows_from_the_clocks(report):
    # float32 takes four passes: a quarter of what 16 bits give while the engine works.
    assert report.matmul_utilisation_while_busy == pytest.approx(1 / 4)
    assert report.busy_us["tensor"] == pytest.approx(4 * 4 * 512 / 2.4 / 1000)
    share = report.busy_us["tensor"] / report.estimated_us
    assert report.matmul_utilisation == pytest.approx(share / 4)


def test_peaks_are_bytes_per_partition(report):
    # The matrix that stays, and with it the largest of what comes and goes: the result and no more rows.
    assert report.peaks["psum"].nbytes == COLUMNS * 4
    assert report.peaks["sbuf"].nbytes == (K // 128 * COLUMNS + COLUMNS) * 4
    assert report.peaks["sbuf"].limit == 224 * 1024


def test_lines_that_take_most_time_come_first(report):
    lines = report.hot_lines
    assert [line.ns for line in lines] == sorted((line.ns for line in lines), reverse=True)
    assert all(line.name.startswith("test_report.py:") for line in lines)
    assert sum(line.instructions for line in lines) == sum(report.instructions.values())
    matmul = next(line for line in lines if line.engine == "tensor")
    assert matmul.instructions == 4 and matmul.ns == pytest.approx(report.busy_us["tensor"] * 1000)


def test_the_text_says_what_it_is(report):
    text = str(report)
    assert "estimate from documented clocks; no hardware was asked" in text
    for part in ("product on Trn2", "nc_matmul 4", "HBM -> SBUF 768.0 KiB", "PSUM 2.0 KiB (12%)", "test_report.py:"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 110


def test_the_dictionary_is_plain(report):
    figures = json.loads(json.dumps(report.to_dict()))
    assert figures["ops"]["nc_matmul"] == 4
    assert figures["peaks"]["psum"] == {"bytes_per_partition": 2048, "limit": 16384}
    assert figures["estimated_us"] == report.estimated_us
    assert "no hardware" in figures["note"]


def test_two_cores_share_the_work(report):
    both = report_of(product[2], *arguments())
    assert both.lnc == 2 and both.instructions["tensor"] == 4
    assert both.matmul_flops == report.matmul_flops
    assert both.busy_us["tensor"] == pytest.approx(report.busy_us["tensor"] / 2)
    assert both.estimated_us < report.estimated_us
    assert "2 cores of Trn2" in str(both)


def test_every_call_leaves_one_report():
    with nki.simulation() as outer:
        product(*arguments())
        with nki.simulation() as inner:
            product(*arguments())
            product(*arguments())
    product(*arguments())
    assert len(outer) == 3 and len(inner) == 2
    assert outer[1:] != inner and [one.estimated_us for one in outer] == [outer[0].estimated_us] * 3


def test_a_call_that_fails_leaves_none():
    with nki.simulation() as reports, pytest.raises(Exception, match="nc_matmul|dma_copy"):
        product(np.zeros((128, 128), np.float32), np.zeros((256, 512), np.float32))
    assert reports == []


def test_a_run_without_data_has_the_same_report(report):
    traced = trace(product, *arguments()).report
    figures, expected = traced.to_dict(), report.to_dict()
    for name in ("host_seconds",):
        figures.pop(name), expected.pop(name)
    assert figures == expected


def test_reads_of_what_nothing_wrote_are_told():
    @nki.jit
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype, name="forgotten")
        nisa.dma_copy(dst=out, src=tile)
        return out

    report = report_of(kernel, np.zeros((4, 8), np.float32))
    assert len(report.unwritten) == 1 and "32 elements" in report.unwritten[0] and "forgotten" in report.unwritten[0]
    assert "not written before" in str(report)


def test_what_sets_the_pace():
    @nki.jit
    def chain(x):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=x)
        for _ in range(200):
            nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out, src=tile)
        return out

    report = report_of(chain, np.zeros((128, 512), np.float32))
    assert report.bound.startswith("the vector engine")
    small = report_of(chain, np.zeros((128, 1), np.float32))
    assert small.bound.startswith("waiting")
    assert 200 * (64 + 100) / 0.96 / 1000 == pytest.approx(small.estimated_us, rel=0.2)


@pytest.mark.filterwarnings("error")
def test_an_empty_kernel_has_a_report(tmp_path):
    @nki.jit
    def nothing(x):
        return x

    report = report_of(nothing, np.zeros((4, 8), np.float32))
    assert report.instructions == {} and report.estimated_us == 0
    assert "nothing was issued" in str(report)
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "timeline.png")


def test_a_report_keeps_no_memory_of_the_run(report):
    assert all(memory._data is None for core in report._run.cores for memory in core.memories.values())
    assert report._run.link is None


def test_the_picture_has_a_lane_for_every_engine(report, tmp_path):
    pytest.importorskip("matplotlib")
    path = report.plot(tmp_path / "timeline.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    drawing = report.plot(tmp_path / "timeline.svg").read_text()
    for word in ("tensor", "vector", "dma", "nc_matmul", "tensor_copy", "SBUF", "PSUM", "an estimate"):
        assert f"<!-- {word}" in drawing or word in drawing


def test_the_trace_holds_every_instruction(report, tmp_path):
    found = json.loads(report.trace(tmp_path / "trace.json").read_text())
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert len(events) == sum(report.instructions.values())
    core = report.estimate.cores[0]
    assert max(event["ts"] + event["dur"] for event in events) == pytest.approx(max(core.stops) / 1000)
    lanes = {}
    for event in events:
        lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in lanes.values():  # what a viewer shows in one row does not overlap
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in zip(spans, spans[1:], strict=False))
    assert "no hardware" in found["otherData"]["note"]


def test_memory_in_use_over_time(report):
    from optimum_neuron_torch.emulator.nki.measuring.timeline import use_over_time
    from optimum_neuron_torch.emulator.nki.memory import MemoryRegion

    times, sizes = use_over_time(report._run.cores[0], report.estimate.cores[0], MemoryRegion.psum)
    assert times == sorted(times) and sizes[0] == 0 and sizes[-1] == pytest.approx(0)
    assert max(sizes) in (2.0, 4.0)  # one bank, or two where the second product starts before the first is copied
