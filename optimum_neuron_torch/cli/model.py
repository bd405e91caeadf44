"""Loading the model that a verb works on, and the options that name its buckets."""

from argparse import ArgumentParser, Namespace
from typing import Any


# Options by bucket axis.
_AXES = {"batch": "--batch", "sequence": "--sequence", "encoder_sequence": "--encoder-sequence", "cache": "--cache"}


def add_model(parser: ArgumentParser) -> None:
    """The model, its dtype and what runs its graphs."""
    parser.add_argument("model", help="Folder of a model, or its name on the Hub.")
    parser.add_argument("--dtype", help="bfloat16, float32, ... (default: the checkpoint's own).")
    parser.add_argument(
        "--executor", choices=("inductor", "aten", "xla"), help="What the emulated device runs graphs with."
    )


def add_buckets(parser: ArgumentParser) -> None:
    for option in _AXES.values():
        parser.add_argument(option, type=int, nargs="+", metavar="SIZE", help="Sizes of this axis.")


def check_model(name_or_path: str) -> None:
    """Raises ValueError for what is neither a folder nor can be a name on the Hub."""
    from pathlib import Path

    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if Path(name_or_path).is_dir():
        return
    try:
        validate_repo_id(name_or_path)
    except HFValidationError as error:
        found = "is a file" if Path(name_or_path).exists() else "does not exist"
        raise ValueError(
            f"{name_or_path} {found}: expected the folder of a saved model, as save_pretrained() writes it, or the "
            "name of one on the Hub, as owner/name"
        ) from error


def load(arguments: Namespace) -> Any:
    """The model on the neuron device, prepared with the configuration saved beside it.

    Raises ValueError for a folder, a dtype or an architecture that does not exist, OSError where there is no model.
    """
    import torch
    from transformers import AutoConfig

    import optimum_neuron_torch as ont

    from ..integrations.checking import model_class_of

    check_model(arguments.model)
    dtype = getattr(torch, arguments.dtype, None) if arguments.dtype else "auto"
    if dtype != "auto" and not isinstance(dtype, torch.dtype):
        raise ValueError(f"--dtype {arguments.dtype}: expected a dtype of torch, as bfloat16 or float32")
    config = AutoConfig.from_pretrained(arguments.model)
    saved = ont.NeuronConfig.from_pretrained(arguments.model) or ont.NeuronConfig()
    if arguments.executor:
        saved.options = {**(saved.options or {}), "executor": arguments.executor}
    return model_class_of(config).from_pretrained(
        arguments.model, config=config, dtype=dtype, device_map="neuron", neuron_config=saved
    )


def buckets_of(arguments: Namespace) -> Any | None:
    """The buckets that the options name; None where they name none."""
    import optimum_neuron_torch as ont

    named = {axis: sizes for axis in _AXES if (sizes := getattr(arguments, axis))}
    return ont.Buckets(**named) if named else None
