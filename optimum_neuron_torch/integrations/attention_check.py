"""Whether a text model computes the same with attention "nki" as with the one it had: asked once, at its first call.

Some models do arithmetic on masks in the form that their own attention takes, or leave something out for attentions
whose name they do not know. What was found is kept beside the model's graphs.
"""

import hashlib
import inspect
import threading
from typing import Any

import torch

from .. import runtime
from ..buckets.manifest import Manifest
from ..buckets.shallow import twin_for_checks
from ..buckets.sources import versions
from ..buckets.state import describe
from ..config import NeuronConfig
from ..report import Ledger
from .attention import NAME


TOLERANCE = 1e-5
ROWS, LENGTH, PADS = 2, 13, 4


class AttentionCheck:
    """Compares attention "nki" of one model with `previous`, and goes back to that where they differ.

    `previous` is None once nothing is left to take back.
    """

    def __init__(self, model: torch.nn.Module, previous: str | None, config: NeuronConfig, ledger: Ledger) -> None:
        self.previous = previous
        self._model, self._ledger = model, ledger
        self._is_settled = previous is None or config.attn_implementation != NAME or config.verify is False
        self._lock = threading.Lock()

    def settle(self) -> None:
        """Run the check, where it was not run yet."""
        if self._is_settled:
            return
        with self._lock:
            if not self._is_settled:
                self._settle()
                self._is_settled = True

    def _settle(self) -> None:
        if self._model.config._attn_implementation != NAME:  # the user chose another one since
            return
        reason = _difference(self._model, self.previous)
        if reason is None:
            return
        self._model.set_attn_implementation(self.previous)
        kept, self.previous = self.previous, None
        self._ledger.depart("attention", type(self._model).__name__, f"{reason}: {kept!r} is kept")


def _difference(model: torch.nn.Module, previous: str) -> str | None:
    """How far the outputs are apart, or None."""
    if getattr(model, "main_input_name", None) != "input_ids":
        return None
    manifest = Manifest(model) if runtime.graph_directory() is not None else None
    key = _key(model, previous)
    found = manifest.check(key) if manifest is not None else None
    if found is None:
        with runtime.simulating(False):  # it is the model's code that is asked, on the host
            found = {"reason": _compare(model, previous)}
        if manifest is not None:
            manifest.checked(key, found)
    return found["reason"]


def _key(model: torch.nn.Module, previous: str) -> str:
    facts = (type(model).__module__, type(model).__qualname__, describe(model.config), previous, versions())
    return "attention " + hashlib.sha256(repr(facts).encode()).hexdigest()[:20]


def _compare(model: torch.nn.Module, previous: str) -> str | None:
    try:
        twin = twin_for_checks(model)
        inputs = _inputs(twin)
        expected, found = (_run(twin, name, inputs) for name in (previous, NAME))
    except Exception:  # what does not run as itself is refused where it is called, with its own message
        return None
    for name, output in expected.items():
        scale = max(1.0, output.abs().max().item())
        difference = (output - found[name]).abs().max().item()
        if not difference <= TOLERANCE * scale:
            return f"attention {NAME!r} changes {name} by {difference:.1e} (values up to {scale:.1f})"
    return None


def _inputs(twin: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Two rows of ids, one of them padded on the left."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = twin.config.get_text_config(decoder=True).vocab_size
    ids_BS = torch.randint(min(5, vocabulary - 1), vocabulary, (ROWS, LENGTH), generator=generator)
    mask_BS = torch.ones_like(ids_BS)
    mask_BS[1, :PADS] = 0
    inputs = {"input_ids": ids_BS, "attention_mask": mask_BS, "decoder_input_ids": ids_BS[:, :PADS]}
    taken = inspect.signature(type(twin).forward).parameters
    return {name: tensor for name, tensor in inputs.items() if name in taken}


@torch.no_grad()
def _run(twin: torch.nn.Module, attention: str, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The outputs at real positions that are floating point tensors, by name."""
    twin.set_attn_implementation(attention)
    output = type(twin).forward(twin, **inputs, return_dict=True)
    named: dict[str, Any] = {name: value for name, value in output.items() if isinstance(value, torch.Tensor)}
    mask_BS = inputs.get("attention_mask")
    return {
        name: value[mask_BS.bool()] if mask_BS is not None and value.shape[:2] == mask_BS.shape else value
        for name, value in named.items()
        if value.is_floating_point()
    }
