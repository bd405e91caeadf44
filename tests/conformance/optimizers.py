"""`optim_db`: each optimizer's samples on the device and on the CPU, in every implementation that it has."""

import functools
import warnings
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, OptimizerInfo, optim_db
from torch.utils import _pytree as pytree

from tests.conformance.comparison import Answer, check_answers
from tests.conformance.outcome import Outcome, Status, found
from tests.conformance.placement import place
from tests.conformance.rules import CAPTURABLE, EXACT, REFUSED


ERRORS = "errors"
STEPS = 4


@functools.cache
def entries() -> dict[str, OptimizerInfo]:
    return {info.optim_cls.__name__: info for info in optim_db}


def check(name: str, column: str) -> Outcome:
    """The outcome of one optimizer in one implementation, or of its errors."""
    info = entries()[name]
    device = torch.device("neuron", torch.neuron.current_device())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if column == ERRORS:
                return _check_errors(info, device)
            return _check_implementation(info, column, device)
        except Exception as error:
            return found(error, REFUSED["optimizers"].get(name))


def _check_implementation(info: OptimizerInfo, implementation: str, device: torch.device) -> Outcome:
    if implementation == "capturable":
        if not info.has_capturable_arg:
            return Outcome(Status.NONE)
    elif implementation != "forloop" and implementation not in info.supported_impls:
        return Outcome(Status.NONE)
    for sample in info.optim_inputs_func("cpu"):
        flags = {flag: flag == implementation for flag in info.supported_impls}
        kwargs = {**sample.kwargs, **flags}
        expected = Answer.of(functools.partial(_train, info, kwargs, torch.device("cpu")))
        rule = EXACT
        if implementation == "capturable":
            kwargs, rule = {**kwargs, "capturable": True}, CAPTURABLE
        check_answers(Answer.of(functools.partial(_train, info, kwargs, device)), expected, device, rule)
    return Outcome(Status.PASSED)


def _train(info: OptimizerInfo, kwargs: dict[str, Any], device: torch.device) -> Any:
    """The parameters and the optimizer's state after a few steps on a small problem."""
    generator = torch.Generator().manual_seed(0)
    data, weight, bias = (torch.randn(size, generator=generator).to(device) for size in ((5, 3), (3, 2), (2,)))
    parameters = [weight] if info.optim_cls is torch.optim.Muon else [weight, bias]
    for parameter in parameters:
        parameter.requires_grad_()
    optimizer = info.optim_cls(parameters, **kwargs)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((data @ weight + bias) ** 2).sum()
        loss.backward()
        if info.only_supports_sparse_grads:
            for parameter in parameters:
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(STEPS):
        if info.step_requires_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    # The count of steps is on the CPU where the implementation reads it there.
    state = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), optimizer.state_dict()["state"])
    return [parameter.detach() for parameter in parameters], state


def _check_errors(info: OptimizerInfo, device: torch.device) -> Outcome:
    """Arguments that the table says are wrong raise the same type of error as on the CPU."""
    for wrong in info.optim_error_inputs_func("cpu", torch.float32):
        expected = Answer.of(functools.partial(_fail, info, wrong, torch.device("cpu")))
        check_answers(Answer.of(functools.partial(_fail, info, wrong, device)), expected, device)
    return Outcome(Status.PASSED)


def _fail(info: OptimizerInfo, wrong: Any, device: torch.device) -> None:
    sample = wrong.optimizer_error_input
    parameters = place(sample.params, device)
    if parameters is None:
        parameters = [torch.zeros(2, 3, device=device)]
    optimizer = info.optim_cls(parameters, **sample.kwargs)
    if wrong.error_on is OptimizerErrorEnum.STEP_ERROR:
        optimizer.step()
