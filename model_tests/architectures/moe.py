"""Mixtures of experts."""

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.cached_step import cached_step
from model_tests.architectures.text import GROUPED, HIT_EXPERTS, causal_lm


# Half of the experts for each token, whatever a configuration calls them.
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}

ARCHITECTURES: list[Architecture] = [
    causal_lm("Mixtral", "Mixtral", training=True, output_router_logits=True, **GROUPED, **LOCAL),
    causal_lm("Qwen2-MoE", "Qwen2Moe", shared_expert_intermediate_size=24, **GROUPED, **EXPERTS),
    causal_lm("Qwen3-MoE", "Qwen3Moe", training=True, head_dim=8, **GROUPED, **EXPERTS),
    causal_lm("DeepSeek-V2", "DeepseekV2", **ROUTED, **LATENT),
    causal_lm("DeepSeek-V3", "DeepseekV3", training=True, **ROUTED, **LATENT),
    causal_lm("GraniteMoE", "GraniteMoe", **GROUPED, **LOCAL),
    causal_lm("GraniteMoE-Shared", "GraniteMoeShared", shared_intermediate_size=24, **GROUPED, **LOCAL),
    causal_lm("OLMoE", "Olmoe", training=True, **GROUPED, **EXPERTS),
    causal_lm("FlexOLMo", "FlexOlmo", **GROUPED, **EXPERTS),
    causal_lm("gpt-oss", "GptOss", head_dim=8, sliding_window=4, **GROUPED, **LOCAL),
    causal_lm("Phi-3.5-MoE", "Phimoe", **GROUPED, **LOCAL),
    causal_lm("GLM-4-MoE", "Glm4Moe", head_dim=8, **GROUPED, **ROUTED),
    causal_lm(
        "DBRX",
        "Dbrx",
        known=HIT_EXPERTS,
        d_model=32,
        n_layers=2,
        n_heads=4,
        max_seq_len=64,
        ffn_config={"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
    ),  # fmt: skip
    causal_lm(
        "JetMoE",
        "JetMoe",
        known="splits its rows by the number of each expert's, which depends on values",
        kv_channels=8,
        num_key_value_heads=2,
        **LOCAL,
    ),
    causal_lm("dots.llm1", "Dots1", head_dim=8, **GROUPED, **ROUTED),
    causal_lm(
        "ERNIE 4.5 MoE",
        "Ernie4_5_Moe",
        head_dim=8,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=24,
        moe_num_shared_experts=1,
        **GROUPED,
    ),  # fmt: skip
    causal_lm("Hunyuan-MoE", "HunYuanMoEV1", head_dim=8, num_experts=4, moe_topk=2, **GROUPED),
    causal_lm("MiniMax-M2", "MiniMaxM2", head_dim=8, rotary_dim=4, **GROUPED, **LOCAL),
    causal_lm("Llama 4", "Llama4", config="TextConfig", intermediate_size_mlp=48, head_dim=8, **GROUPED, **LOCAL),
    causal_lm("LFM2-MoE", "Lfm2Moe", num_dense_layers=1, layer_types=["conv", "full_attention"], **GROUPED, **EXPERTS),
    cached_step("Mixtral", "Mixtral", **GROUPED, **LOCAL),
    cached_step("DeepSeek-V3", "DeepseekV3", **ROUTED, **LATENT),
    cached_step("gpt-oss", "GptOss", head_dim=8, sliding_window=4, **GROUPED, **LOCAL),
]
