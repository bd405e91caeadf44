"""`module_db`: each module's samples on the device and on the CPU: forward, backward, buffers, moving and pickling."""

import copy
import functools
import pickle
import warnings
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils import _pytree as pytree

from tests.conformance.comparison import Answer, check_answers, check_same
from tests.conformance.outcome import Outcome, Status, found
from tests.conformance.placement import place
from tests.conformance.rules import REFUSED, rule_of


@functools.cache
def entries() -> dict[str, ModuleInfo]:
    return {info.formatted_name: info for info in module_db}


def check(name: str, column: str) -> Outcome:
    """The outcome of one module in training or evaluation, or of its pickling and moving."""
    info = entries()[name]
    device = torch.device("neuron", torch.neuron.current_device())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.manual_seed(0)
            samples = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=column != "eval"
            )
            for sample in samples:
                if column == "pickle":
                    _check_pickle(info, sample, device)
                else:
                    _check_mode(info, sample, device, training=column == "train")
        except Exception as error:
            return found(error, REFUSED["modules"].get(name))
    return Outcome(Status.PASSED)


def _make(info: ModuleInfo, sample: ModuleInput, device: torch.device) -> torch.nn.Module:
    torch.manual_seed(0)
    args, kwargs = place((sample.constructor_input.args, sample.constructor_input.kwargs), torch.device("cpu"))
    return info.module_cls(*args, **kwargs).to(device)


def _check_mode(info: ModuleInfo, sample: ModuleInput, device: torch.device, *, training: bool) -> None:
    expected = Answer.of(functools.partial(_run, info, sample, torch.device("cpu"), training))
    rule = rule_of("modules", info.formatted_name, "train" if training else "eval")
    check_answers(Answer.of(functools.partial(_run, info, sample, device, training)), expected, device, rule)


def _run(info: ModuleInfo, sample: ModuleInput, device: torch.device, training: bool) -> Any:
    """Results, gradients of inputs and parameters, and the module's tensors afterwards."""
    module = _make(info, sample, device).train(training)
    args, kwargs = place((sample.forward_input.args, sample.forward_input.kwargs), device)
    results = module(*args, **kwargs)
    outputs = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    inputs = [leaf for leaf in [*inputs, *module.parameters()] if leaf.requires_grad]
    gradients = []
    if inputs and outputs:
        generator = torch.Generator().manual_seed(1)
        seeds = [torch.randn(out.shape, dtype=out.dtype, generator=generator).to(device) for out in outputs]
        gradients = list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))
    return results, gradients, _tensors(module)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _check_pickle(info: ModuleInfo, sample: ModuleInput, device: torch.device) -> None:
    """A module that was pickled, copied, or moved to the CPU and back has the tensors that it had."""
    reference, module = _make(info, sample, torch.device("cpu")), _make(info, sample, device)
    if info.is_lazy:
        torch.manual_seed(0)
        reference(*place(sample.forward_input.args, torch.device("cpu")))
        torch.manual_seed(0)
        module(*place(sample.forward_input.args, device))
    expected = _tensors(reference)
    check_same(_tensors(pickle.loads(pickle.dumps(module))), expected, device)
    check_same(_tensors(copy.deepcopy(module)), expected, device)
    check_same(_tensors(module.cpu()), expected, torch.device("cpu"))
    check_same(_tensors(module.to(device)), expected, device)
