"""The Trainer on neuron: random state in checkpoints, float16 refused before anything is loaded."""

import logging

import pytest
import torch
from transformers import Trainer, TrainingArguments

import optimum_neuron_torch
from optimum_neuron_torch.wiring.trainer import ENTRIES


@pytest.fixture
def trainer(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), report_to="none")
    return Trainer(model=torch.nn.Linear(2, 2), args=arguments)


def draws() -> list[torch.Tensor]:
    return [torch.rand(4), torch.rand(4, device="neuron").cpu()]


def test_arguments_end_on_neuron(trainer):
    assert trainer.args.device == torch.device("neuron:0")
    assert next(trainer.model.parameters()).device == torch.device("neuron:0")


def test_random_state_is_saved_and_restored(trainer, tmp_path):
    torch.manual_seed(0)
    trainer._save_rng_state(str(tmp_path))
    expected = draws()
    draws()
    trainer._load_rng_state(str(tmp_path))
    for found, wanted in zip(draws(), expected, strict=True):
        assert torch.equal(found, wanted)


def test_the_file_keeps_the_trainers_own_scheme(trainer, tmp_path):
    trainer._save_rng_state(str(tmp_path))
    states = torch.load(tmp_path / "rng_state.pth", weights_only=False)
    assert set(states) == {"python", "numpy", "cpu", "neuron"}
    assert [path.name for path in tmp_path.iterdir() if "rng_state" in path.name] == ["rng_state.pth"]


def test_a_checkpoint_without_the_state_is_said(trainer, tmp_path, caplog):
    trainer._save_rng_state(str(tmp_path))
    states = torch.load(tmp_path / "rng_state.pth", weights_only=False)
    del states["neuron"]
    torch.save(states, tmp_path / "rng_state.pth")
    with caplog.at_level(logging.WARNING):
        trainer._load_rng_state(str(tmp_path))
    assert "no random state of the neuron device" in caplog.text


def test_a_failed_write_leaves_the_stock_file(trainer, tmp_path, monkeypatch):
    trainer._save_rng_state(str(tmp_path))
    before = (tmp_path / "rng_state.pth").read_bytes()
    saved = torch.save

    def save(states, name, *args, **kwargs):
        saved(states, name, *args, **kwargs)
        if "neuron" in states:
            raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(OSError, match="No space left"):
        trainer._save_rng_state(str(tmp_path))
    states = torch.load(tmp_path / "rng_state.pth", weights_only=False)
    assert set(states) >= {"python", "numpy", "cpu"} and before
    assert [path.name for path in tmp_path.iterdir() if "rng_state" in path.name] == ["rng_state.pth"]


def test_float16_is_refused_early(tmp_path):
    with pytest.raises(ValueError, match="fp16=True is not supported on the neuron device.*gradient scaler.*Use bf16"):
        TrainingArguments(output_dir=str(tmp_path), fp16=True)


@pytest.mark.parametrize("settings", [{"fp16": True, "use_cpu": True}, {"bf16": True}, {"fp16_full_eval": True}])
def test_other_precisions_are_not_refused(tmp_path, settings):
    TrainingArguments(output_dir=str(tmp_path), **settings)


def test_undo():
    names = {entry.name for entry in ENTRIES}
    assert names <= set(optimum_neuron_torch.wiring.wired())
    ours = Trainer._save_rng_state
    optimum_neuron_torch.unwire()
    try:
        assert Trainer._save_rng_state is ours.__wrapped__
        assert not hasattr(TrainingArguments.__post_init__, "__wrapped__")
    finally:
        optimum_neuron_torch.wire()
    assert Trainer._save_rng_state is not ours.__wrapped__
