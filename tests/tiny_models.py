"""Tiny random models that several test files load."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, LlamaConfig, LlamaForCausalLM


TINY = {
    "vocab_size": 320,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}


def save(model_class: type, config, path) -> str:
    torch.manual_seed(0)
    model_class(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> str:
    config = LlamaConfig(num_key_value_heads=2, eos_token_id=2, **TINY)
    return save(LlamaForCausalLM, config, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> str:
    return save(BertModel, BertConfig(**TINY), tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory) -> str:
    return save(BertForSequenceClassification, BertConfig(num_labels=3, **TINY), tmp_path_factory.mktemp("classifier"))


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(5, 300, (3, 11), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask(ids) -> torch.Tensor:
    """Left padding of one row."""
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return mask
