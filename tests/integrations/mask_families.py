"""What the mask hook says for each family of Transformers that calls it: found from the library's own sources, run on
tiny random models.

`python -m tests.integrations.mask_families` writes the table that `test_mask_ranges.py` compares with.
"""

import contextlib
import inspect
import json
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import CONFIG_MAPPING, PreTrainedModel, StaticCache, masking_utils
from transformers.models.auto import modeling_auto

from model_tests.generation.additions import ADDITIONS
from model_tests.generation.tiny import VOCABULARY, tiny_config
from optimum_neuron_torch.integrations import attention
from optimum_neuron_torch.nki.masks import Seen, mask_of_ranges, nki_mask, seen_in


TABLE = Path(__file__).with_name("mask_families.json")
MODELS = Path(transformers.__file__).parent / "models"
CREATORS = {
    name for name in vars(masking_utils) if name.startswith("create_") and name.endswith(("_mask", "for_generate"))
}
CALL = re.compile(rf"(?<!def )\b({'|'.join(sorted(CREATORS))})\(")
# What a call adds to the mask.
ADDED = re.compile(r"(\w+_function|\w+_sequence_ids)=")
# Padding makes no mask of another kind, so one length does; longer than the windows of tiny configurations.
ROWS, LENGTH, PADS, STORE = 2, 20, 3, 32
# The Auto mappings by which a family's class is found, the first that has one.
MAPPINGS = (
    modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    modeling_auto.MODEL_MAPPING_NAMES,
)

SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
# Beside the additions of the sweep of generation.
FURTHER = {
    **{
        model_type: {"text_config": {"rope_parameters": SECTIONS}}
        for model_type in (
            "ernie4_5_vl_moe", "glm4v", "glm4v_moe", "glm_image", "glm_ocr", "paddleocr_vl", "qwen2_5_vl", "qwen2_vl",
        )
    },
    **{
        model_type: {"prediction_length": 4, "context_length": 8}
        for model_type in ("autoformer", "informer", "time_series_transformer")
    },
    "mpnet": {"max_position_embeddings": 64},
    "speech_to_text": {"input_channels": 1, "input_feat_per_channel": 16},
}  # fmt: skip


# ---- the sources ----------------------------------------------------------------------------------------------------


def families() -> dict[str, set[str]]:
    """The families whose code calls the hook, each with its calls: a function, and what it adds to the mask."""
    found: dict[str, set[str]] = {}
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        calls = set(_calls(path.read_text()))
        if calls:
            found.setdefault(path.parent.name, set()).update(calls)
    return found


def _calls(text: str) -> Iterator[str]:
    """By the text: parsing all of the library takes long."""
    for call in CALL.finditer(text):
        added = sorted(set(ADDED.findall(_arguments(text, call.end()))))
        yield " + ".join([call[1], *added])


def _arguments(text: str, start: int) -> str:
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    raise ValueError("a call that does not end")


# ---- a tiny model ---------------------------------------------------------------------------------------------------


def model_of(family: str) -> PreTrainedModel:
    """A tiny random model of the family, with attention "nki"."""
    model_type, name = _class_of(family)
    model_class = getattr(transformers, name)
    config = tiny_config(CONFIG_MAPPING[model_type], **{**ADDITIONS, **FURTHER}.get(model_type, {}))
    with contextlib.suppress(Exception):
        if not isinstance(config, model_class.config_class):
            config = config.get_text_config()
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.set_attn_implementation("nki")
    return model


def _class_of(family: str) -> tuple[str, str]:
    types = [model_type for model_type in CONFIG_MAPPING if _module(model_type) == family]
    for mapping in MAPPINGS:
        for model_type in types:
            if model_type in mapping:
                names = mapping[model_type]
                return model_type, names if isinstance(names, str) else names[0]
    raise LookupError("no Auto class")


def _module(model_type: str) -> str:
    return transformers.models.auto.configuration_auto.model_type_to_module_name(model_type)


def inputs_of(model: PreTrainedModel) -> Iterator[dict[str, torch.Tensor]]:
    """Ways to call it, the likeliest first: two rows of tokens, one of them with pads on the left, and other kinds."""
    taken = inspect.signature(type(model).forward).parameters
    ids = torch.randint(5, VOCABULARY - 30, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :PADS] = 0
    tokens = {"input_ids": ids, "attention_mask": mask, "bbox": torch.zeros(ROWS, LENGTH, 4, dtype=torch.long)}
    decoder = {"decoder_input_ids": ids, "decoder_attention_mask": mask}
    others = _of_other_kinds(model.config)
    main = getattr(model, "main_input_name", "input_ids")
    of_main = {main: others[main]} if main in others else {}
    for named in (
        {**tokens, **decoder} if main == "input_ids" else {**of_main, **_mask_of_sound(of_main), **decoder},
        {**of_main, **decoder},
        {**tokens, **others},
        others,
    ):
        yield {name: tensor for name, tensor in named.items() if name in taken}


def _mask_of_sound(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One with pads on the right of the first row."""
    sound = next((inputs[name] for name in ("input_features", "input_values") if name in inputs), None)
    if sound is None:
        return {}
    mask = torch.ones(ROWS, sound.shape[-1], dtype=torch.long)
    mask[0, mask.shape[1] * 3 // 4 :] = 0
    return {"attention_mask": mask}


def _of_other_kinds(config: Any) -> dict[str, torch.Tensor]:
    """Pictures and sounds, at the sizes that a configuration says."""
    vision = getattr(config, "vision_config", config)
    size, channels = getattr(vision, "image_size", 16), getattr(vision, "num_channels", 3)
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "input_feat_per_channel", None) or 16
    generator = torch.Generator().manual_seed(0)
    return {
        "pixel_values": torch.randn(
            ROWS, channels if isinstance(channels, int) else 3, height, width, generator=generator
        ),
        "input_features": torch.randn(ROWS, bins, 32, generator=generator),
        "input_values": torch.randn(ROWS, 4000, generator=generator),
    }


# ---- what it says ---------------------------------------------------------------------------------------------------


def expanded(seen: Seen, mask: torch.Tensor) -> torch.Tensor:
    """What is known of a mask, as a mask of its shape."""
    full = torch.ones_like(mask)
    if seen.ranges_B1Q2 is not None:
        full = full & mask_of_ranges(seen.ranges_B1Q2, mask.shape[-1])
    full = full if seen.padding_B11K is None else full & seen.padding_B11K
    return full.tril() if seen.is_causal else full


@contextlib.contextmanager
def watched() -> Iterator[set[str]]:
    """Within the block, each mask's ranges are compared with it; gives what masks, and attention calls, were."""
    seen_kinds: set[str] = set()
    stock = attention.what_is_seen

    def check(*args: Any, **kwargs: Any) -> torch.Tensor:
        mask = nki_mask(*args, **kwargs)
        seen = seen_in(mask)
        seen_kinds.add("ranges" if seen.unknown is None else f"whole: {seen.unknown}")
        if seen.unknown is None and not torch.equal(expanded(seen, mask), mask):
            raise AssertionError(f"ranges of {seen} are not the mask's")
        return mask

    def asked(query: Any, key: Any, mask: Any, is_causal: bool) -> tuple:
        found = stock(query, key, mask, is_causal)
        if mask is not None and seen_in(mask).unknown is not None:
            seen_kinds.add(f"attention: {seen_in(mask).unknown}")
        return found

    with (
        mock.patch.dict(masking_utils.AttentionMaskInterface._global_mapping, {"nki": check}),
        mock.patch.object(attention, "what_is_seen", asked),
    ):
        yield seen_kinds


@torch.no_grad()
def outcome(family: str) -> list[str]:
    """What the family's masks were; one entry "not run: why" where no tiny model of it runs by these rules."""
    with watched() as kinds, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = model_of(family)
        except Exception as error:
            return [f"not made: {type(error).__name__}"]
        inputs = next(filter(partial(_runs, model), inputs_of(model)), None)
        if inputs is None:
            return ["not run"]
        try:
            _run_on_caches(model, inputs)
        except AssertionError:
            raise
        except Exception as error:  # its caches are of another kind, and what came before stays true
            kinds.add(f"no caches: {type(error).__name__}")
    return sorted(kinds)


def _runs(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> bool:
    try:
        model(**inputs)
    except AssertionError:
        raise
    except Exception:
        return False
    return True


def _run_on_caches(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> None:
    """Prompts and one more token, on a cache that grows and on one that does not."""
    takes_cache = "cache" in inspect.signature(type(model).forward).parameters
    if not takes_cache or model.config.is_encoder_decoder or not {"input_ids", "attention_mask"} <= inputs.keys():
        return
    mask = torch.cat([inputs["attention_mask"], torch.ones(ROWS, 1, dtype=torch.long)], 1)
    for cache in (None, StaticCache(config=model.config, max_cache_len=STORE)):
        cache = model(**inputs, cache=cache, use_cache=True).cache
        model(input_ids=inputs["input_ids"][:, :1], attention_mask=mask, cache=cache, use_cache=True)


def main() -> None:
    """Those named on the command line, or all."""
    table = json.loads(TABLE.read_text()) if sys.argv[1:] else {}
    for family, calls in families().items():
        if sys.argv[1:] and family not in sys.argv[1:]:
            table[family]["calls"] = sorted(calls)
            continue
        table[family] = {"calls": sorted(calls), "masks": outcome(family)}
        print(family, table[family]["masks"], file=sys.stderr, flush=True)
        TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
