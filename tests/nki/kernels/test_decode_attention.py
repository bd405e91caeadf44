"""The decode attention kernel against attention by its definition, in float64."""

import pytest
import torch

from optimum_neuron_torch.emulator.nki.chips import targeting

from . import reference
from .reference import TOLERANCES, holes, inputs, random, ranges


def check(tensors, *, target="trn2", cores=1, **options):
    """Runs the kernel and compares its result; gives the performance report."""
    import nki
    from optimum_neuron_torch.nki.kernels.decode_attention import decode_attention_kernel

    options.setdefault("scale", tensors[0].shape[-1] ** -0.5)
    with targeting(target), nki.simulation() as reports:
        output = decode_attention_kernel[cores](*tensors, **options)
    expected = reference.attention(*tensors, **options)
    assert output.dtype == tensors[0].dtype and output.isfinite().all()
    assert reference.relative_error(output, expected.output_BHQE) <= TOLERANCES[output.dtype]
    assert not output[expected.logsumexp_BHQ.isneginf()].any()
    (report,) = reports
    assert not report.unwritten and not report.overwritten and not report.warnings
    return report


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1, 1, 1),
        (2, 4, 2, 1, 300, 64, 64),
        (1, 4, 1, 2, 640, 96, 64),
        (1, 2, 2, 3, 129, 128, 128),
        (2, 3, 1, 1, 128, 192, 128),
        (1, 8, 2, 1, 1300, 256, 256),
        (1, 6, 6, 1, 257, 32, 200),
        (1, 128, 1, 1, 700, 64, 32),
    ],
    ids=str,
)
def test_shapes(shape, dtype):
    check(inputs(*shape, dtype))


MASKS = {
    "none": {},
    "cursor": {"ranges_BQ2": ranges([[0, 400], [0, 401], [0, 402]])},
    "ragged": {"ranges_BQ2": ranges([[0, 1], [0, 2], [0, 3]], [[0, 698], [0, 699], [0, 700]])},
    "windows": {"ranges_BQ2": ranges([[100, 130], [101, 131], [600, 670]], [[690, 700], [0, 700], [640, 641]])},
    "ranges beyond the keys": {"ranges_BQ2": ranges([[-5, 2**31 - 1]] * 3)},
    "empty ranges": {"ranges_BQ2": ranges([[0, 0], [9, 3], [700, 700]], [[0, 0], [0, 7], [800, 900]])},
    "holes": {"mask_BHQK": holes(2, 4, 3, 700)},
    "holes, of all heads": {"mask_BHQK": holes(2, 1, 3, 700)},
    "holes and ranges": {"mask_BHQK": holes(1, 4, 3, 700), "ranges_BQ2": ranges([[0, 9], [500, 690], [0, 0]])},
    "bias": {"bias_BHQK": random(2, 4, 3, 700)},
    "bias of all rows": {"bias_BHQK": random(1, 4, 3, 700, dtype=torch.bfloat16)},
    "bias of all heads": {"bias_BHQK": random(2, 1, 3, 700, dtype=torch.float16)},
    "lowest bias": {"bias_BHQK": (holes(1, 1, 4, 700)[:, :, 1:].float() - 1) * 3.4e38},
    "bias, ranges, holes": {
        "bias_BHQK": random(1, 1, 3, 700) + (holes(1, 1, 3, 700).float() - 1) * 3.4e38,
        "ranges_BQ2": ranges([[0, 9], [500, 690], [0, 0]]),
        "mask_BHQK": holes(1, 4, 3, 700),
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


@pytest.mark.parametrize("way", ["", "softcap and sinks"])
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask, way):
    check(inputs(2, 4, 2, 3, 700, 32, 24), **MASKS[mask], **WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_logits(way):
    check(inputs(2, 4, 2, 3, 700, 32, 24), **WAYS[way])


@pytest.mark.parametrize("options", [{}, {"sinks_H": torch.tensor([1.0, 20.0])}], ids=["", "sinks"])
def test_blocks_are_joined(options):
    """The largest scores come late, so that what came before them shrinks."""
    query, key, value = inputs(1, 2, 1, 1, 9000, 256, 128)
    check([query, key * torch.linspace(0, 3, 9000)[:, None], value], **options)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("groups", [1, 2, 3], ids="{} key heads".format)
def test_chips_and_cores(target, cores, groups):
    check(inputs(1, 2 * groups, groups, 1, 2600, 128, 128, torch.bfloat16), target=target, cores=cores)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 3, 1, 8), (1, 2, 4, 8), (1, 2, 4, 8)), "do not fit together"),
        (((1, 2, 1, 8), (1, 2, 4, 9), (1, 2, 4, 8)), "do not fit together"),
        (((1, 2, 1, 257), (1, 2, 4, 257), (1, 2, 4, 8)), "up to 256"),
        (((1, 4, 33, 8), (1, 1, 4, 8), (1, 1, 4, 8)), "up to 128 rows"),
    ],
)
def test_refused(shapes, message):
    from optimum_neuron_torch.nki.kernels.decode_attention import decode_attention_kernel

    with pytest.raises(ValueError, match=message):
        decode_attention_kernel(*map(torch.zeros, shapes))


def test_refuses_two_dtypes():
    from optimum_neuron_torch.nki.kernels.decode_attention import decode_attention_kernel

    query, key, value = inputs(1, 1, 1, 1, 4, 8, 8)
    with pytest.raises(ValueError, match="of one dtype, not float32, bfloat16"):
        decode_attention_kernel(query, key.bfloat16(), value)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("groups", [1, 2], ids="{} key heads".format)
@pytest.mark.parametrize("mask", [mask for mask in MASKS if "ranges_BQ2" in MASKS[mask]])
def test_loop_over_seen_keys(monkeypatch, mask, groups, cores):
    from optimum_neuron_torch.nki.kernels import decode_attention

    monkeypatch.setattr(decode_attention, "TURN_BYTES", 1)  # turns of 128 keys
    monkeypatch.setattr(decode_attention, "SHARED_BYTES", 1)
    tensors = [tensor[:1] for tensor in inputs(2, 4, groups, 3, 700, 32, 24)]
    for row in range(MASKS[mask]["ranges_BQ2"].shape[0]):
        options = {name: tensor[row % tensor.shape[0]][None] for name, tensor in MASKS[mask].items()}
        check(tensors, cores=cores, **options, **WAYS["softcap and sinks"])


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("groups", [1, 2], ids="{} key heads".format)
def test_reads_only_seen_keys(monkeypatch, groups, cores):
    """Rows with 2000, 1030, 30 and no keys in their ranges, in turns of 256 keys."""
    from optimum_neuron_torch.nki.kernels import decode_attention

    monkeypatch.setattr(decode_attention, "TURN_BYTES", groups * 256 * 256)
    tensors = inputs(4, 2 * groups, groups, 1, 6000, 64, 64, torch.bfloat16)
    bounds = ranges([[2000, 4000]], [[0, 1030]], [[5960, 5990]], [[7, 7]])
    report = check(tensors, cores=cores, ranges_BQ2=bounds)
    whole = sum(tensor.numel() * 2 for tensor in tensors[1:])
    assert report.dma_bytes["HBM -> SBUF"] < 0.17 * whole  # 2304, 1280 and 112 of 24000 keys are 0.154
