"""Encoder-decoders."""

from __future__ import annotations

from typing import Any

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.text import (
    GLOBAL_ATTENTION,
    HIT_EXPERTS,
    labels,
    make,
    padding_mask,
    text_inputs,
    token_ids,
)


T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip


def _inputs(length: int = 12) -> dict[str, Any]:
    """Source and target of different lengths, both padded."""
    mask = padding_mask(length=8)
    decoder = {"decoder_input_ids": token_ids(length=8), "decoder_attention_mask": mask, "labels": labels(mask)}
    return text_inputs(length, with_labels=False, use_cache=False, **decoder)


def seq2seq(
    name: str,
    prefix: str,
    *,
    head: str = "ForConditionalGeneration",
    training: bool = False,
    known: str = "",
    **values: Any,
) -> Architecture:
    """An encoder-decoder by the prefix of its classes, without a cache, with its loss."""
    return Architecture(
        name=name,
        make=lambda: make(f"{prefix}{head}", f"{prefix}Config", decoder_start_token_id=1, use_cache=False, **values),
        inputs=_inputs,
        training=training,
        known=known,
    )


ARCHITECTURES: list[Architecture] = [
    seq2seq("T5", "T5", training=True, **T5),
    seq2seq("mT5", "MT5", feed_forward_proj="gated-gelu", **T5),
    seq2seq("UMT5", "UMT5", **T5),
    seq2seq("LongT5", "LongT5", encoder_attention_type="transient-global", local_radius=3, global_block_size=4, **T5),
    seq2seq(
        "Switch Transformers",
        "SwitchTransformers",
        known=HIT_EXPERTS,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        num_decoder_layers=2,
        **T5,
    ),
    seq2seq("BART", "Bart", training=True, **BART),
    seq2seq("mBART", "MBart", training=True, **BART),
    seq2seq("Marian", "Marian", head="MTModel", training=True, **BART),
    seq2seq("Pegasus", "Pegasus", training=True, **BART),
    seq2seq("PEGASUS-X", "PegasusX", block_size=4, num_global_tokens=4, stagger_local_blocks=True, **BART),
    seq2seq("BigBird-Pegasus", "BigBirdPegasus", attention_type="original_full", **BART),
    seq2seq(
        "LED",
        "LED",
        known=GLOBAL_ATTENTION,
        attention_window=8,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
        **BART,
    ),  # fmt: skip
    seq2seq("M2M100", "M2M100", **BART),
    seq2seq("Blenderbot", "Blenderbot", **BART),
    seq2seq("BlenderbotSmall", "BlenderbotSmall", **BART),
    seq2seq("PLBart", "PLBart", **BART),
    seq2seq("MVP", "Mvp", **BART),
    seq2seq(
        "ProphetNet",
        "ProphetNet",
        absent=("num_hidden_layers",),
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        ngram=2,
        num_buckets=8,
        relative_max_distance=16,
    ),  # fmt: skip
    seq2seq("FSMT", "FSMT", langs=["en", "de"], src_vocab_size=96, tgt_vocab_size=96, **BART),
    seq2seq(
        "NLLB-MoE",
        "NllbMoe",
        known=HIT_EXPERTS,
        num_experts=4,
        expert_capacity=8,
        encoder_sparse_step=2,
        decoder_sparse_step=2,
        **BART,
    ),  # fmt: skip
]
