"""Stock Transformers code on the device: generation, training and saving give what they give on the CPU."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(directory)
    return str(directory)


def on_device(checkpoint: str) -> LlamaForCausalLM:
    """Moved by `.to`, so that what is tested is the device and stock code, not the plugin."""
    return LlamaForCausalLM.from_pretrained(checkpoint).to("neuron")


@pytest.mark.parametrize("settings", [{"do_sample": False}, {"do_sample": True, "top_k": 20}, {"num_beams": 3}])
def test_generate(neuron, checkpoint, settings):
    ids = torch.randint(5, 120, (2, 7), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": 8, "attention_mask": torch.ones_like(ids), **settings}
    torch.manual_seed(1)
    expected = LlamaForCausalLM.from_pretrained(checkpoint).generate(ids, **options)
    torch.manual_seed(1)
    options["attention_mask"] = options["attention_mask"].to(neuron)
    actual = on_device(checkpoint).generate(ids.to(neuron), **options)
    assert torch.equal(actual.cpu(), expected)


class Sequences(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(5, 120, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def losses(checkpoint: str, directory: str, **settings) -> list[float]:
    arguments = TrainingArguments(
        output_dir=directory,
        max_steps=4,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        seed=3,
        **settings,
    )
    trainer = Trainer(model=LlamaForCausalLM.from_pretrained(checkpoint), args=arguments, train_dataset=Sequences())
    trainer.train()
    assert trainer.model.device.type == ("cpu" if settings.get("use_cpu") else "neuron")
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer(neuron, checkpoint, tmp_path):
    """With its defaults, pinned memory and fused AdamW among them; bfloat16 autocast is close to float32."""
    expected = losses(checkpoint, str(tmp_path / "cpu"), use_cpu=True)
    assert losses(checkpoint, str(tmp_path / "neuron")) == pytest.approx(expected, abs=1e-4)
    assert losses(checkpoint, str(tmp_path / "bf16"), bf16=True) == pytest.approx(expected, abs=0.05)
    assert (tmp_path / "neuron" / "checkpoint-4").is_dir()


def test_save_and_load(neuron, checkpoint, tmp_path):
    model = on_device(checkpoint)
    torch.save(model.state_dict(), tmp_path / "state.pt")
    model.save_pretrained(tmp_path / "saved")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    loaded = torch.load(tmp_path / "state.pt", map_location="cpu")
    assert all(torch.equal(loaded[name], weight) for name, weight in again.state_dict().items())
