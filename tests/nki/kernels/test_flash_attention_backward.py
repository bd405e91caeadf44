"""The gradients of flash attention against those of its definition in float64."""

import functools

import pytest
import torch

from optimum_neuron_torch.emulator.nki.chips import targeting
from tests.nki.kernels import reference


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.05, torch.float16: 0.004}


@pytest.fixture(autouse=True)
def _strict(monkeypatch):
    """Reading what nothing has written is an error."""
    monkeypatch.setenv("NEURON_EMULATOR_NKI_STRICT", "1")


def inputs(queries, keys, *, batch=1, heads=1, groups=1, depth=16, value_depth=None, dtype=torch.float32):
    generator = torch.Generator().manual_seed(queries * 1000 + keys + depth)
    normal = functools.partial(torch.randn, generator=generator)
    shapes = (
        (batch, heads, queries, depth),
        (batch, groups, keys, depth),
        (batch, groups, keys, value_depth or depth),
    )
    query, key, value = (normal(shape).to(dtype) for shape in shapes)
    return query, key, value, normal((*shapes[0][:3], shapes[2][3])).to(dtype)


def expected(query, key, value, grad, **options):
    """Output, logsumexp and gradients by autograd in float64; that of the bias for every row and head."""
    leaves = {"query": query, "key": key, "value": value}
    options = {name: option for name, option in options.items() if option is not None}
    if "bias_BHQK" in options:
        leaves["bias"] = options["bias_BHQK"].expand(query.shape[0], query.shape[1], -1, -1)
    if "sinks_H" in options:
        leaves["sinks"] = options["sinks_H"]
    leaves = {name: tensor.double().requires_grad_() for name, tensor in leaves.items()}
    if "bias" in leaves:
        options["bias_BHQK"] = leaves["bias"]
    if "sinks" in leaves:
        options["sinks_H"] = leaves["sinks"]
    result = reference.attention(leaves["query"], leaves["key"], leaves["value"], **options)
    gradients = torch.autograd.grad(result.output_BHQE, list(leaves.values()), grad.double())
    output, logsumexp = result.output_BHQE.detach().to(query.dtype), result.logsumexp_BHQ.detach().float()
    return output, logsumexp, dict(zip(leaves, gradients, strict=True))


def run(query, key, value, grad, *, chip="trn2", cores=1, nothing=-torch.inf, **options):
    """Gradients by name, from the kernel and from the definition; `nothing` is the logsumexp of what sees nothing."""
    from optimum_neuron_torch.nki.kernels.flash_attention_backward import flash_attention_backward_kernel as kernel

    output, logsumexp, wanted = expected(query, key, value, grad, **options)
    logsumexp = torch.where(logsumexp.isneginf(), nothing, logsumexp)
    with targeting(chip):
        results = kernel[cores](
            grad, query, key, value, output, logsumexp, needs_bias_gradient="bias" in wanted, **options
        )
    found = dict(zip(wanted, results, strict=True))
    if "sinks" in found:
        assert found["sinks"].shape == query.shape[:2]
        found["sinks"] = found["sinks"].sum(0)
    return found, wanted


def check(found, wanted, tolerance=1e-5, smallest=0.0):
    """Relative to the largest magnitude, where that is not below `smallest` of all gradients' largest."""
    smallest *= max(float(tensor.abs().max()) for tensor in wanted.values())
    for name, tensor in found.items():
        assert tensor.shape == wanted[name].shape, name
        assert tensor.isfinite().all(), name
        difference = float((tensor.double() - wanted[name]).abs().max())
        error = difference / max(float(wanted[name].abs().max()), smallest)
        assert error <= tolerance, f"gradient of {name}: {error:.2e}"


def ranges(batch, queries, keys, window=None):
    """Of each query, at random; the first sees nothing, the second all; or what a sliding window sees."""
    if window is not None:
        stop = torch.arange(1, queries + 1) + keys - queries
        return torch.stack((stop - window, stop), -1)[None].clamp(min=0).int()
    generator = torch.Generator().manual_seed(keys)
    start = torch.randint(0, keys, (batch, queries), generator=generator)
    stop = torch.randint(0, keys + 1, (batch, queries), generator=generator)
    start[:, :2], stop[:, 0], stop[:, 1:2] = 0, 0, keys
    return torch.stack((start, torch.maximum(start, stop)), -1).int()


def mask(*shape):
    """One with holes, of which the first row sees nothing and the last key is seen by none."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    values[:, :, 0], values[..., -1] = False, False
    return values.to(torch.uint8)


def bias(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(dtype)


SINKS = torch.tensor([0.5, -1.0, 2.0, 0.0])

# Two batch rows, four query heads; the sizes leave parts of tiles and of blocks.
LENGTHS = {
    "one": (1, 1, {}),
    "one query": (1, 300, {}),
    "one key": (300, 1, {}),
    "more keys": (130, 700, {}),
    "more queries": (700, 130, {}),
    "causal": (641, 641, {"is_causal": True}),
    "causal, blocks of 512": (1024, 1024, {"is_causal": True}),
}
OPTIONS = {
    "ranges": {"ranges_BQ2": ranges(2, 140, 270)},
    "ranges of a window, for all rows": {"ranges_BQ2": ranges(2, 140, 270, window=50)},
    "mask for all": {"mask_BHQK": mask(1, 1, 140, 270)},
    "mask of heads": {"mask_BHQK": mask(2, 4, 140, 270)},
    "bias of heads": {"bias_BHQK": bias(1, 4, 140, 270)},
    "bias in bfloat16": {"bias_BHQK": bias(2, 1, 140, 270, dtype=torch.bfloat16)},
    "sinks": {"sinks_H": SINKS},
    "softcap": {"softcap": 1.5},
    "softcap, bias": {"softcap": 1.5, "bias_BHQK": bias(1, 1, 140, 270)},
    "all": {
        "softcap": 2.0,
        "bias_BHQK": bias(1, 4, 140, 270),
        "mask_BHQK": mask(2, 1, 140, 270),
        "ranges_BQ2": ranges(2, 140, 270),
        "sinks_H": SINKS,
    },
}
CAUSAL_OPTIONS = {
    "ranges": {"ranges_BQ2": ranges(2, 270, 270)},
    "mask": {"mask_BHQK": mask(2, 1, 270, 270)},
    "bias": {"bias_BHQK": bias(1, 4, 270, 270)},
    "sinks, softcap": {"sinks_H": SINKS, "softcap": 1.5},
    "all": {
        "softcap": 2.0,
        "bias_BHQK": bias(1, 4, 270, 270),
        "mask_BHQK": mask(2, 1, 270, 270),
        "ranges_BQ2": ranges(2, 270, 270),
        "sinks_H": SINKS,
    },
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths(case):
    queries, keys, options = LENGTHS[case]
    # With one key the gradients of queries and keys are 0, a difference of two sums that the engines round.
    check(*run(*inputs(queries, keys), scale=0.3, **options), smallest=0.1 if keys == 1 else 0.0)


@pytest.mark.parametrize("case", OPTIONS)
def test_options(case):
    check(*run(*inputs(140, 270, batch=2, heads=4, groups=2), scale=0.3, **OPTIONS[case]))


@pytest.mark.parametrize("case", CAUSAL_OPTIONS)
def test_options_of_causal(case):
    tensors = inputs(270, 270, batch=2, heads=4, groups=2)
    check(*run(*tensors, scale=0.3, is_causal=True, **CAUSAL_OPTIONS[case]))


@pytest.mark.parametrize("queries", [140, 256])  # with and without a part of a tile at the end of each head
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
def test_grouped_heads(heads, groups, queries):
    check(*run(*inputs(queries, 150, batch=2, heads=heads, groups=groups), scale=0.3))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("depth", "value_depth"), [(1, 1), (64, 64), (80, 80), (96, 128), (128, 96), (192, 128), (256, 256)]
)
def test_head_sizes(depth, value_depth, dtype):
    tensors = inputs(140, 150, depth=depth, value_depth=value_depth, dtype=dtype)
    check(*run(*tensors, scale=depth**-0.5), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["causal", "not"])
def test_options_in_16_bits(case, dtype):
    is_causal = case == "causal"
    options = (CAUSAL_OPTIONS if is_causal else OPTIONS)["all"]
    tensors = inputs(270 if is_causal else 140, 270, batch=2, heads=4, groups=2, dtype=dtype)
    check(*run(*tensors, scale=0.3, is_causal=is_causal, **options), TOLERANCE[dtype])


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("chip", ["trn2", "trn3"])
@pytest.mark.parametrize("groups", [1, 2, 3])  # one, two and three key heads for the cores to share
def test_chips_and_cores(chip, cores, groups):
    tensors = inputs(270, 270, heads=2 * groups, groups=groups)
    options = {"ranges_BQ2": ranges(1, 270, 270), "bias_BHQK": bias(1, 1, 270, 270), "sinks_H": torch.ones(2 * groups)}
    check(*run(*tensors, chip=chip, cores=cores, scale=0.3, is_causal=True, **options))


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("is_causal", [False, True])
def test_sections(monkeypatch, cores, is_causal):
    """Queries that do not fit together: the gradients of keys and values are summed over what does."""
    from optimum_neuron_torch.nki.kernels import flash_attention_backward_plan

    monkeypatch.setattr(flash_attention_backward_plan, "_section_tiles", lambda problem: 4)
    options = {"sinks_H": SINKS[:2], "bias_BHQK": bias(1, 2, 800, 800)}
    tensors = inputs(800, 800, heads=2, groups=1)
    check(*run(*tensors, cores=cores, scale=0.3, is_causal=is_causal, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("by", ["ranges", "mask"])
@pytest.mark.parametrize("nothing", [-torch.inf, -1e28])
def test_what_sees_nothing_has_no_gradient(nothing, by, dtype):
    query, key, value, grad = inputs(200, 200, dtype=dtype)
    ranges_BQ2 = torch.tensor([[0, 150]]).repeat(200, 1)[None].int()
    ranges_BQ2[:, 20:40] = 0  # see nothing
    visible = reference.seen((1, 1, 200, 200), ranges_BQ2).to(torch.uint8)
    options = {"ranges_BQ2": ranges_BQ2} if by == "ranges" else {"mask_BHQK": visible}
    found, wanted = run(query, key, value, grad, nothing=nothing, scale=0.3, **options)
    check(found, wanted, TOLERANCE[dtype])
    assert (found["query"][:, :, 20:40] == 0).all()
    assert (found["key"][:, :, 150:] == 0).all() and (found["value"][:, :, 150:] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_after_the_forward_kernel(is_causal):
    from optimum_neuron_torch.nki.kernels.flash_attention import flash_attention_kernel
    from optimum_neuron_torch.nki.kernels.flash_attention_backward import flash_attention_backward_kernel as kernel

    query, key, value, grad = inputs(270, 270, batch=2, heads=4, groups=2)
    options = (ranges(2, 270, 270), mask(2, 1, 270, 270), bias(1, 4, 270, 270), None, 0.3, 1.5, is_causal)
    names = ("ranges_BQ2", "mask_BHQK", "bias_BHQK", "sinks_H", "scale", "softcap", "is_causal")
    _, _, wanted = expected(query, key, value, grad, **dict(zip(names, options, strict=True)))
    output, logsumexp = flash_attention_kernel(query, key, value, *options)
    results = kernel(grad, query, key, value, output, logsumexp, *options, True)
    check(dict(zip(wanted, results, strict=True)), wanted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_causal": True}, "140 queries and 150 keys"),
        ({"scale": 0.0}, "positive"),
        ({"softcap": -1.0}, "positive"),
    ],
)
def test_refusals(options, message):
    from optimum_neuron_torch.nki.kernels.flash_attention_backward import flash_attention_backward_kernel as kernel

    query, key, value, grad = inputs(140, 150)
    with pytest.raises(ValueError, match=message):
        kernel(grad, query, key, value, grad, torch.zeros(1, 1, 140), **options)
