"""Decoders: language models without a cache, and single steps over a static one."""

from model_tests.architectures.architecture import Architecture
from model_tests.architectures.text import causal_lm


ARCHITECTURES: list[Architecture] = [
    causal_lm("Llama", "LlamaConfig", training=True),
]
