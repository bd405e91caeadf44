"""Entries for the Trainer: random state of the neuron device in checkpoints, fp16 refused early."""

from collections.abc import Callable
from types import ModuleType

from .entries import Entry, Undo, replace


def _wrap_method(owner: str, name: str, wrap: str) -> Callable[[ModuleType], Undo]:
    def apply(module: ModuleType) -> Undo:
        from ..integrations import trainer

        return replace(getattr(module, owner), name, getattr(trainer, wrap))

    return apply


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "transformers.trainer.Trainer._save_rng_state",
        "transformers.trainer",
        _wrap_method("Trainer", "_save_rng_state", "saving_rng_state"),
        "a neuron branch in Trainer._save_rng_state, beside those of npu, hpu, mlu and musa",
    ),
    Entry(
        "transformers.trainer.Trainer._load_rng_state",
        "transformers.trainer",
        _wrap_method("Trainer", "_load_rng_state", "loading_rng_state"),
        "a neuron branch in Trainer._load_rng_state",
    ),
    Entry(
        "transformers.training_args.TrainingArguments.__post_init__",
        "transformers.training_args",
        _wrap_method("TrainingArguments", "__post_init__", "refusing_float16"),
        "a check in TrainingArguments that float16 mixed precision has a gradient scaler on the device",
    ),
)
