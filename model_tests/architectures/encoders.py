"""Text encoders."""

from model_tests.architectures.architecture import Architecture


ARCHITECTURES: list[Architecture] = []
