"""What the process that checks are forked from imports beforehand."""

import torch
import torch._dynamo  # noqa: F401
import transformers  # noqa: F401
