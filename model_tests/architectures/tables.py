"""The families, one module each with a list `ARCHITECTURES`. Importing this imports none of them."""

from __future__ import annotations

from importlib import import_module

from model_tests.architectures.architecture import Architecture


FAMILIES = {
    "encoders": "Text encoders",
    "decoders": "Decoders",
    "moe": "Mixtures of experts",
    "state_space": "State-space models and hybrids",
    "encoder_decoders": "Encoder-decoders",
    "vision": "Vision",
    "audio": "Audio",
    "multimodal": "Multimodal",
    "diffusers": "Diffusers",
}


def family(name: str) -> list[Architecture]:
    """The architectures of a family."""
    return import_module(f"{__package__}.{name}").ARCHITECTURES


def find(name: str) -> Architecture:
    """The architecture called `name`; KeyError where there is none."""
    return every()[name][1]


def every() -> dict[str, tuple[str, Architecture]]:
    """Family and architecture by name."""
    found: dict[str, tuple[str, Architecture]] = {}
    for family_name in FAMILIES:
        for architecture in family(family_name):
            if architecture.name in found:
                raise ValueError(f"two architectures are called {architecture.name!r}")
            found[architecture.name] = (family_name, architecture)
    return found
