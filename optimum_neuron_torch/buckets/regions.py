"""Running a step eagerly with its repeated blocks compiled: their calls are intercepted while the step runs."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..report import Ledger
from .blocks import Twin, give_back, run_block, taken_apart
from .capturing import is_recording
from .flat import NotFlatError
from .keys import process_state, signature
from .notes import counting
from .shell import HOOKS
from .state import ModuleState


# (name, step, key, states, args): the compiled `step`, and what it gives for `args`.
Make = Callable[[str, Callable, tuple, list[str], tuple], tuple[Callable, Any]]


@dataclass
class StepCalls:
    """One run of a step: its blocks, its name, who compiles, and how many calls of blocks it made."""

    blocks: Sequence[torch.nn.Module]
    function: str
    make: Make
    count: int = 0


class Regions:
    """The blocks of one prepared object's models, and what was compiled for their calls."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._twins: dict[int, tuple[torch.nn.Module, ModuleState, str, Twin]] = {}
        self._unread: dict[tuple, frozenset] = {}

    def run(
        self, blocks: Sequence[torch.nn.Module], function: str, step: Callable, args: Sequence[Any], make: Make
    ) -> Any:
        """`step(*args)` with `blocks` compiled; `make` compiles, or finds what was compiled before (see graphs.py)."""
        step_calls = StepCalls(blocks, function, make)
        with contextlib.ExitStack() as stack:
            for block in blocks:
                stack.enter_context(self._intercepted(block, step_calls))
            result = step(*args)
        if not step_calls.count:
            self.ledger.depart("stock_path", function, "its repeated blocks are not called: it runs eagerly")
        return result

    @contextlib.contextmanager
    def _intercepted(self, block: torch.nn.Module, step: "StepCalls") -> Iterator[None]:
        # Another library's, or the user's own.
        if "forward" in block.__dict__ or block._compiled_call_impl is not None:
            self.ledger.depart("stock_path", _where(step.function, block), "something else replaced its forward")
            yield
            return
        thread = threading.get_ident()

        def forward(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:  # a call of the same module outside this step
                return type(block).forward(block, *args, **kwargs)
            step.count += 1
            return self._call(block, step, args, kwargs)

        block.__dict__[HOOKS], block.__dict__["forward"] = ("forward",), forward
        try:
            yield
        finally:
            del block.__dict__[HOOKS], block.__dict__["forward"]

    def _call(self, block: torch.nn.Module, step: "StepCalls", args: tuple, kwargs: dict[str, Any]) -> Any:
        twin = self._twin(block, step.blocks)
        reason = twin.reason
        if reason is None and is_recording(twin.inner_keys):
            reason = "outputs are recorded inside it"
        if reason is None:
            try:
                return self._call_compiled(twin, step, args, kwargs)
            except (NotFlatError, torch._dynamo.exc.Unsupported) as error:
                reason = str(error).splitlines()[0]
        self.ledger.depart("stock_path", _where(step.function, block), f"it runs eagerly: {reason}")
        return type(block).forward(block, *args, **kwargs)

    def _call_compiled(self, twin: Twin, step: "StepCalls", args: tuple, kwargs: dict[str, Any]) -> Any:
        spec, given = taken_apart(args, kwargs, twin.index)
        # A model's first block often gets a transposed view, and all others a dense tensor.
        tensors = [tensor.contiguous() for tensor in given]
        form = (spec, signature(tensors), process_state())
        known = twin.calls.get(form)
        if known is None:
            output, gained = self._first_call(twin, step, form, given, tensors)
        elif isinstance(known, str):
            raise NotFlatError(known)
        else:
            free, inner, compiled = known
            twin.set_free(free)
            output, gained = compiled(twin.module, inner, *tensors)
        give_back(spec, args, kwargs, twin.index, gained)
        return output

    def _first_call(
        self,
        twin: Twin,
        step: "StepCalls",
        form: tuple,
        given: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
    ) -> tuple:
        try:
            with counting(Counter()):  # nobody asked for these calls
                free = self._unread_numbers(twin, form, tensors)
            twin.set_free(free)
            inner = twin.renumbered(form[0], free)
            before = twin.attributes()
            states, arguments = [twin.digest()], (twin.module, inner, *tensors)
            compiled, result = step.make(twin.kind, run_block, (twin.kind, inner), states, arguments)
            if any(new is not old and new._version for new, old in zip(tensors, given, strict=True)):
                raise NotFlatError("it writes into an argument that is not dense")
            if twin.attributes() != before:
                raise NotFlatError("it sets attributes of itself while it runs")
        except (NotFlatError, torch._dynamo.exc.Unsupported) as error:
            twin.calls[form] = str(error).splitlines()[0]
            raise
        twin.calls[form] = (free, inner, compiled)
        return result

    def _unread_numbers(self, twin: Twin, form: tuple, tensors: list[torch.Tensor]) -> frozenset:
        """What tells the block from its siblings and is not read; what was proven without any of it holds for all."""
        place = (twin.kind, twin.family(), form)
        if place in self._unread:
            return self._unread[place]
        unread = twin.unread_numbers(form[0], tensors)
        if unread == twin.numbers:
            self._unread[place] = unread
        return unread

    def _twin(self, block: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> Twin:
        entry = self._twins.get(id(block))
        if entry is None:
            entry = (block, ModuleState(block), "", None)
        digest = entry[1].digest()
        if digest != entry[2]:
            siblings = [other for other in blocks if type(other) is type(block) and other is not block]
            entry = self._twins[id(block)] = (block, entry[1], digest, Twin(block, siblings))
        return entry[3]


def _where(function: str, block: torch.nn.Module) -> str:
    return f"{function}, {type(block).__name__}"
