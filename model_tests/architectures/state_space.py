"""State-space models, and hybrids of them with attention."""

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.cached_step import cached_step
from model_tests.architectures.text import GROUPED, causal_lm


MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}

ARCHITECTURES: list[Architecture] = [
    causal_lm("Mamba", "Mamba", training=True, state_size=8),
    causal_lm("Falcon-Mamba", "FalconMamba", state_size=8),
    causal_lm("Mamba2", "Mamba2", training=True, state_size=8, num_heads=8, head_dim=8, chunk_size=8, n_groups=1),
    causal_lm(
        "Jamba",
        "Jamba",
        mamba_d_state=8,
        mamba_dt_rank=4,
        num_experts=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
        **GROUPED,
    ),  # fmt: skip
    causal_lm(
        "Zamba",
        "Zamba",
        mamba_d_state=8,
        mamba_dt_rank=4,
        n_mamba_heads=2,
        num_hidden_layers=4,
        num_key_value_heads=4,
        layers_block_type=["linear_attention", "hybrid"] * 2,
        use_mamba_kernels=False,
    ),  # fmt: skip
    causal_lm(
        "Zamba2",
        "Zamba2",
        mamba_d_state=8,
        mamba_headdim=8,
        n_mamba_heads=8,
        mamba_ngroups=1,
        chunk_size=8,
        layers_block_type=["mamba", "hybrid"],
        num_mem_blocks=1,
        use_mem_rope=True,
        adapter_rank=4,
    ),  # fmt: skip
    causal_lm("Bamba", "Bamba", attn_layer_indices=[1], **MAMBA2, **GROUPED),
    causal_lm(
        "RecurrentGemma",
        "RecurrentGemma",
        lru_width=32,
        attention_window_size=8,
        block_types=["recurrent", "attention"],
    ),  # fmt: skip
    causal_lm("Falcon-H1", "FalconH1", mamba_d_ssm=64, **MAMBA2, **GROUPED),
    causal_lm(
        "Granite 4 hybrid",
        "GraniteMoeHybrid",
        layer_types=["mamba", "attention"],
        shared_intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        **MAMBA2,
        **GROUPED,
    ),  # fmt: skip
    causal_lm(
        "Nemotron-H",
        "NemotronH",
        hybrid_override_pattern="M*",
        mamba_num_heads=8,
        mamba_head_dim=8,
        ssm_state_size=8,
        n_groups=1,
        chunk_size=8,
        head_dim=8,
        **GROUPED,
    ),  # fmt: skip
    causal_lm("LFM2", "Lfm2", layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False, **GROUPED),
    causal_lm(
        "Qwen3-Next",
        "Qwen3Next",
        head_dim=8,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
        layer_types=["linear_attention", "full_attention"],
        **GROUPED,
    ),  # fmt: skip
    causal_lm("RWKV", "Rwkv", attention_hidden_size=32),
    causal_lm("xLSTM", "xLSTM", num_heads=2, chunk_size=8, num_blocks=2),
    cached_step("Mamba", "Mamba", positions=False, state_size=8),
    cached_step("Mamba2", "Mamba2", positions=False, state_size=8, num_heads=8, head_dim=8, chunk_size=8, n_groups=1),
    cached_step("Bamba", "Bamba", attn_layer_indices=[1], **MAMBA2, **GROUPED),
]
