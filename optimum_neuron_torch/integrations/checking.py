"""What a model would meet on the device, found on a shallow twin with random weights: nothing large is loaded."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from .. import runtime
from ..buckets.shallow import shallow_twin
from ..config import NeuronConfig
from ..report import Report, report
from .loading import choose_config


# Rows and tokens of the calls that are tried: none of them is a bucket.
ROWS, TOKENS, NEW_TOKENS = 3, 11, 3


@dataclass(frozen=True)
class Finding:
    """One question about a model, and its answer: `is_good` where nothing stands out."""

    what: str
    is_good: bool
    detail: str


def model_class_of(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class a checkpoint was saved from. Raises ValueError where it names none that Transformers has."""
    names = config.architectures or []
    found = next((getattr(transformers, name) for name in names if hasattr(transformers, name)), None)
    if found is None:
        raise ValueError(
            f"the configuration names the architectures {names}, none of which is a class of Transformers "
            f"{transformers.__version__}"
        )
    return found


def check(name_or_path: str) -> list[Finding]:
    """Findings for a saved model: whether it compiles and lowers, stays in buckets, and where attention and ops run.

    Reads the configuration alone. Raises OSError or ValueError where there is none that Transformers can read.
    """
    config = AutoConfig.from_pretrained(name_or_path)
    with torch.device("meta"):
        model = model_class_of(config)(config)
    try:
        twin = shallow_twin(model)
    except Exception as error:
        raise ValueError(f"no small {type(model).__name__} could be made of this configuration: {error}") from error
    saved = choose_config(None, name_or_path if Path(name_or_path).is_dir() else None)
    findings = [_lowers(what, call, twin, saved) for what, call in _calls(twin).items()]
    return findings + _facts(report(twin), getattr(twin.config, "_attn_implementation", None))


def _calls(twin: PreTrainedModel) -> dict[str, Callable[[], Any]]:
    """What is tried, by name. Raises ValueError for a model whose input is not known."""
    inputs = _inputs(twin)

    def forward() -> Any:
        with torch.no_grad():
            return twin(**inputs)

    def generate() -> Any:
        given = {name: value for name, value in inputs.items() if not name.startswith("decoder_")}
        return twin.generate(**given, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False)

    return {"forward()": forward, **({"generate()": generate} if twin.can_generate() else {})}


def _inputs(twin: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A small batch of texts of uneven length, or of pictures."""
    config, main = twin.config, twin.main_input_name
    if main == "input_ids":
        ids = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) % 40 + 5
        mask = torch.ones_like(ids)
        if config.is_encoder_decoder:
            mask[1, TOKENS // 2 :] = 0
            return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :1]}
        mask[1, :4] = 0
        return {"input_ids": ids, "attention_mask": mask}
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {main: torch.rand(ROWS, getattr(config, "num_channels", 3), height, width)}
    raise ValueError(
        f"{type(twin).__name__} takes {main}, of which no example is made up here: load it with device_map='neuron', "
        "call it, and print optimum_neuron_torch.report()"
    )


def _lowers(what: str, call: Callable[[], Any], twin: PreTrainedModel, saved: NeuronConfig) -> Finding:
    """Runs a call with its graphs lowered; where they do not, once more without, for what else there is to see."""
    from ..api import prepare

    for lowering in ("check", "off"):
        config = NeuronConfig(**{**vars(saved), "options": {"executor": "aten", "lowering": lowering}})
        prepare(twin, config)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # all of it is in the report
                call()
        except Exception as error:
            if lowering == "off" or not runtime.is_compiler_error(error):
                return Finding(f"{what} runs", False, _short(error))
            refusal = _short(error)
        else:
            break
    states = report(twin).lowering
    if lowering == "off":
        return Finding(f"{what} lowers", False, refusal)
    detail = ", ".join(f"{state}: {count}" for state, count in states.items())
    return Finding(
        f"{what} lowers", states.keys() == {"checked"}, f"graphs {detail}" if detail else "no graph was made"
    )


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _facts(made: Report, attention: str | None) -> list[Finding]:
    departed = [
        Finding(f"{departure['kind']}, {departure['where']}".replace("_", " "), False, departure["reason"])
        for departure in made.departures
    ]
    functions = sorted({use.function for use in made.buckets if use.function != "exact"})
    paths = ", ".join(f"{path} ({calls} calls)" for path, calls in made.attention.items()) or str(attention)
    unknown = made.unknown_ops or []
    return [
        Finding("buckets", bool(functions), ", ".join(functions) or "none"),
        *departed,
        Finding("attention", not any(path.startswith("sdpa") for path in made.attention), paths),
        Finding("ops on the CPU", not made.fallbacks, ", ".join(made.fallbacks) or "none"),
        Finding("ops of unknown support", not unknown, ", ".join(unknown) or "none"),
    ]
