"""Training and evaluation traffic that users reported as compiling without end: each docstring has the symptom."""

import copy
import random

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)

import optimum_neuron_torch as ont
from examples.finetune_classifier import make_tokenizer, read_sentences


OPTIONS = {"executor": "aten", "lowering": "off"}
TINY = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    made = make_tokenizer([sentence for sentence, _ in read_sentences()])
    made.model_max_length = 64
    return made


def texts(tokenizer: PreTrainedTokenizerFast, count: int, seed: int = 0) -> list[dict]:
    """Sentences of their own lengths, unpadded."""
    chosen = random.Random(seed).sample([pair for pair in read_sentences() if len(pair[0]) > 12], count)
    encoded = tokenizer([sentence for sentence, _ in chosen], truncation=True, max_length=60)
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": label}
        for ids, (_, label) in zip(encoded["input_ids"], chosen, strict=True)
    ]


def classifier(tokenizer: PreTrainedTokenizerFast) -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), num_labels=4, problem_type="single_label_classification",
        pad_token_id=tokenizer.pad_token_id, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **TINY,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def graphs(model: torch.nn.Module) -> int:
    report = ont.report(model)
    return report.graphs + report.cached


@pytest.mark.parametrize("size", [40, 41], ids=["full batches", "a ragged last batch"])
def test_evaluation_of_ten_batches_of_uneven_length(tokenizer, tmp_path, size):
    """Evaluation compiled at every step (https://github.com/huggingface/optimum-neuron/issues/216), and once more for
    the last batch (https://github.com/saforem2/ezpz/pull/190, https://github.com/meta-pytorch/torchtune/pull/1654).
    """
    plain = classifier(tokenizer)
    model = ont.prepare(
        copy.deepcopy(plain).eval(),
        ont.NeuronConfig(buckets=ont.Buckets(batch=[4], sequence=[16, 32, 64]), options=OPTIONS),
    )

    def evaluate(target, data, **settings):
        arguments = TrainingArguments(
            output_dir=str(tmp_path), per_device_eval_batch_size=4, report_to="none", disable_tqdm=True, **settings
        )
        return Trainer(target, arguments, data_collator=DataCollatorWithPadding(tokenizer)).predict(data)

    found, expected = evaluate(model, texts(tokenizer, size)), evaluate(plain, texts(tokenizer, size), use_cpu=True)
    torch.testing.assert_close(
        torch.from_numpy(found.predictions), torch.from_numpy(expected.predictions), rtol=1e-5, atol=1e-5
    )
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-5)
    report = ont.report(model)
    assert report.departures == []
    assert graphs(model) <= len(report.buckets) <= 3
    before = (graphs(model), report.eager_signatures)
    evaluate(model, texts(tokenizer, size, seed=1))
    assert (graphs(model), ont.report(model).eager_signatures) == before


@pytest.mark.parametrize("with_generate", [False, True], ids=["losses", "generated texts"])
def test_evaluation_of_a_seq2seq_trainer(tokenizer, tmp_path, with_generate):
    """Seq2SeqTrainer compiles at every step, since its collator pads to the longest text of each batch
    (https://github.com/philschmid/aws-neuron-samples/issues/4). Without eval_accumulation_steps the Trainer joins
    logits of all lengths on the device.
    """
    torch.manual_seed(0)
    plain = T5ForConditionalGeneration(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=32,
            d_kv=16,
            d_ff=48,
            num_layers=1,
            num_decoder_layers=1,
            num_heads=2,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
            eos_token_id=None,
        )  # fmt: skip
    )
    buckets = ont.Buckets(batch=[4], encoder_sequence=[16, 32, 64], sequence=[8, 16], cache=[16])
    model = ont.prepare(copy.deepcopy(plain).eval(), ont.NeuronConfig(buckets=buckets, options=OPTIONS))

    data = [{**text, "labels": text["input_ids"][:9]} for text in texts(tokenizer, 17)]

    def evaluate(target, data, **settings):
        arguments = Seq2SeqTrainingArguments(
            output_dir=str(tmp_path), per_device_eval_batch_size=4, report_to="none", disable_tqdm=True,
            predict_with_generate=with_generate, generation_max_length=9, eval_accumulation_steps=1, **settings,
        )  # fmt: skip
        collator = DataCollatorForSeq2Seq(tokenizer, model=target)
        return Seq2SeqTrainer(target, arguments, data_collator=collator).predict(data)

    found, expected = evaluate(model, data), evaluate(plain, data, use_cpu=True)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-5)
    if with_generate:
        assert (found.predictions == expected.predictions).all()
    report = ont.report(model)
    assert {departure["kind"] for departure in report.departures} == {"attention"}, "T5 computes its own"
    assert graphs(model) <= len(report.buckets)
    evaluate(model, data[2:] + data[:2])  # other batches, so that every bucket is touched
    before = ont.report(model)
    evaluate(model, data[::-1])
    assert len(ont.report(model).buckets) == len(before.buckets)
    assert (graphs(model), ont.report(model).eager_signatures) == (
        before.graphs + before.cached,
        before.eager_signatures,
    )


def train(model: torch.nn.Module, data: list[dict], collator, folder, **settings) -> list[float]:
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, learning_rate=1e-3, report_to="none", disable_tqdm=True,
        logging_steps=1, save_strategy="no", seed=0, dataloader_drop_last=True, **settings,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_fifty_training_steps_of_random_lengths(tokenizer, tmp_path, is_prepared):
    """More time went into compiling than into training, sequences being of any length
    (https://github.com/aws-neuron/aws-neuron-sdk/issues/783): padded to a multiple by the stock collator, 50 steps
    make a forward and a backward graph for each of four lengths.
    """
    model = classifier(tokenizer)
    if is_prepared:
        ont.prepare(model, ont.NeuronConfig(options=OPTIONS))
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=16)
    before = ont.report()
    losses = train(model, texts(tokenizer, 100) * 2, collator, tmp_path, max_steps=50, torch_compile=True)
    after = ont.report()
    assert len(losses) == 50 and losses[-1] < losses[0]
    assert 0 < after.graphs + after.cached - before.graphs - before.cached <= 2 * 4


@pytest.mark.parametrize("multiple", [32], ids=lambda multiple: f"multiples of {multiple}")
def test_batches_of_two_lengths(tokenizer, multiple):
    """Chosen and rejected answers, or prompts and completions, of changing lengths compile at every step
    (https://github.com/pytorch/pytorch/issues/188150, https://github.com/huggingface/trl/pull/5180): scored without
    gradients by a prepared model, as a reference model is.
    """
    torch.manual_seed(0)
    plain = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=1, **TINY)).eval()
    buckets = ont.Buckets(batch=[8], sequence=[multiple, 2 * multiple])
    model = ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(buckets=buckets, options=OPTIONS))
    chance = random.Random(0)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        """Right-padded pairs, as preference trainers concatenate them."""
        lengths = [chance.randint(5, 30) for _ in range(4)] + [chance.randint(5, 60) for _ in range(4)]
        ids = torch.zeros(8, max(lengths), dtype=torch.long)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.tensor([chance.randint(2, 200) for _ in range(length)])
        return ids, (ids != 0).long()

    for step in range(12):
        ids, mask = batch()
        with torch.no_grad():
            found = model(ids, attention_mask=mask, use_cache=False).logits.cpu()
            expected = plain(ids, attention_mask=mask, use_cache=False).logits
        real = mask.bool()
        assert (found[real] - expected[real]).abs().max() <= 1e-5 * max(1.0, expected.abs().max())
        if step == 5:
            before = (graphs(model), ont.report(model).eager_signatures)
    report = ont.report(model)
    assert report.departures == [] and graphs(model) == len(report.buckets) <= 2
    assert (graphs(model), report.eager_signatures) == before
