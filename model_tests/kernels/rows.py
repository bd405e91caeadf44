"""Which models are compared: those of the table of architectures, by section."""

from __future__ import annotations


SECTIONS = {
    "decoders": "Decoders",
    "encoders": "Text encoders",
    "encoder_decoders": "Encoder-decoders",
    "vision": "Vision and sound",
    "diffusers": "Diffusers",
}
NAMES: dict[str, tuple[str, ...]] = {
    "decoders": (
        "GPT-2", "GPT-J", "GPT-NeoX", "OPT", "Bloom", "Falcon", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma",
        "Gemma 2", "Gemma 3", "Phi", "Phi-3", "StarCoder2", "Granite", "SmolLM3", "OLMo2", "Cohere", "Cohere2",
        "GLM-4", "Mixtral", "Qwen3-MoE", "OLMoE", "DeepSeek-V3", "gpt-oss", "Llama 4", "Bamba", "Qwen3-Next",
        "Llama, decoding step", "Mistral, decoding step", "Gemma 3, decoding step", "gpt-oss, decoding step",
        "DeepSeek-V3, decoding step",
    ),
    "encoders": (
        "BERT", "RoBERTa", "XLM-RoBERTa", "DistilBERT", "ALBERT", "ELECTRA", "MPNet", "ModernBERT", "EuroBERT",
        "NomicBERT", "DeBERTa-v2",
    ),
    "encoder_decoders": ("T5", "BART", "mBART", "Marian", "Pegasus", "M2M100", "Blenderbot"),
    "vision": ("ViT", "DeiT", "DINOv2", "CLIP", "SigLIP", "Whisper encoder", "Whisper", "Wav2Vec2", "AST"),
    "diffusers": (
        "UNet2D of Stable Diffusion 1.5", "UNet2D of Stable Diffusion XL", "Stable Diffusion 3", "Flux", "PixArt",
        "DiT", "Wan", "AutoencoderKL",
    ),
}  # fmt: skip
