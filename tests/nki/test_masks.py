"""Masks as key ranges, against the boolean masks that Transformers makes; eagerly and in one traced graph."""

import itertools

import pytest
import torch
import transformers.masking_utils as library
from torch._dynamo.backends.common import aot_autograd

import optimum_neuron_torch  # noqa: F401 - its wiring tells mask functions what they are
from optimum_neuron_torch.buckets.holes import mark_whole, rows_are_whole
from optimum_neuron_torch.nki.masks import (
    Piece,
    mask_of_ranges,
    nki_mask,
    pieces_of,
    seen_in,
    telling,
)


BATCH, QUERIES, KEYS = 2, 5, 9
PADS = torch.tensor([0, 2])
# Functions that make a mask function each: they are made where the mask is, as models do.
RANGES = {
    "causal": lambda: library.causal_mask_function,
    "bidirectional": lambda: library.bidirectional_mask_function,
    "window": lambda: library.sliding_window_causal_mask_function(3),
    "wide window": lambda: library.sliding_window_causal_mask_function(40),
    "window on both sides": lambda: library.sliding_window_bidirectional_mask_function(2),
    "chunk": lambda: library.chunked_causal_mask_function(3, PADS),
    "window of a window": lambda: library.and_masks(
        library.sliding_window_overlay(2), library.sliding_window_causal_mask_function(4)
    ),
}
WHOLE = {
    "image blocks": lambda: library.or_masks(
        library.causal_mask_function, library.blockwise_overlay(torch.tensor([[-1, 0, 0, 0, -1, 1, 1, -1, -1]] * 2))
    ),
    "packing": lambda: library.and_masks(
        library.causal_mask_function, library.packed_sequence_mask_function(torch.arange(9).repeat(2, 1) // 4)
    ),
    "a function of the caller": lambda: library.and_masks(library.causal_mask_function, lambda b, h, q, k: k != 2),
}
PADDING = {
    "none": None,
    "left": [[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9],
    "right": [[1, 1, 1, 1, 0, 0, 0, 0, 0], [1] * 9],
    "both": [[0, 1, 1, 1, 0, 0, 0, 0, 0], [0] * 9],
    "short": [[0, 1, 1, 1, 1], [1] * 5],
    "holes": [[1, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9],
}
# (offset of the queries, offset of the keys)
OFFSETS = {"start": (0, 0), "later": (4, 0), "static cache": (torch.tensor(3), 0), "window of a cache": (6, 2)}


def arguments(make, padding, offsets, queries=QUERIES, keys=KEYS):
    mask = None if PADDING[padding] is None else torch.tensor(PADDING[padding], dtype=torch.bool)
    query_offset, key_offset = OFFSETS[offsets]
    return {
        "batch_size": BATCH,
        "q_length": queries,
        "kv_length": keys,
        "q_offset": query_offset,
        "kv_offset": key_offset,
        "mask_function": make(),
        "attention_mask": mask,
    }


def expanded(seen, queries, keys):
    """What is known of a mask, as a mask."""
    mask = torch.ones(BATCH, 1, queries, keys, dtype=torch.bool)
    if seen.ranges_B1Q2 is not None:
        assert seen.ranges_B1Q2.dtype == torch.int32
        assert (seen.ranges_B1Q2 >= 0).all() and (seen.ranges_B1Q2 <= keys).all()
        assert (seen.ranges_B1Q2[..., 0] <= seen.ranges_B1Q2[..., 1]).all()
        mask = mask & mask_of_ranges(seen.ranges_B1Q2, keys)
    mask = mask if seen.padding_B11K is None else mask & seen.padding_B11K
    return mask.tril() if seen.is_causal else mask


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("kind", RANGES)
def test_known_masks_are_ranges(kind, padding):
    for offsets, is_marked in itertools.product(OFFSETS, (False, True)):
        given = arguments(RANGES[kind], padding, offsets)
        if is_marked and given["attention_mask"] is not None and padding != "holes":
            given["attention_mask"] = mark_whole(given["attention_mask"])
        expected = library.sdpa_mask(**given, allow_is_causal_skip=False)
        seen = seen_in(nki_mask(**given))
        assert seen.unknown is None
        assert (seen.padding_B11K is None) == (padding == "none" or (is_marked and padding != "holes"))
        torch.testing.assert_close(expanded(seen, QUERIES, KEYS), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", WHOLE)
def test_other_masks_stay_whole(kind):
    given = arguments(WHOLE[kind], "left", "later", queries=4)
    expected = library.sdpa_mask(**given, allow_is_causal_skip=False)
    mask = nki_mask(**given)
    assert seen_in(mask).unknown
    torch.testing.assert_close(mask, expected, rtol=0, atol=0)


@pytest.mark.parametrize("keys", [0, 1])
def test_few_keys(keys):
    given = arguments(RANGES["bidirectional"], "none", "start", keys=keys)
    given["attention_mask"] = mark_whole(torch.ones(BATCH, keys, dtype=torch.bool))
    seen = seen_in(nki_mask(**given))
    assert (seen.unknown is None) == bool(keys)


@pytest.mark.parametrize("kind", ["causal", "window", "wide window", "bidirectional"])
def test_a_prompt_needs_no_more_ranges_than_its_mask_has_limits(kind):
    seen = seen_in(nki_mask(**arguments(RANGES[kind], "none", "start", queries=KEYS)))
    assert seen.is_causal == (kind != "bidirectional")
    assert (seen.ranges_B1Q2 is not None) == (kind == "window")


@pytest.mark.parametrize("kind", [*RANGES, *WHOLE])
def test_in_a_graph(kind):
    """One graph, in which the boolean mask is left out where the ranges say all."""
    nodes = []

    def collect(graph, _):
        nodes.extend(node.meta["val"].shape for node in graph.graph.nodes if "val" in node.meta)
        return graph

    def run(padding_BM, offset):
        given = arguments({**RANGES, **WHOLE}[kind], "none", "start")
        given |= {"attention_mask": mark_whole(padding_BM), "q_offset": offset}
        mask = nki_mask(**given)
        seen = seen_in(mask)
        return (mask,) if seen.unknown else (seen.ranges_B1Q2,)

    torch._dynamo.reset()
    traced = torch.compile(run, fullgraph=True, backend=aot_autograd(fw_compiler=collect))
    inputs = torch.tensor(PADDING["left"], dtype=torch.bool), torch.tensor(4)
    torch.testing.assert_close(traced(*inputs), run(*inputs), rtol=0, atol=0)
    assert (torch.Size([BATCH, 1, QUERIES, KEYS]) in nodes) == (kind in WHOLE)


CHANGES = {
    "sliced": lambda mask: mask[:, :, :, :7],
    "inverted": lambda mask: ~mask,
    "as numbers": lambda mask: mask.to(torch.float32),
    "joined": lambda mask: torch.cat([mask, mask], -1),
    "written to": lambda mask: mask.logical_or_(torch.ones_like(mask)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_known_of_a_mask_that_was_changed(change):
    mask = nki_mask(**arguments(RANGES["causal"], "left", "later"))
    assert seen_in(mask).unknown is None
    assert seen_in(CHANGES[change](mask)).unknown is not None


@pytest.mark.parametrize(
    ("rows", "expected"), [(PADDING[name], name != "holes") for name in PADDING if name != "none"]
)
def test_holes_are_found(rows, expected):
    assert rows_are_whole(torch.tensor(rows)) is expected
    assert rows_are_whole(torch.tensor(rows[::-1], dtype=torch.bool)) is expected


def test_a_function_that_means_something_else_by_now_tells_nothing():
    def sliding_window_overlay(size):
        return lambda b, h, q, k: k >= q - size

    assert telling("window", sliding_window_overlay) is sliding_window_overlay
    assert pieces_of(sliding_window_overlay(3), library)[1] is not None


def test_every_function_that_is_known_still_means_the_same():
    """Renamed or changed upstream, its masks would be whole: right, and slow."""
    makers = {
        "window": (library.sliding_window_overlay, (3,)),
        "window on both sides": (library.sliding_window_bidirectional_overlay, (3,)),
        "chunk": (library.chunked_overlay, (3, PADS)),
    }
    for kind, (make, parameters) in makers.items():
        assert pieces_of(make(*parameters), library) == ([Piece(kind, parameters)], None)
    both = library.and_masks(library.causal_mask_function, library.bidirectional_mask_function)
    assert pieces_of(both, library) == ([Piece("causal")], None)
