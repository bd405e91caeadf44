"""What the process that checks are forked from imports beforehand. None of it starts a thread."""

import torch
import torch._dynamo  # noqa: F401
import transformers  # noqa: F401

import optimum_neuron_torch
import optimum_neuron_torch.emulator.compiler.backend  # noqa: F401
from model_tests.generation import classes, matrix, sweep  # noqa: F401


# Their modules are imported once instead of by every check.
classes.every()
