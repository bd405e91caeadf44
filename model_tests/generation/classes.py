"""The classes of the sweep: every causal and every sequence-to-sequence language model that Transformers knows."""

from __future__ import annotations

from dataclasses import dataclass

import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto import modeling_auto


KINDS = {"causal": "Causal language models", "seq2seq": "Sequence-to-sequence models"}
_MAPPINGS = {
    "causal": (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,),
    "seq2seq": (
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    ),
}


@dataclass(frozen=True)
class ModelClass:
    """A class for one model type; `kind` is the Auto mapping it is from."""

    kind: str
    model_type: str
    class_name: str

    @property
    def model_class(self) -> type[transformers.PreTrainedModel]:
        return getattr(transformers, self.class_name)

    @property
    def config_class(self) -> type[PretrainedConfig]:
        """The configuration the class is made from: its own, or that of a type which shares the class."""
        own, mapped = self.model_class.config_class, CONFIG_MAPPING[self.model_type]
        # A composite configuration is in the mappings beside the class of its text part.
        return own if own is not None and mapped.sub_configs else mapped

    @property
    def name(self) -> str:
        shared = self.model_class.config_class not in (None, self.config_class)
        return f"{self.class_name} ({self.model_type})" if shared else self.class_name


def every() -> dict[str, ModelClass]:
    """The classes by name, one that several types share once for each configuration it can be made from."""
    found: dict[str, ModelClass] = {}
    for kind, mappings in _MAPPINGS.items():
        for mapping in mappings:
            for model_type, class_name in mapping.items():
                entry = ModelClass(kind, model_type, class_name)
                found.setdefault(entry.name, entry)
    return found
