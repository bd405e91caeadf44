"""What the stock Trainer lacks on the neuron device: random state in its checkpoints, and an early word on float16."""

import logging
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from .. import runtime
from ..files import replacing
from .accelerate import float16_refusal


logger = logging.getLogger(__name__)

# The key that the Trainer's own scheme gives a device's state in rng_state.pth (compare "cuda", "npu").
RNG_KEY = runtime.DEVICE_TYPE


def saving_rng_state(save: Callable) -> Callable:
    """`Trainer._save_rng_state` that adds the neuron device's state to the file."""

    @wraps(save)
    def wrapper(self, output_dir):
        save(self, output_dir)
        if self.args.device.type == runtime.DEVICE_TYPE:
            _add_device_state(_rng_file(self.args, output_dir), _is_distributed(self.args))

    return wrapper


def loading_rng_state(load: Callable) -> Callable:
    """`Trainer._load_rng_state` that restores the neuron device's state, or says that the checkpoint has none."""

    @wraps(load)
    def wrapper(self, checkpoint):
        load(self, checkpoint)
        if checkpoint is None or self.args.device.type != runtime.DEVICE_TYPE:
            return
        path = _rng_file(self.args, checkpoint)
        if path.is_file():
            _restore_device_state(path, _is_distributed(self.args))

    return wrapper


def refusing_float16(post_init: Callable) -> Callable:
    """`TrainingArguments.__post_init__` that refuses `fp16=True` on neuron, before any model or data is read."""

    @wraps(post_init)
    def wrapper(self):
        post_init(self)
        if self.fp16 and self.device.type == runtime.DEVICE_TYPE:
            raise float16_refusal("fp16=True")

    return wrapper


def _rng_file(args: Any, directory: str | os.PathLike) -> Path:
    return Path(directory) / ("rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth")


def _is_distributed(args: Any) -> bool:
    from transformers.training_args import ParallelMode

    return args.parallel_mode == ParallelMode.DISTRIBUTED


def _read(path: Path) -> dict[str, Any]:
    from transformers.trainer_pt_utils import safe_globals

    with safe_globals():
        return torch.load(path, weights_only=True)


def _add_device_state(path: Path, is_distributed: bool) -> None:
    function = runtime.random_function("get_rng_state_all" if is_distributed else "get_rng_state")
    if function is None:
        logger.warning(
            "this neuron device cannot give its random state: from %s dropout will not go on where it stopped", path
        )
        return
    states = {**_read(path), RNG_KEY: function()}
    with replacing(path) as temporary:
        torch.save(states, temporary)
        temporary.chmod(path.stat().st_mode)


def _restore_device_state(path: Path, is_distributed: bool) -> None:
    state = _read(path).get(RNG_KEY)
    if state is None:
        logger.warning(
            "%s has no random state of the neuron device (it was saved on another device, or without "
            "optimum_neuron_torch): with dropout the resumed losses differ from those of an uninterrupted run",
            path,
        )
        return
    runtime.random_function("set_rng_state_all" if is_distributed else "set_rng_state")(state)
