"""The flash attention kernel against attention by its definition, in float64."""

import pytest
import torch

from optimum_neuron_torch.emulator.nki.chips import targeting

from . import reference
from .reference import TOLERANCES, holes, inputs, random, ranges


def check(tensors, *, target="trn2", cores=1, **options):
    """Runs the kernel and compares both of its results; gives the performance report."""
    import nki
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel

    options.setdefault("scale", tensors[0].shape[-1] ** -0.5)
    with targeting(target), nki.simulation() as reports:
        output, logsumexp = flash_attention_kernel[cores](*tensors, **options)
    expected = reference.attention(*tensors, **options)
    assert output.dtype == tensors[0].dtype
    assert output.isfinite().all() and logsumexp.isfinite().all()
    assert reference.relative_error(output, expected.output_BHQE) <= TOLERANCES[output.dtype]
    sees = expected.logsumexp_BHQ.isfinite()
    assert not output[~sees].any()
    if sees.any():
        assert reference.relative_error(logsumexp[sees], expected.logsumexp_BHQ[sees]) <= 1e-5
    (report,) = reports
    assert not report.unwritten and not report.overwritten and not report.warnings
    return report


def sliding(queries, keys, window):
    ends = torch.arange(queries) + 1 + keys - queries
    return torch.stack(((ends - window).clamp(min=0), ends), -1).to(torch.int32)[None]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [
        ((1, 1, 1, 1, 1, 1, 1), True),
        ((1, 2, 2, 1, 300, 64, 64), False),
        ((1, 1, 1, 5, 1, 8, 8), False),
        ((2, 4, 2, 130, 130, 80, 80), True),
        ((1, 4, 1, 128, 640, 96, 64), False),
        ((1, 1, 1, 700, 700, 128, 128), True),
        ((1, 1, 1, 100, 129, 192, 128), False),
        ((1, 2, 1, 140, 140, 256, 256), True),
        ((1, 1, 1, 257, 257, 64, 200), True),
    ],
    ids=str,
)
def test_shapes(shape, is_causal, dtype):
    check(inputs(*shape, dtype), is_causal=is_causal)


MASKS = {
    "padding left": {"ranges_BQ2": ranges([[150, 300]] * 140, [[0, 300]] * 140)},
    "padding right": {"ranges_BQ2": ranges([[0, 7]] * 140, [[0, 299]] * 140)},
    "padding on both sides": {"ranges_BQ2": ranges([[130, 131]] * 140)},
    "ranges beyond the keys": {"ranges_BQ2": ranges([[-5, 2**31 - 1]] * 140)},
    "sliding window": {"ranges_BQ2": sliding(140, 300, 50)},
    "empty ranges": {"ranges_BQ2": ranges([[0, 0], [9, 3]] + [[300, 300]] * 60 + [[2, 9]] * 78, [[0, 0]] * 140)},
    "holes": {"mask_BHQK": holes(2, 4, 140, 300)},
    "holes, of all heads": {"mask_BHQK": holes(2, 1, 140, 300)},
    "holes and ranges": {"mask_BHQK": holes(1, 4, 140, 300), "ranges_BQ2": sliding(140, 300, 200)},
    "bias": {"bias_BHQK": random(2, 4, 140, 300)},
    "bias of all rows": {"bias_BHQK": random(1, 4, 140, 300, dtype=torch.bfloat16)},
    "bias of all heads": {"bias_BHQK": random(2, 1, 140, 300, dtype=torch.float16)},
    "bias that masks": {"bias_BHQK": torch.where(random(2, 1, 140, 300) > 1, torch.finfo(torch.float32).min, 0.0)},
    "bias, ranges, holes": {
        "bias_BHQK": random(1, 1, 140, 300),
        "ranges_BQ2": sliding(140, 300, 200),
        "mask_BHQK": holes(1, 1, 140, 300),
    },
}
WAYS = {
    "": {},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks_H": torch.tensor([3.0, -20.0, 0.0, 40.0])},
    "softcap and sinks": {"softcap": 0.7, "sinks_H": torch.tensor([0.5, -1.0, 0.0, 2.0])},
    "large scale": {"scale": 3.0},
    "scale 0": {"scale": 0.0},
    "scale below 0": {"scale": -0.3},
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", ["", "softcap and sinks"])
def test_masks(mask, way):
    check(inputs(2, 4, 2, 140, 300, 32, 24), **MASKS[mask], **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
def test_logits(way, is_causal):
    check(inputs(2, 4, 2, 140, 140, 32, 24), is_causal=is_causal, **WAYS[way])


@pytest.mark.parametrize("mask", ["ranges_BQ2", "mask_BHQK", "bias_BHQK"])
def test_causal_with_mask(mask):
    masks = {
        "ranges_BQ2": sliding(300, 300, 100) - 50,
        "mask_BHQK": holes(1, 1, 300, 300),
        "bias_BHQK": random(1, 1, 300, 300),
    }
    check(inputs(1, 2, 2, 300, 300, 32, 32), is_causal=True, **{mask: masks[mask]})


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, 3], ids="{} heads".format)
def test_chips_and_cores(target, cores, heads):
    tensors = inputs(1, heads, 1, 1000, 1000, 64, 64, torch.bfloat16)
    report = check(tensors, target=target, cores=cores, is_causal=True)
    work = [sum(record.op == "nc_matmul" for record in core.records) for core in report._run.cores]
    assert max(work) <= 1.3 * min(work)


@pytest.mark.parametrize("options", [{}, {"sinks_H": torch.tensor([1.0, 20.0])}], ids=["", "sinks"])
def test_blocks_are_joined(options):
    """The largest scores come late, so that what came before them shrinks."""
    query, key, value = inputs(1, 2, 1, 130, 5000, 32, 32)
    check([query, key * torch.linspace(0, 3, 5000)[:, None], value], **options)


@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
def test_keys_in_sections(monkeypatch, is_causal):
    from optimum_neuron_torch.nki.kernels import flash_attention

    monkeypatch.setattr(flash_attention, "SECTIONS_BYTES", 1)
    monkeypatch.setattr(flash_attention, "GROUP", 2)
    monkeypatch.setattr(flash_attention, "BLOCK", 512)
    check(inputs(1, 2, 1, 1200, 1200, 32, 32, torch.bfloat16), is_causal=is_causal)


@pytest.mark.parametrize(
    ("shapes", "options", "message"),
    [
        (((1, 3, 4, 8), (1, 2, 4, 8), (1, 2, 4, 8)), {}, "do not fit together"),
        (((1, 2, 4, 8), (1, 2, 4, 9), (1, 2, 4, 8)), {}, "do not fit together"),
        (((1, 2, 4, 257), (1, 2, 4, 257), (1, 2, 4, 8)), {}, "up to 256"),
        (((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)), {"is_causal": True}, "3 queries and 4 keys"),
    ],
)
def test_refused(shapes, options, message):
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel

    with pytest.raises(ValueError, match=message):
        flash_attention_kernel(*map(torch.zeros, shapes), **options)


def test_refuses_two_dtypes():
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel

    query, key, value = inputs(1, 1, 1, 4, 4, 8, 8)
    with pytest.raises(ValueError, match="of one dtype, not float32, bfloat16"):
        flash_attention_kernel(query, key.bfloat16(), value)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(512, 16384), (128, 32768)], ids=str)
def test_fits_the_chip(shape, dtype, target):
    """Large ones, with all that takes memory; traced, so without data."""
    from optimum_neuron_torch.emulator.nki import trace
    from optimum_neuron_torch.emulator.nki.chips import chip_of
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel

    queries, keys = shape
    tensors = [torch.empty(1, 1, length, 256, dtype=dtype, device="meta") for length in (queries, keys, keys)]
    masks = {
        "ranges_BQ2": torch.empty(1, queries, 2, dtype=torch.int32, device="meta"),
        "mask_BHQK": torch.empty(1, 1, queries, keys, dtype=torch.uint8, device="meta"),
        "bias_BHQK": torch.empty(1, 1, queries, keys, device="meta"),
    }
    trace(flash_attention_kernel, *tensors, chip=chip_of(target), softcap=2.0, **masks)


@pytest.mark.parametrize(
    ("target", "is_causal", "least"),
    [("trn2", True, 0.5), ("trn2", False, 0.55), ("trn3", True, 0.55), ("trn3", False, 0.65)],
)
def test_keeps_the_tensor_engine_busy(target, is_causal, least):
    """The estimate for 4096 x 128, which comes from the order of the instructions alone."""
    from optimum_neuron_torch.emulator.nki import trace
    from optimum_neuron_torch.emulator.nki.chips import chip_of
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel

    tensor = torch.empty(1, 1, 4096, 128, dtype=torch.bfloat16, device="meta")
    traced = trace(flash_attention_kernel, tensor, tensor, tensor, chip=chip_of(target), is_causal=is_causal)
    assert traced.report.matmul_utilisation >= least


@pytest.mark.slow
@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("sizes", [(64, 64), (80, 80), (96, 128), (128, 128), (192, 128), (256, 256)], ids=str)
def test_long(sizes, is_causal, dtype, target):
    check(inputs(1, 2, 1, 1100, 1100, *sizes, dtype), is_causal=is_causal, target=target, cores=2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("depth", [128, 256])
def test_very_long(depth, dtype):
    check(inputs(1, 1, 1, 256, 32768, depth, depth, dtype))
