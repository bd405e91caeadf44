"""Models of images, sound and text together."""

from model_tests.architectures.architecture import Architecture


ARCHITECTURES: list[Architecture] = []
