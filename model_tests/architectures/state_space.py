"""State-space models, and hybrids of them with attention."""

from model_tests.architectures.architecture import Architecture


ARCHITECTURES: list[Architecture] = []
