"""The op of rotary embeddings against Transformers' functions, by torch and by the kernel, with gradients."""

import pytest
import torch
from transformers.models.cohere.modeling_cohere import rotate_half as rotate_neighbours
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import optimum_neuron_torch as ont
from optimum_neuron_torch.nki import rotary_embedding
from optimum_neuron_torch.nki.ops import rotary_embedding as ops

from .comparing import compare, compare_compiled, random


KERNELS = ["rope_kernel", "rope_kernel"]
SHAPES = ((2, 4, 5, 16), (2, 2, 5, 16))


def angles(batch=2, rotated=16, dtype=torch.float32, positions=5):
    """Of every number its own: nothing relies on those of a pair being the same."""
    turns = random((batch, positions, rotated), seed=1)[0] * 3
    return turns.cos().to(dtype), turns.sin().to(dtype)


def definition(interleaved=False):
    def both(query, key, cos, sin):
        return tuple(rotated(x, cos[:, None], sin[:, None]) for x in (query, key))

    def rotated(x, cos, sin):
        size = cos.shape[-1]
        part = x[..., :size]
        half = part.roll(-size // 2, -1) * torch.ones(size).index_fill(0, torch.arange(size // 2), -1)
        turned = part * cos + (rotate_neighbours(part) if interleaved else half) * sin
        return torch.cat((turned, x[..., size:]), -1)

    return both


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rotated", [16, 6])
@pytest.mark.parametrize("interleaved", [False, True])
def test_values_and_gradients(interleaved, rotated, dtype):
    cos, sin = angles(1 + rotated % 4 // 2, rotated, dtype)
    compare(
        lambda query, key: rotary_embedding(
            query, key, cos.to(query.device), sin.to(query.device), interleaved=interleaved
        ),
        lambda query, key: definition(interleaved)(query, key, cos.double(), sin.double()),
        random(*SHAPES, dtype=dtype),
        KERNELS,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_are_those_of_transformers(dtype):
    tensors = [*random(*SHAPES, dtype=dtype), *angles(dtype=dtype)]
    expected = apply_rotary_pos_emb(*tensors)
    for device in ("cpu", "neuron"):
        found = rotary_embedding(*(tensor.to(device) for tensor in tensors))
        assert all(torch.equal(one.cpu(), other) for one, other in zip(found, expected, strict=True))


def test_the_kernel_rounds_as_transformers():
    tensors = [*random(*SHAPES, dtype=torch.bfloat16), *angles(dtype=torch.bfloat16)]
    with ont.nki.simulation() as runs:
        found = rotary_embedding(*(tensor.to("neuron") for tensor in tensors))
    assert [run.kernel for run in runs] == KERNELS[:1]
    for one, other in zip(found, apply_rotary_pos_emb(*tensors), strict=True):
        assert torch.equal(one.cpu(), other)


def test_angles_have_gradients_with_torch():
    tensors = [*random(*SHAPES), *angles()]
    compare(rotary_embedding, definition(), tensors, [])


def test_heads_of_a_projection():
    """As models give them: seen through a transposition."""
    cos, sin = angles()
    compare(
        lambda *x: rotary_embedding(*(one.transpose(1, 2) for one in x), cos.to(x[0].device), sin.to(x[0].device)),
        lambda *x: definition()(*(one.transpose(1, 2) for one in x), cos.double(), sin.double()),
        random((2, 5, 4, 16), (2, 5, 2, 16)),
        KERNELS,
    )


def test_compiled_calls_are_one_node():
    cos, sin = (one.to("neuron") for one in angles())
    compare_compiled(
        lambda query, key: rotary_embedding(query, key, cos, sin), random(*SHAPES), "rotary_embedding", KERNELS
    )


def test_angles_of_another_dtype_are_computed_with_torch():
    tensors = [*random(*SHAPES, dtype=torch.bfloat16), *angles()]
    with ont.nki.simulation() as runs:
        found = rotary_embedding(*(tensor.to("neuron") for tensor in tensors))
    assert runs == []
    for one, other in zip(found, apply_rotary_pos_emb(*tensors), strict=True):
        assert one.dtype == torch.float32 and torch.equal(one.cpu(), other)


def test_shapes_that_do_not_fit_are_named():
    query, key = random(*SHAPES)
    cos, sin = angles()
    with pytest.raises(ValueError, match=r"expected \(B, H, S, D\) and \(B, G, S, D\)"):
        rotary_embedding(query, key[:, :, :4], cos, sin)
    for wrong in (angles(3), angles(rotated=18), angles(rotated=5), angles(positions=4), (cos, sin[:1])):
        with pytest.raises(ValueError, match=r"expected \(1 or 2, 5, R\) of both, with R even and at most 16"):
            rotary_embedding(query, key, *wrong)


def test_the_ops_keep_torchs_rules_for_custom_ops():
    query, key = (tensor.requires_grad_() for tensor in random(*SHAPES))
    torch.library.opcheck(ops.rotary_embedding_torch, (query, key, *angles(rotated=6), True))
    with ont.nki.simulation():
        torch.library.opcheck(ops.rotary_embedding_kernel, (query, key, *angles(), False))
