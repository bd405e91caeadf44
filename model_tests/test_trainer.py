"""The stock Trainer on neuron gives the CPU's losses, eagerly and compiled, and resumes where it stopped."""

import itertools

import pytest
import torch
from transformers import Trainer, TrainingArguments

import optimum_neuron_torch
from examples.finetune_classifier import largest_difference, make_data, make_model, train


# bfloat16 keeps 8 bits: a loss near 1 is known to 2**-8; over a dozen steps the two kernels drift by a few of these.
BF16_TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def examples():
    return make_data(64)


def test_eager_float32_gives_the_cpus_losses(examples, tmp_path):
    settings = {"max_steps": 8}
    on_cpu = train(*examples, tmp_path, use_cpu=True, **settings)
    on_neuron = train(*examples, tmp_path, **settings)
    assert len(on_neuron) == 8 and on_neuron[-1] < on_neuron[0]
    assert largest_difference(on_neuron, on_cpu) <= 1e-5


def test_compiled_float32_gives_the_cpus_losses(examples, tmp_path):
    settings = {"max_steps": 8}
    on_cpu = train(*examples, tmp_path, use_cpu=True, **settings)
    on_neuron = train(*examples, tmp_path, torch_compile=True, **settings)
    assert largest_difference(on_neuron, on_cpu) <= 1e-5


def test_compiled_bf16_gives_the_cpus_losses(examples, tmp_path):
    settings = {"max_steps": 8, "bf16": True}
    on_cpu = train(*examples, tmp_path, use_cpu=True, **settings)
    before = optimum_neuron_torch.report()
    on_neuron = train(*examples, tmp_path, torch_compile=True, **settings)
    after = optimum_neuron_torch.report()
    assert on_neuron[-1] < on_neuron[0]
    assert largest_difference(on_neuron, on_cpu) <= BF16_TOLERANCE
    assert after.graphs + after.cached - before.graphs - before.cached == 2  # forward and backward, once


def test_compiled_training_is_backend_neuron_at_static_shapes(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), torch_compile=True, report_to="none")
    assert arguments.torch_compile_backend == "neuron"


@pytest.mark.parametrize("settings", [{}, {"bf16": True, "torch_compile": True}], ids=["eager", "compiled bf16"])
def test_resumed_losses_equal_those_of_an_uninterrupted_run(examples, tmp_path, settings):
    settings = {**settings, "dropout": 0.2, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = train(*examples, tmp_path, **settings)
    torch.rand(1, device="neuron")  # the state at the end of a run is not the state to go on with
    resumed = train(*examples, tmp_path, resume=tmp_path / "checkpoint-3", **settings)
    assert resumed[3:] == whole[3:]


def test_without_the_random_state_they_would_differ(examples, tmp_path):
    settings = {"dropout": 0.2, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = train(*examples, tmp_path, **settings)
    path = tmp_path / "checkpoint-3" / "rng_state.pth"
    states = torch.load(path, weights_only=False)
    torch.save({name: state for name, state in states.items() if name != "neuron"}, path)
    assert train(*examples, tmp_path, resume=path.parent, **settings)[3:] != whole[3:]


def test_evaluation_and_a_ragged_last_batch(examples, tmp_path):
    data, tokenizer = examples

    def evaluate(**settings):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_eval_batch_size=10, report_to="none", disable_tqdm=True, **settings
        )
        trainer = Trainer(model=make_model(tokenizer), args=arguments, eval_dataset=data[:25])
        output = trainer.predict(data[:25])
        return trainer.evaluate()["eval_loss"], torch.from_numpy(output.predictions)

    (loss, logits), (expected_loss, expected) = evaluate(), evaluate(use_cpu=True)
    assert loss == pytest.approx(expected_loss, abs=1e-5)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def test_checkpoints_are_those_of_the_cpu(examples, tmp_path):
    """Weights saved on neuron load on a machine without it."""
    from transformers import BertForSequenceClassification

    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    train(*examples, tmp_path / "neuron", **settings)
    train(*examples, tmp_path / "cpu", use_cpu=True, **settings)
    ours, theirs = (
        BertForSequenceClassification.from_pretrained(tmp_path / device / "checkpoint-2")
        for device in ("neuron", "cpu")
    )
    for (name, a), (_, b) in itertools.zip_longest(ours.named_parameters(), theirs.named_parameters()):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0, msg=name)
