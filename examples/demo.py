"""Two real models on the neuron device, and the same on the plain CPU beside them: run by `make demo`.

SmolLM2-135M-Instruct answers five prompts in a batch and one by one, all-MiniLM-L6-v2 embeds thirty sentences. Then
a table says what was compiled, what ran eagerly, how much was padding and where the time went.
"""

import time


START = time.perf_counter()

import argparse  # noqa: E402
from contextlib import contextmanager  # noqa: E402

import torch  # noqa: E402
from packaged_models import minilm, smollm2  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer  # noqa: E402

import optimum_neuron_torch as ont  # noqa: E402


console = Console()
NEW_TOKENS = 24
PROMPTS = [
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea that a child of six years would understand and enjoy.",
    "Summarise in one sentence: The library opens at nine in the morning and closes at six in the evening on working "
    "days. On Saturdays it opens an hour later, and on Sundays and holidays it stays closed. Children under ten need "
    "to come with an adult.",
    "Answer in one word. A farmer has a fox, a goose and a bag of beans, and a boat that holds the farmer and one of "
    "them. Left alone, the fox would eat the goose, and the goose would eat the beans. The farmer first takes the "
    "goose across the river, goes back alone, takes the fox across, brings the goose back, leaves it on the first "
    "bank, takes the beans across, goes back alone, and takes the goose across once more. Now all of them are on the "
    "other side of the river and nothing was eaten. Which of the three was carried over the river more than once?",
]
SUBJECTS = ["The ship", "My neighbour's cat", "A theory of everything", "The old bridge over the river", "Bread"]
PREDICATES = [
    "sank.",
    "sleeps on the warm stones behind the bakery.",
    "was discussed at length by people who had never read a word about it.",
    "was painted green in the year in which the mayor lost the election and, a few weeks later, his only umbrella.",
    "is made of flour, water, salt and time, and whoever leaves out the last of the four will taste it in every "
    "slice, however good the oven and however dear the flour.",
    "belongs to those things that are best seen early in the morning, before the market opens, when the light lies "
    "low over the roofs and the first carts come up the hill, because later in the day there are too many people, too "
    "much noise, and nobody who would tell the story of the bell that rang by itself on the night of the great flood, "
    "which every child here once knew by heart and which nobody has ever written down.",
]
SENTENCES = [f"{subject} {predicate}" for subject in SUBJECTS for predicate in PREDICATES]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--executor", choices=["aten", "inductor"], default="aten", help="the emulator's executor")
    options = {"executor": arguments.parse_args().executor}
    clock = Clock()
    with clock.phase("models from their packages"):
        chat_dir, embed_dir = smollm2(), minilm()
        tokenizer, embed_tokenizer = AutoTokenizer.from_pretrained(chat_dir), AutoTokenizer.from_pretrained(embed_dir)
    tokenizer.padding_side = "left"

    # The one changed line: device_map="neuron". The buckets are a choice, not a need.
    chat_buckets = ont.Buckets(batch=[1, len(PROMPTS)], sequence=[64, 128, 256], cache=[288])
    embed_buckets = ont.Buckets(batch=[6], sequence=[16, 32, 64, 128])
    with clock.phase("load to neuron"):
        config = ont.NeuronConfig(buckets=chat_buckets, options=options)
        chat = AutoModelForCausalLM.from_pretrained(chat_dir, device_map="neuron", neuron_config=config)
        config = ont.NeuronConfig(buckets=embed_buckets, options=options)
        embedder = AutoModel.from_pretrained(embed_dir, device_map="neuron", neuron_config=config)
    with clock.phase("warm up SmolLM2"):
        ont.warmup(chat, ont.Buckets(batch=[1], sequence=[64], cache=[288]))
        first = answer(chat, tokenizer, PROMPTS[:1])
        first_result = time.perf_counter() - START
        ont.warmup(chat, ont.Buckets(batch=[1], sequence=[128, 256], cache=[288]))
        ont.warmup(chat, ont.Buckets(batch=[len(PROMPTS)], sequence=[256], cache=[288]))
    with clock.phase("warm up MiniLM"):
        ont.warmup(embedder)
    warm = ont.report()

    with clock.phase("answer in a batch"):
        batched = answer(chat, tokenizer, PROMPTS)
    with clock.phase("answer one by one"):
        singly = [answer(chat, tokenizer, [prompt])[0] for prompt in track(PROMPTS, "answering", console=console)]
    with clock.phase("embed 30 sentences"):
        embeddings = embed(embedder, embed_tokenizer, SENTENCES)
    report = ont.report()
    peak = torch.accelerator.max_memory_allocated()

    with clock.phase("the same on the plain CPU"):
        plain_chat = AutoModelForCausalLM.from_pretrained(chat_dir)
        plain_batched = answer(plain_chat, tokenizer, PROMPTS)
        plain_singly = [answer(plain_chat, tokenizer, [prompt])[0] for prompt in PROMPTS]
        plain_embeddings = embed(AutoModel.from_pretrained(embed_dir), embed_tokenizer, SENTENCES)

    show_answers(tokenizer, singly)
    print(report)
    show_phases(clock, report, warm, first_result, peak)
    same = [
        ("first answer", first == plain_singly[:1]),
        ("answers in a batch", batched == plain_batched),
        ("answers one by one", singly == plain_singly),
        ("embeddings", (embeddings - plain_embeddings).abs().max().item() <= 1e-5),
    ]
    for what, is_same in same:
        console.print(f"{what}: {'[green]as on the CPU' if is_same else '[bold red]NOT as on the CPU'}")
    difference = (embeddings - plain_embeddings).abs().max().item()
    console.print(f"largest difference of an embedding to the CPU's: {difference:.1e}")
    raise SystemExit(0 if all(is_same for _, is_same in same) else 1)


def answer(model: torch.nn.Module, tokenizer, prompts: list[str]) -> list[list[int]]:
    """The new token ids for each prompt, greedily; ids stay on the host, where the generation loop grows them."""
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    output = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return output[:, inputs["input_ids"].shape[1] :].tolist()


@torch.no_grad()
def embed(model: torch.nn.Module, tokenizer, sentences: list[str]) -> torch.Tensor:
    """One vector of length 1 per sentence: the mean over its tokens."""
    vectors = []
    for start in range(0, len(sentences), 6):
        inputs = tokenizer(sentences[start : start + 6], return_tensors="pt", padding=True, truncation=True)
        hidden = model(**inputs).last_hidden_state.cpu()
        mask = inputs["attention_mask"][..., None]
        vectors.append(torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)))
    return torch.cat(vectors)


class Clock:
    """Seconds per phase, in order."""

    def __init__(self) -> None:
        self.phases = {"imports": time.perf_counter() - START}

    @contextmanager
    def phase(self, name: str):
        console.rule(name, align="left")
        start = time.perf_counter()
        yield
        self.phases[name] = time.perf_counter() - start


def show_answers(tokenizer, answers: list[list[int]]) -> None:
    table = Table(title="answers", title_justify="left", show_lines=True)
    table.add_column("prompt", max_width=60)
    table.add_column("SmolLM2-135M-Instruct on neuron", max_width=60)
    for prompt, ids in zip(PROMPTS, answers, strict=True):
        short = prompt if len(prompt) <= 100 else prompt[:97] + "..."
        table.add_row(short, tokenizer.decode(ids, skip_special_tokens=True))
    console.print(table)


def show_phases(clock: Clock, report: ont.Report, warm: ont.Report, first_result: float, peak: int) -> None:
    table = Table(title="time and memory", title_justify="left")
    table.add_column("what")
    table.add_column("figure", justify="right")
    for name, seconds in clock.phases.items():
        table.add_row(name, f"{seconds:.1f} s")
    table.add_row("from start to the first answer", f"{first_result:.1f} s")
    table.add_row("peak HBM", f"{peak / 2**20:.0f} MiB")
    table.add_row("graphs after warm-up", f"+{report.graphs + report.cached - warm.graphs - warm.cached}")
    if report.eager_signatures is not None:
        table.add_row("eager signatures after warm-up", f"+{report.eager_signatures - warm.eager_signatures}")
    console.print(table)


if __name__ == "__main__":
    main()
