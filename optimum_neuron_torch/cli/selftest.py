"""`optimum-cli neuron selftest`: a tiny model end to end on the device, each result beside the CPU's.

The models are random and made on the spot: nothing is downloaded. Which weights they have does not matter, since the
answer to compare with comes from the same model on the CPU.
"""

import copy
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from optimum.commands.base import CommandInfo

from .verb import FAILED, NeuronVerb


PROMPT_LENGTHS = (3, 7, 12)
NEW_TOKENS = 6
# Largest difference of float32 results, relative to the largest magnitude of the CPU's.
TOLERANCE = 1e-5


class SelftestCommand(NeuronVerb):
    COMMAND = CommandInfo(name="selftest", help="Run tiny models on the device and compare them with the CPU.")

    @staticmethod
    def parse_args(parser: ArgumentParser) -> None:
        parser.add_argument(
            "--executor",
            choices=("inductor", "aten", "xla"),
            default="aten",
            help="What the emulated device runs graphs with (default: aten, which starts at once).",
        )

    def execute(self) -> int:
        from rich.console import Console

        from ..runtime import is_emulated, resolve_device

        device = resolve_device()
        console = Console(highlight=False, markup=False)
        console.print(f"{device}, {'emulated' if is_emulated() else 'native'}")
        checks: dict[str, Callable[[], str]] = {
            "eager op": lambda: _check_eager(device),
            "training step": lambda: _check_training(device),
            "encoder, bucketed": lambda: _check_encoder(device, self.args.executor),
            "generate(), bucketed": lambda: _check_generation(device, self.args.executor),
        }
        return FAILED if sum(not _passes(name, check, console) for name, check in checks.items()) else 0


def _passes(name: str, check: Callable[[], str], console: Any) -> bool:
    start = time.perf_counter()
    try:
        passed, detail = True, check()
    except Exception as error:
        # All checks are run, whatever one of them meets: which fail together says where to look.
        passed, detail = False, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    console.print(f"{'passed' if passed else 'FAILED':7} {name:22} {seconds:6.1f} s  {detail}")
    return passed


def _check_eager(device: Any) -> str:
    import torch

    left, right = torch.randn(5, 7), torch.randn(7, 3)
    return _compare((left.to(device) @ right.to(device)).cpu(), left @ right)


def _check_training(device: Any) -> str:
    import torch

    def loss_after_step(module: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        module(inputs).square().mean().backward()
        optimizer.step()
        return module(inputs).square().mean().detach().cpu()

    module, inputs = torch.nn.Linear(6, 4), torch.randn(8, 6)
    on_device = copy.deepcopy(module).to(device)
    return _compare(loss_after_step(on_device, inputs.to(device)), loss_after_step(module, inputs))


def _check_encoder(device: Any, executor: str) -> str:
    import torch
    from transformers import BertConfig, BertModel

    model = _seeded(BertModel, BertConfig, num_attention_heads=2)
    prepared = _prepare(model, device, executor)
    details = []
    for length in PROMPT_LENGTHS:
        inputs = {"input_ids": _ids(length), "attention_mask": torch.ones(1, length, dtype=torch.long)}
        with torch.no_grad():
            expected = model(**inputs).last_hidden_state
            result = prepared(**{name: tensor.to(device) for name, tensor in inputs.items()}).last_hidden_state
        details.append(_compare(result.cpu(), expected))
    return details[-1]


def _check_generation(device: Any, executor: str) -> str:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model = _seeded(LlamaForCausalLM, LlamaConfig, num_attention_heads=2, num_key_value_heads=1)
    prepared = _prepare(model, device, executor)
    for length in PROMPT_LENGTHS:
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "attention_mask": torch.ones_like(_ids(length))}
        expected = model.generate(_ids(length), **settings)
        result = prepared.generate(_ids(length), **settings).cpu()
        if not torch.equal(result, expected):
            raise ValueError(f"prompt of {length} tokens: {result.tolist()}, on the CPU {expected.tolist()}")
    return f"{NEW_TOKENS} tokens equal for prompts of {', '.join(map(str, PROMPT_LENGTHS))}"


def _seeded(model_class: type, config_class: type, **sizes: int) -> Any:
    import torch

    torch.manual_seed(0)
    config = config_class(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, max_position_embeddings=64, **sizes
    )
    model = model_class(config).eval()
    if model.can_generate():
        # Without an end token each generation has its full length.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


def _prepare(model: Any, device: Any, executor: str) -> Any:
    import optimum_neuron_torch as ont

    on_device = copy.deepcopy(model).to(device)
    return ont.prepare(on_device, ont.NeuronConfig(options={"executor": executor}))


def _ids(length: int) -> Any:
    import torch

    return torch.arange(1, length + 1).remainder(63)[None]


def _compare(result: Any, expected: Any) -> str:
    """Raises ValueError where `result` is further from `expected` than the tolerance allows."""
    difference = ((result - expected).abs().max() / expected.abs().max()).item()
    if not difference <= TOLERANCE:
        raise ValueError(f"differs from the CPU by {difference:.1e} of its largest value, limit {TOLERANCE:.0e}")
    return f"largest difference {difference:.1e}"
