"""Masks of models as key ranges: what every family of Transformers asks for, and what is known where masks go.

The table of families is in `mask_families.json`; `mask_families.py` makes it, from the models of `mask_models.py` with
the inputs of `mask_inputs.py`.
"""

import copy
import itertools
import json
from functools import partial

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StaticCache,
    masking_utils,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch.buckets.blocks import run_block, taken_apart
from optimum_neuron_torch.buckets.holes import HOLES, mark_whole
from optimum_neuron_torch.integrations import attention
from optimum_neuron_torch.nki.masks import nki_mask, seen_in
from tests.integrations.mask_families import TABLE, expanded, families, outcome
from tests.integrations.mask_models import CAUSES
from tests.tiny_models import TINY


class Told(torch.nn.Module):
    """A block that gives what is known of its mask."""

    def forward(self, hidden, attention_mask=None):
        seen = seen_in(attention_mask)
        known = [tensor for tensor in (seen.ranges_B1Q2, seen.padding_B11K) if tensor is not None]
        return hidden, attention_mask, known, seen.is_causal, seen.unknown


PADDING = torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6], dtype=torch.bool)
MASKS = {
    "ranges": {"mask_function": masking_utils.bidirectional_mask_function, "attention_mask": mark_whole(PADDING)},
    "ranges and causal": {"attention_mask": mark_whole(PADDING)},
    "padding": {"attention_mask": PADDING},
    "causal": {},
    "unknown": {"mask_function": lambda b, h, q, k: k != q + 1},
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_enter_blocks_with_what_is_known_of_them(kind):
    mask = nki_mask(batch_size=2, q_length=6, kv_length=6, **MASKS[kind])
    arguments = {"attention_mask": mask}
    spec, tensors = taken_apart((torch.zeros(2, 6, 4),), arguments, None)
    tensors = [tensor.clone() for tensor in tensors]  # values are all that a graph gets
    found, gained = torch.compile(run_block, backend="eager", fullgraph=True)(Told(), spec, *tensors)
    expected = Told()(torch.zeros(2, 6, 4), **arguments)
    assert found[3:] == expected[3:]
    assert gained == []
    for ours, theirs in zip((*found[:2], *found[2]), (*expected[:2], *expected[2]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


# ---- every family ---------------------------------------------------------------------------------------------------

FAMILIES = json.loads(TABLE.read_text())
PLACES = families()
# One family for each kind of mask.
SOME = ("bart", "bert", "deepseek_v4", "gemma2", "git", "llama", "llama4", "modernbert", "t5gemma2", "whisper")


def test_the_table_has_every_family_that_calls_the_hook():
    assert {family: {place.call for place in places} for family, places in PLACES.items()} == {
        family: set(row["calls"]) for family, row in FAMILIES.items()
    }


def test_places_of_all_families_are_reached_but_for_known_causes():
    open_places = {
        family
        for family, row in FAMILIES.items()
        if any(kind.startswith("not reached") for kinds in row["calls"].values() for kind in kinds)
    }
    assert open_places == set(CAUSES)
    assert all(row["models"] for row in FAMILIES.values())


@pytest.mark.parametrize(
    "family", [family if family in SOME else pytest.param(family, marks=pytest.mark.slow) for family in FAMILIES]
)
def test_masks_of_a_family(family):
    """Ranges that are not the mask's are an error in `outcome`; which masks have none is in the table."""
    row = FAMILIES[family]
    assert outcome(family, PLACES[family], row["models"] or None) == row


# ---- every form in which the hook is called -------------------------------------------------------------------------

QUERIES = 12
BLOCKS = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, 1, -1, -1, -1]] * 2)
ADDED = {
    "and_mask_function": lambda b, h, q, k: k != q - 1,
    "or_mask_function": lambda b, h, q, k: k == q + 2,
    "block_sequence_ids": BLOCKS,
}
PADDINGS = {"none": (0, 12), "left": (4, 12), "right": (0, 9), "both": (2, 7)}
# Steps behind a prompt of this many tokens, in a store of so many; 0: without a cache.
CACHES = {"no cache": None, "growing": DynamicCache, "static": partial(StaticCache, max_cache_len=32)}
FORMS = sorted({call for row in FAMILIES.values() for call in row["calls"]})


def config_of(implementation: str = "nki") -> LlamaConfig:
    config = LlamaConfig(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, sliding_window=5)
    config.attention_chunk_size = 4
    config._attn_implementation = implementation
    return config


def filled(cache_class, config):
    if cache_class is None:
        return None
    cache = cache_class(config=config)
    cache.update(*torch.zeros(2, 2, 2, 3, 8), layer_idx=0)
    return cache


@pytest.mark.parametrize("form", FORMS)
def test_ranges_of_every_form_of_call(form):
    name, *added = form.split(" + ")
    create = getattr(masking_utils, name)
    further = {argument: ADDED[argument] for argument in added}
    if "bidirectional" not in name:
        further["position_ids"] = None
    for padding, cache in itertools.product(PADDINGS, CACHES):
        if cache != "no cache" and "bidirectional" in name:
            continue
        start, end = PADDINGS[padding]
        past = 0 if cache == "no cache" else 3
        mask = torch.zeros(2, past + QUERIES, dtype=torch.long)
        mask[0, start : past + end], mask[1] = 1, 1
        found, expected = (
            create(
                config=(config := config_of(implementation)),
                inputs_embeds=torch.zeros(2, QUERIES, 16),
                attention_mask=None if padding == "none" else mask,
                cache=filled(CACHES[cache], config),
                **further,
            )
            for implementation in ("nki", "eager")
        )
        expected = torch.zeros(found.shape) if expected is None else expected  # where none is hidden
        torch.testing.assert_close(found, expected == 0, rtol=0, atol=0)
        seen = seen_in(found)
        assert (seen.unknown is not None) == bool(added), (padding, cache)
        if not added:
            assert seen.padding_B11K is None
            torch.testing.assert_close(expanded(seen, found), found, rtol=0, atol=0)


@pytest.mark.parametrize("create", ["create_causal_mask", "create_sliding_window_causal_mask"])
def test_packed_sequences_have_whole_masks(create):
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3, 4]] * 2)
    found, expected = (
        getattr(masking_utils, create)(
            config=config_of(implementation),
            inputs_embeds=torch.zeros(2, QUERIES, 16),
            attention_mask=None,
            cache=None,
            position_ids=positions,
        )
        for implementation in ("nki", "eager")
    )
    assert seen_in(found).unknown == "packed_sequence_mask_function"
    torch.testing.assert_close(found, expected == 0, rtol=0, atol=0)


# ---- what comes to the kernels --------------------------------------------------------------------------------------

GROUPED = {"num_key_value_heads": 2, "eos_token_id": None, **TINY}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=4, **GROUPED)),
    "bert": lambda: BertModel(BertConfig(**TINY)),
}
# (ranges, causal, mask of the keys) of the first call; later ones of decoders are the same for all.
CALLS = {
    ("llama", "left"): (True, True, False),
    ("llama", "holes"): (False, True, True),
    ("mistral", "right"): (True, True, False),
    ("mistral", "holes"): (True, True, True),
    ("bert", "right"): (True, False, False),
    ("bert", "holes"): (False, False, True),
}
LATER = (True, False, True)
SHOWN = {"left": slice(4, 11), "right": slice(0, 7), "holes": [0, 1, 4, 5, 9, 10]}


@pytest.mark.parametrize(("name", "padding"), CALLS)
def test_kernels_get_ranges_of_prepared_models(name, padding, monkeypatch):
    """No kernel gets a mask of all queries and keys; masks with holes are counted, and right as well."""
    calls, stock = [], attention.ops.attention

    def attend(query, key, value, ranges, bias, sinks, scale, softcap, is_causal):
        assert bias is None or bias.shape[-2] == 1
        calls.append((ranges is not None, is_causal, bias is not None))
        return stock(query, key, value, ranges, bias, sinks, scale, softcap, is_causal)

    monkeypatch.setattr(attention.ops, "attention", attend)
    torch.manual_seed(0)
    plain = MODELS[name]().eval()
    buckets = ont.Buckets(batch=[2], sequence=[16], cache=[32])
    settings = {"compile": False, "verify": False, "nki": "simulate", "buckets": buckets}
    model = ont.prepare(copy.deepcopy(plain).to("neuron"), ont.NeuronConfig(**settings))
    ids = torch.randint(5, 300, (2, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0] = 0
    mask[0, SHOWN[padding]] = 1
    with ont.nki.simulation() as runs:
        if name == "bert":
            found = model(ids, attention_mask=mask).last_hidden_state.cpu()[mask.bool()]
            expected = plain(ids, attention_mask=mask).last_hidden_state[mask.bool()]
        else:
            found, expected = (
                torch.stack(
                    one.generate(
                        ids, attention_mask=mask, max_new_tokens=3, do_sample=False,
                        output_logits=True, return_dict_in_generate=True,
                    ).logits
                ).cpu()
                for one in (model, plain)
            )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    layers, steps = TINY["num_hidden_layers"], 1 if name == "bert" else 3
    # Before them come those in which the axes of its inputs are found.
    assert calls[-layers * steps :] == [CALLS[name, padding]] * layers + [LATER] * layers * (steps - 1)
    assert len([run for run in runs if "attention" in str(run)]) == layers * steps
    paths = ont.report(model).attention
    assert paths.pop(HOLES, 0) == (padding == "holes")
    assert sum(paths.values()) == layers * steps and all("kernel" in path for path in paths)
