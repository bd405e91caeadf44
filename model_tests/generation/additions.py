"""What the rule of `tiny` does not get right: settings by model type that win over it."""

from __future__ import annotations

from typing import Any


# Multi-head latent attention: the rotary part is `head_dim`, and every query head has keys of its own.
LATENT = {
    "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "qk_head_dim": 8, "v_head_dim": 8, "head_dim": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
# Heads of Mamba 2 times their size are twice the hidden size.
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
ZAMBA = {"num_hidden_layers": 4, "attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4}
COMPASS_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
QWEN4_EXP = {
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
    "indexer_compress_ratio": 2, "ple_layer_ids": [1], "ple_embed_dim": 32, "heads_per_ngram": 4,
    "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 2,
    "layer_types": ["linear_attention", "indexed_attention"],
}  # fmt: skip

CROSS_ATTENDING = {"is_decoder": True, "add_cross_attention": True}
DOTS3_NOTE = {
    **LATENT, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "indexed_attention"],
    "mlp_layer_types": ["dense", "sparse"], "per_layer_config": None,
    "qk_nope_head_dim": 4, "head_dim": 8,
}  # fmt: skip

ADDITIONS: dict[str, dict[str, Any]] = {
    "axk1": LATENT,
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": COMPASS_ROPE, "full_attention": COMPASS_ROPE},
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_v2": {**LATENT, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": LATENT,
    "dory": {
        "num_hidden_layers": 4, "n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1,
        "n_recurrent_loops": 2, "layer_types": None,
    },
    "dia": {"delay_pattern": [0, 1, 2, 3]},
    "dots3_note": DOTS3_NOTE,
    "dots1": {
        "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "max_window_layers": 1,
        "layer_types": None,
    },
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "encoder-decoder": {"decoder": CROSS_ATTENDING},
    "esm": {"vocab_size": 99, "mask_token_id": 98},  # no default
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_hidden_layers": 1, "num_layers_per_stack": None},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "moe_topk": 2, "num_experts": 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": LATENT,
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "musicgen": {"num_codebooks": 1},
    "musicgen_melody": {"num_codebooks": 1},
    "nemo_speechlm": {"chunk_length": 64},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": QWEN4_EXP,
    "qwen4_exp_text": QWEN4_EXP,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "num_hidden_layers": 2},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 16]},
    "sarvam_mla": LATENT,
    "speech-encoder-decoder": {"decoder": CROSS_ATTENDING},
    "vibevoice": {"acoustic_tokenizer_config": {}},
    "whisper": {"max_source_positions": 16},
    "xlnet": {"n_head": 4, "d_head": 8},
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "youtu": LATENT,
    "zamba": {**ZAMBA, "layers_block_type": ["linear_attention", "hybrid"] * 2, "use_mamba_kernels": False},
    "zamba2": {**ZAMBA, "layers_block_type": ["linear_attention", "hybrid"] * 2, "use_mamba_kernels": False},
}  # fmt: skip
