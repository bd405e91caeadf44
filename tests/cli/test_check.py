"""`check` says of a configuration alone what would leave the buckets, not lower, or run elsewhere."""

import json
import shutil

import pytest
import torch_neuronx
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2Model,
)

from tests.tiny_models import save


@pytest.fixture(autouse=True)
def no_ops_before():
    """What ran on the CPU is counted for the whole process: leave out what other tests ran there."""
    torch_neuronx.clear_op_tracking()


def findings(run_cli, folder) -> dict[str, dict]:
    outcome = run_cli("neuron", "check", str(folder), "--json")
    found = json.loads(outcome.out)
    assert outcome.code == (0 if all(finding["is_good"] for finding in found) else 1)
    return {finding["what"]: finding for finding in found}


def test_a_decoder_from_its_configuration_alone(run_cli, tiny_llama, tmp_path):
    shutil.copy(f"{tiny_llama}/config.json", tmp_path)
    found = findings(run_cli, tmp_path)
    assert found["forward() lowers"]["is_good"] and found["generate() lowers"]["is_good"]
    assert {"prefill", "decode"} <= set(found["buckets"]["detail"].split(", "))
    assert found["attention"]["is_good"] and found["attention"]["detail"].startswith("nki")
    assert found["ops on the CPU"] == {"what": "ops on the CPU", "is_good": True, "detail": "none"}
    outcome = run_cli("neuron", "check", str(tmp_path))
    assert "generate() lowers" in outcome.out


def test_attention_that_is_not_asked_by_name_is_found(run_cli, tmp_path):
    config = BloomConfig(vocab_size=320, hidden_size=32, n_layer=2, n_head=2)
    found = findings(run_cli, save(BloomForCausalLM, config, tmp_path))
    assert "has no effect" in found["attention, BloomForCausalLM"]["detail"]


def test_pictures_are_checked(run_cli, tmp_path):
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, image_size=32, patch_size=8
    )
    found = findings(run_cli, save(ViTForImageClassification, config, tmp_path))
    assert found["forward() lowers"]["is_good"] and "generate() lowers" not in found


def test_an_input_that_is_not_known_is_a_message(run_cli, tmp_path):
    config = Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, conv_dim=(16,),
        conv_kernel=(4,), conv_stride=(4,), num_feat_extract_layers=1, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    outcome = run_cli("neuron", "check", save(Wav2Vec2Model, config, tmp_path))
    assert outcome.code == 1 and "input_values" in outcome.err


@pytest.mark.parametrize("content", [None, "{}", '{"model_type": "nothing"}'])
def test_a_folder_without_a_configuration_is_a_message(run_cli, tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    outcome = run_cli("neuron", "check", str(tmp_path))
    assert outcome.code == 1 and outcome.err.startswith("optimum-cli neuron check: ")
