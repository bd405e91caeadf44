"""FlexAttention on neuron against PyTorch's own on the CPU: which masks go as ranges, and what is refused."""

import copy

import pytest
import torch
from torch.nn.attention import flex_attention as library
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from transformers import LlamaConfig, LlamaForCausalLM

import optimum_neuron_torch  # noqa: F401 - its wiring brings FlexAttention to neuron
from optimum_neuron_torch.integrations import attention, flex
from tests.tiny_models import TINY


QUERIES = KEYS = 128
DOCUMENTS = torch.arange(QUERIES) // 50


def causal(batch, head, query, key):
    return key <= query


MASKS = {
    "none": None,
    "causal": causal,
    "window": lambda b, h, q, k: (k <= q) & (k > q - 9),
    "documents": lambda b, h, q, k: (DOCUMENTS.to(q.device)[q] == DOCUMENTS.to(q.device)[k]) & (k <= q),
    "prefix": lambda b, h, q, k: (k < 40) | (k <= q),
    "rows differ": lambda b, h, q, k: (k <= q) & (k >= b * 3),
    "some see nothing": lambda b, h, q, k: (k <= q) & (k >= 20),
    "holes": lambda b, h, q, k: (k <= q) & (k % 7 != 3),
    "heads differ": lambda b, h, q, k: k <= q + h,
}
# What the op gets: ranges, is_causal, and a whole mask.
KINDS = {"none": (), "causal": ("causal",), "holes": ("whole",), "heads differ": ("whole",)}


def tensors(device="cpu", groups=2):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 2, QUERIES, 16), (2, groups, KEYS, 16), (2, groups, KEYS, 8))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def made(kind, device):
    heads = 2 if kind == "heads differ" else None
    return None if kind == "none" else create_block_mask(MASKS[kind], 2, heads, QUERIES, KEYS, device=device)


@pytest.mark.parametrize("kind", MASKS)
def test_equals_the_cpus(kind, monkeypatch):
    asked, stock = [], flex.ops.attention

    def attend(query, key, value, ranges, bias, sinks, scale, softcap, is_causal):
        asked.append({"ranges": ranges is not None, "whole": bias is not None, "causal": is_causal})
        return stock(query, key, value, ranges, bias, sinks, scale, softcap, is_causal)

    monkeypatch.setattr(flex.ops, "attention", attend)
    monkeypatch.setattr(attention, "kernels_run", lambda tensor=None: True)
    expected = library.flex_attention(*tensors(), block_mask=made(kind, "cpu"))
    on_device = made(kind, "neuron")
    for _ in range(2):  # what was found of a mask is kept
        found = library.flex_attention(*tensors("neuron"), block_mask=on_device)
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    kinds = KINDS.get(kind, ("ranges",))
    assert asked == [{name: name in kinds for name in ("ranges", "whole", "causal")}] * 2


def test_in_a_graph():
    expected = library.flex_attention(*tensors(), block_mask=made("window", "cpu"))
    compiled = torch.compile(library.flex_attention, backend="neuron", fullgraph=True)
    found = compiled(*tensors("neuron"), block_mask=made("window", "neuron"))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)


def test_shared_heads_and_gradients():
    """PyTorch has no gradients of it on the CPU: those of its fused attention are compared."""
    ours = [tensor.requires_grad_() for tensor in tensors("neuron", groups=1)]
    theirs = [tensor.requires_grad_() for tensor in tensors(groups=1)]
    found = library.flex_attention(*ours, block_mask=made("causal", "neuron"), scale=0.3, enable_gqa=True)
    expected = torch.nn.functional.scaled_dot_product_attention(*theirs, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
    found.square().sum().backward()
    expected.square().sum().backward()
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad.cpu(), reference.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"score_mod": lambda score, b, h, q, k: score * 2}, NotImplementedError, "takes no score_mod"),
        ({"return_aux": AuxRequest(lse=True)}, NotImplementedError, "returns the output alone"),
        ({"enable_gqa": False}, ValueError, "2 query heads and 1 key heads"),
    ],
)
def test_what_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        library.flex_attention(*tensors("neuron", groups=1), **{"enable_gqa": True, **arguments})


def test_a_function_that_was_taken_by_name_before_says_so():
    with pytest.raises(ValueError, match="import optimum_neuron_torch before"):
        library.flex_attention.__wrapped__(*tensors("neuron"))


@pytest.mark.parametrize("mask", ["left", "right", "holes", "block mask"])
def test_models_of_transformers(mask):
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **TINY)).eval()
    model = copy.deepcopy(plain).to("neuron")
    model.set_attn_implementation("flex_attention")
    ids = torch.randint(5, 300, (2, 12))
    seen = torch.ones_like(ids)
    if mask in ("left", "right", "holes"):
        seen[0, {"left": slice(0, 4), "right": slice(9, 12), "holes": slice(3, 6)}[mask]] = 0
    given = seen.to("neuron")
    if mask == "block mask":
        given = create_block_mask(causal, 2, None, 12, 12, device="neuron")
    with torch.no_grad():
        expected = plain(ids, attention_mask=seen).logits
        found = model(ids.to("neuron"), attention_mask=given, use_cache=False).logits.cpu()
    torch.testing.assert_close(found[seen.bool()], expected[seen.bool()], rtol=1e-5, atol=1e-5)
