"""Diffusers' UNets, transformers and autoencoders."""

from model_tests.architectures.architecture import Architecture


ARCHITECTURES: list[Architecture] = []
