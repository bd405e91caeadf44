"""Stands in for `torch_xla`, which the documentation's scripts ask for a device: here that is the host."""

import torch


def device() -> torch.device:
    return torch.device("cpu")


def sync() -> None:
    """Nothing is pending."""
