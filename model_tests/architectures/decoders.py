"""Decoders: language models without a cache, and single steps over a static one."""

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.cached_step import cached_step
from model_tests.architectures.text import GROUPED, causal_lm


GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

ARCHITECTURES: list[Architecture] = [
    causal_lm("GPT-2", "GPT2", head="LMHeadModel", training=True, **GPT),
    causal_lm("GPT-BigCode", "GPTBigCode", **GPT),
    causal_lm("GPT-J", "GPTJ", training=True, rotary_dim=4, **GPT),
    causal_lm("CodeGen", "CodeGen", rotary_dim=4, **GPT),
    causal_lm(
        "GPT-Neo", "GPTNeo", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=4
    ),
    causal_lm("GPT-NeoX", "GPTNeoX", training=True),
    causal_lm("OPT", "OPT", training=True, ffn_dim=48, word_embed_proj_dim=32),
    causal_lm("Bloom", "Bloom", training=True),
    causal_lm("Falcon", "Falcon", training=True, multi_query=True),
    causal_lm("Falcon (ALiBi)", "Falcon", alibi=True, new_decoder_architecture=True, num_kv_heads=2),
    causal_lm("MPT", "Mpt", d_model=32, n_layers=2, n_heads=4, expansion_ratio=2, max_seq_len=64),
    causal_lm("Llama", "Llama", training=True, **GROUPED),
    causal_lm("Mistral", "Mistral", training=True, sliding_window=4, **GROUPED),
    causal_lm("Ministral", "Ministral", sliding_window=4, head_dim=8, **GROUPED),
    causal_lm("Qwen2", "Qwen2", training=True, **GROUPED),
    causal_lm("Qwen3", "Qwen3", training=True, head_dim=8, **GROUPED),
    causal_lm("Gemma", "Gemma", head_dim=8, **GROUPED),
    causal_lm("Gemma 2", "Gemma2", training=True, head_dim=8, sliding_window=4, query_pre_attn_scalar=8, **GROUPED),
    causal_lm(
        "Gemma 3",
        "Gemma3",
        config="TextConfig",
        training=True,
        head_dim=8,
        sliding_window=4,
        query_pre_attn_scalar=8,
        **GROUPED,
    ),
    causal_lm("Phi", "Phi", training=True),
    causal_lm("Phi-3", "Phi3", training=True, **GROUPED),
    causal_lm("StarCoder2", "Starcoder2", **GROUPED),
    causal_lm("Granite", "Granite", training=True, **GROUPED),
    causal_lm("SmolLM3", "SmolLM3", training=True, **GROUPED),
    causal_lm("OLMo", "Olmo", **GROUPED),
    causal_lm("OLMo2", "Olmo2", training=True, **GROUPED),
    causal_lm("OLMo3", "Olmo3", sliding_window=4, **GROUPED),
    causal_lm("Cohere", "Cohere", training=True, **GROUPED),
    causal_lm("Cohere2", "Cohere2", sliding_window=4, sliding_window_pattern=2, **GROUPED),
    causal_lm("StableLM", "StableLm", **GROUPED),
    causal_lm("Nemotron", "Nemotron", **GROUPED),
    causal_lm("Persimmon", "Persimmon"),
    causal_lm("GLM", "Glm", head_dim=8, **GROUPED),
    causal_lm("GLM-4", "Glm4", head_dim=8, **GROUPED),
    causal_lm("EXAONE 4", "Exaone4", sliding_window=4, **GROUPED),
    causal_lm("Helium", "Helium", head_dim=8, **GROUPED),
    causal_lm("Arcee", "Arcee", **GROUPED),
    causal_lm("Apertus", "Apertus", **GROUPED),
    causal_lm("BitNet", "BitNet", **GROUPED),
    causal_lm("DiffLlama", "DiffLlama", head_dim=8, **GROUPED),
    causal_lm("ERNIE 4.5", "Ernie4_5", head_dim=8, **GROUPED),
    causal_lm("Seed-OSS", "SeedOss", head_dim=8, **GROUPED),
    causal_lm(
        "MiniCPM3", "MiniCPM3", q_lora_rank=16, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8
    ),
    causal_lm("ModernBERT decoder", "ModernBertDecoder", local_attention=4),
    causal_lm("BERT decoder", "Bert", head="LMHeadModel", is_decoder=True),
    causal_lm("BioGPT", "BioGpt"),
    causal_lm("XGLM", "XGLM", d_model=32, num_layers=2, attention_heads=4, ffn_dim=48),
    causal_lm("CTRL", "CTRL", head="LMHeadModel", dff=48, **GPT),
    causal_lm("OpenAI GPT", "OpenAIGPT", head="LMHeadModel", **GPT),
    cached_step("GPT-2", "GPT2", head="LMHeadModel", **GPT),
    cached_step("GPT-NeoX", "GPTNeoX"),
    cached_step("OPT", "OPT", ffn_dim=48, word_embed_proj_dim=32),
    cached_step("Llama", "Llama", **GROUPED),
    cached_step("Mistral", "Mistral", sliding_window=4, **GROUPED),
    cached_step("Qwen3", "Qwen3", head_dim=8, **GROUPED),
    cached_step("Gemma 2", "Gemma2", head_dim=8, sliding_window=4, query_pre_attn_scalar=8, **GROUPED),
    cached_step(
        "Gemma 3", "Gemma3", config="TextConfig", head_dim=8, sliding_window=12, query_pre_attn_scalar=8, **GROUPED
    ),
]
