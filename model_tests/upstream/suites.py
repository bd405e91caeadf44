"""Which test files run when none are named: model tests that need no download for most of what they check."""

from __future__ import annotations

from pathlib import Path

from model_tests.upstream.checkout import Checkout


SUITES = {
    "diffusers": [
        "tests/models/unets",
        "tests/models/transformers/test_models_transformer_flux.py",
        "tests/models/transformers/test_models_transformer_sd3.py",
        "tests/models/transformers/test_models_transformer_wan.py",
        "tests/models/autoencoders/test_models_autoencoder_kl.py",
        "tests/models/autoencoders/test_models_autoencoder_tiny.py",
    ],
    # Mixture-of-experts models are there for their routing, which takes a path of its own on accelerators.
    "transformers": [
        f"tests/models/{model}/test_modeling_{model}.py"
        for model in (
            "llama",
            "mistral",
            "gemma2",
            "qwen2",
            "mixtral",
            "qwen3_moe",
            "gpt_oss",
            "bert",
            "t5",
            "whisper",
            "vit",
        )
    ],
}


def select(checkout: Checkout, names: list[str]) -> list[str]:
    """The files of `checkout` among `names`, else the default ones; folders give their test files."""
    files: list[str] = []
    for name in names or SUITES[checkout.library]:
        path = checkout.path / name
        found = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        files += [str(Path(file).relative_to(checkout.path)) for file in found if file.is_file()]
    return list(dict.fromkeys(files))
