"""Fine-tuning a classifier with the stock Trainer on the neuron device.

    python examples/finetune_classifier.py

A tiny BERT with random weights learns which of scikit-learn's data set descriptions a sentence was taken from, so that
nothing is downloaded. The script trains eagerly in float32, then compiled in bfloat16 (bf16=True, torch_compile=True),
beside the same runs on the CPU; stops and resumes; and prints the losses and what was compiled.
"""

import argparse
import os
import re
import tempfile
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import optimum_neuron_torch


CLASSES = ("breast_cancer", "california_housing", "kddcup99", "twenty_newsgroups")
SEQUENCE = 32


def read_sentences() -> list[tuple[str, int]]:
    """(sentence, class) pairs from the descriptions that scikit-learn ships."""
    pairs = []
    for label, name in enumerate(CLASSES):
        text = files("sklearn.datasets.descr").joinpath(f"{name}.rst").read_text()
        sentences = re.split(r"(?<=[.:])\s+|\n\s*\n", text)
        pairs += [(" ".join(s.split()), label) for s in sentences if len(re.findall(r"[A-Za-z]{2,}", s)) >= 3]
    return pairs


def make_tokenizer(sentences: list[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer trained on the sentences."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"], show_progress=False)
    tokenizer.train_from_iterator(sentences, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def make_data(size: int = 128) -> tuple[list[dict[str, Any]], PreTrainedTokenizerFast]:
    """`size` examples of one length (one shape is one graph), and their tokenizer."""
    pairs = read_sentences()
    pairs = [pairs[i * 7 % len(pairs)] for i in range(size)]  # mixes the classes
    tokenizer = make_tokenizer([sentence for sentence, _ in pairs])
    encoded = tokenizer(
        [sentence for sentence, _ in pairs], padding="max_length", truncation=True, max_length=SEQUENCE
    )
    keys = ("input_ids", "attention_mask")
    return [
        {**{key: encoded[key][i] for key in keys}, "labels": label} for i, (_, label) in enumerate(pairs)
    ], tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast, *, dropout: float = 0.0) -> BertForSequenceClassification:
    """A two-layer BERT with the same random weights each time."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=SEQUENCE,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=len(CLASSES),
        problem_type="single_label_classification",  # else the first step sets it, and a compiled model compiles again
        pad_token_id=tokenizer.pad_token_id,
    )
    return BertForSequenceClassification(config)


def train(
    data: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerFast,
    folder: str | Path,
    *,
    dropout: float = 0.0,
    resume: str | Path | None = None,
    **settings: Any,
) -> list[float]:
    """The losses of one training run, step by step; `settings` are further TrainingArguments."""
    settings = {"max_steps": 16, "save_strategy": "no", **settings}
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        learning_rate=4e-3,
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        **settings,
    )
    trainer = Trainer(model=make_model(tokenizer, dropout=dropout), args=arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def largest_difference(a: list[float], b: list[float]) -> float:
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()
    data, tokenizer = make_data()
    steps = {"max_steps": arguments.steps}
    print(f"{len(data)} sentences of {len(CLASSES)} texts, {len(tokenizer)} words")

    def run(label: str, folder: str, **settings: Any) -> list[float]:
        print(f"{label} ...", end=" ", flush=True)
        start = time.perf_counter()
        losses = train(data, tokenizer, folder, **{**steps, **settings})
        seconds = time.perf_counter() - start
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {len(losses)} steps in {seconds:.1f} s", flush=True)
        return losses

    with tempfile.TemporaryDirectory() as folder:
        on_cpu = run("cpu, float32", folder, use_cpu=True)
        on_neuron = run("neuron, float32, eager", folder)
        print(f"  largest difference to the CPU's losses: {largest_difference(on_neuron, on_cpu):.1e}")

        on_cpu = run("cpu, bf16", folder, use_cpu=True, bf16=True)
        on_neuron = run("neuron, bf16, compiled", folder, bf16=True, torch_compile=True)
        print(f"  largest difference to the CPU's losses: {largest_difference(on_neuron, on_cpu):.1e}")

        half = arguments.steps // 2
        saving = {"save_strategy": "steps", "save_steps": half, "dropout": 0.1}
        whole = run("neuron, float32, dropout, uninterrupted", folder, **saving)
        checkpoint = os.path.join(folder, f"checkpoint-{half}")
        rest = run(f"neuron, resumed after {half} steps", folder, resume=checkpoint, **saving)
        print(
            f"  largest difference to the uninterrupted run: {largest_difference(rest[-half:], whole[-half:]):.1e}\n"
        )

    print(optimum_neuron_torch.report())


if __name__ == "__main__":
    main()
