"""torch.func on the device, and how tensors are printed, listed, indexed and compared: as on the CPU."""

import numpy as np
import pytest
import torch
from torch import func
from torch.nn import functional as F
from torch.utils import benchmark

from optimum_neuron_torch.emulator import device


WEIGHT = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
INPUT = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def layer(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x @ WEIGHT.to(x.device))


TRANSFORMS = {
    "vmap": lambda x: func.vmap(layer)(x),
    "vmap of grad": lambda x: func.vmap(func.grad(lambda row: layer(row).sum()))(x),
    "grad": func.grad(lambda x: layer(x).pow(2).sum()),
    "jvp": lambda x: func.jvp(layer, (x,), (x,))[1],
    "vjp": lambda x: func.vjp(layer, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda x: func.jacrev(layer)(x[0]),
    "jacfwd": lambda x: func.jacfwd(layer)(x[0]),
    "hessian": lambda x: func.hessian(lambda row: layer(row).sum())(x[0]),
    "linearize": lambda x: func.linearize(layer, x)[1](x),
    "functional_call": lambda x: func.functional_call(
        torch.nn.Linear(4, 4, False), {"weight": WEIGHT.to(x.device)}, (x,)
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(neuron, name):
    actual = TRANSFORMS[name](INPUT.to(neuron))
    assert actual.device == neuron
    torch.testing.assert_close(actual.cpu(), TRANSFORMS[name](INPUT))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_with_random_numbers(neuron, randomness):
    def drawn(where) -> torch.Tensor:
        torch.manual_seed(0)
        add = func.vmap(lambda row: row + torch.randn(4, device=where), randomness=randomness)
        return add(INPUT.to(where)).cpu()

    assert torch.equal(drawn(neuron), drawn("cpu"))


def test_strict_forward_ad_sees_through_transforms(neuron):
    x = INPUT.to(neuron)
    with device.strict("forward_ad"):
        for name in ("jvp", "jacfwd", "hessian"):
            with pytest.raises(RuntimeError, match=r"strict mode \(forward_ad\)"):
                TRANSFORMS[name](x)
        for name in ("vmap", "grad", "vjp", "jacrev"):
            TRANSFORMS[name](x)
    TRANSFORMS["jvp"](x)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128,
]  # fmt: skip


def printed(x: torch.Tensor) -> str:
    return repr(x).replace("device='neuron:0', ", "").replace(", device='neuron:0'", "")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_printing_and_listing(neuron, dtype):
    host = torch.tensor([[0, 1, 2], [3, 0, 1]]).to(dtype)
    x = host.to(neuron)
    assert "neuron:0" in repr(x) and printed(x) == repr(host)
    assert x.tolist() == host.tolist() and printed(x[0, 1]) == repr(host[0, 1]) and x[1, 0].item() == host[1, 0].item()


@pytest.mark.parametrize(
    "make",
    [
        lambda where: torch.arange(5000.0, device=where),
        lambda where: torch.arange(40000, device=where).view(200, 200),
        lambda where: torch.empty(0, 3, device=where),
        lambda where: torch.tensor([float("nan"), float("inf"), 1e-9], device=where),
        lambda where: torch.nn.Parameter(torch.ones(2, device=where)),
        lambda where: torch.ones(2, device=where).view(1, 2).expand(3, 2),
    ],
)
@pytest.mark.parametrize("options", [{"profile": "default"}, {"precision": 1, "sci_mode": True, "edgeitems": 1}])
def test_printing(neuron, make, options):
    torch.set_printoptions(**options)
    try:
        assert " ".join(printed(make(neuron)).split()) == " ".join(repr(make("cpu")).split())
    finally:
        torch.set_printoptions(profile="default")


def test_listing_is_one_copy(neuron):
    x = torch.arange(1000, device=neuron)
    device.clear_counters()
    assert x.tolist() == list(range(1000))
    assert device.counters()["copies"] == 1


CUBE = torch.arange(24.0).view(2, 3, 4)
READS = {
    "None": lambda t: t[None, :, None],
    "ellipsis": lambda t: t[..., 1],
    "mask": lambda t: t[t > 5],
    "mask of rows": lambda t: t[torch.tensor([True, False], device=t.device)],
    "mask on the host": lambda t: t[CUBE > 5],
    "negative": lambda t: t[-1, :, -2:],
    "step": lambda t: t[:, ::2],
    "lists": lambda t: t[[0, 1], [1, 2]],
    "tensor": lambda t: t[:, torch.tensor([2, 0], device=t.device), ::2],
    "number": lambda t: t[torch.tensor(1, device=t.device)],
    "array": lambda t: t[np.array([1, 0])],
    "bool": lambda t: t[True],
    "take_along_dim": lambda t: torch.take_along_dim(t, t.argmax(-1, keepdim=True), -1),
}


@pytest.mark.parametrize("name", READS)
def test_indexing(neuron, name):
    assert torch.equal(READS[name](CUBE.to(neuron)).cpu(), READS[name](CUBE))


def written(t: torch.Tensor) -> torch.Tensor:
    t = t.clone()
    t[t > 20] = 0
    t[:, None, 0] = 7
    t[..., 1] += 1
    t[[0], [1]] = torch.full((1, 4), 9.0, device=t.device)
    t[0, 0] = torch.arange(4.0)  # from the host
    return t


def test_writing_by_index(neuron):
    assert torch.equal(written(CUBE.to(neuron)).cpu(), written(CUBE))


WRONG = {
    "step": (ValueError, lambda t: t[::-1]),
    "index": (IndexError, lambda t: t[5]),
    "tensor": (IndexError, lambda t: t[torch.tensor([7], device=t.device)]),
    "too many": (IndexError, lambda t: t[0, 0, 0, 0]),
    "mask": (IndexError, lambda t: t[torch.ones(3, dtype=torch.bool, device=t.device)]),
    "float": (IndexError, lambda t: t[1.5]),
    "embedding": (IndexError, lambda t: F.embedding(torch.tensor([99], device=t.device), t[0])),
    "label": (IndexError, lambda t: F.cross_entropy(t[0], torch.tensor([99, 0, 0], device=t.device))),
    "gather": (RuntimeError, lambda t: t[0].gather(1, torch.full((3, 1), 99, device=t.device))),
    "scatter": (RuntimeError, lambda t: t[0].scatter(1, torch.full((3, 1), 99, device=t.device), t[0])),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_indices_have_the_cpus_errors(neuron, name):
    error, use = WRONG[name]
    with pytest.raises(error) as expected:
        use(CUBE)
    with pytest.raises(error) as actual:
        use(CUBE.to(neuron))
    assert str(actual.value) == str(expected.value)


def test_comparisons_across_devices(neuron):
    x = INPUT.to(neuron)
    torch.testing.assert_close(x, INPUT, check_device=False)
    for other in (INPUT, INPUT.to("neuron:1")):
        with pytest.raises(AssertionError, match="attribute 'device' do not match"):
            torch.testing.assert_close(x, other)
    with pytest.raises(AssertionError, match="12 / 12"):
        torch.testing.assert_close(x, x + 1)


def test_tools_of_torch(neuron):
    x = INPUT.to(neuron)
    assert benchmark.Timer("x + x", globals={"x": x}).timeit(5).number_per_run == 5
    assert torch.autograd.gradcheck(
        lambda a: a.sin(), torch.ones(2, dtype=torch.float64, device=neuron).requires_grad_()
    )
    kept = x.clone().requires_grad_()
    with torch.autograd.graph.save_on_cpu(pin_memory=True, device_type="neuron"):
        y = layer(kept)
    y.sum().backward()
    torch.testing.assert_close(kept.grad.cpu(), func.grad(lambda a: layer(a).sum())(INPUT))
