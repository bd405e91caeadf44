"""Calls of kernels as text: arguments that go through it and come back, and names that lead to one function only."""

import collections
import dataclasses
import enum
import json
import math

import ml_dtypes
import numpy as np
import pytest


torch = pytest.importorskip("torch")

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402
from optimum_neuron_torch.emulator.nki.calls import CallError, decode, encode, register, resolve  # noqa: E402
from optimum_neuron_torch.emulator.nki.sources import source_digest  # noqa: E402
from optimum_neuron_torch.emulator.nki.torch_calls import prepare_call, run  # noqa: E402


Point = collections.namedtuple("Point", "x y")


class Mode(enum.Enum):
    FIRST, SECOND = 1, (2, 3)


@dataclasses.dataclass(frozen=True)
class Settings:
    size: int
    inner: object = None


@dataclasses.dataclass
class KernelSettings(nl.NKIObject):
    size: int
    more: object = None


@nki.jit
def kernel(x):
    tile, out = nl.ndarray(x.shape, x.dtype), nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=tile, src=x)
    nisa.dma_copy(dst=out, src=tile)
    return out


def helper(x):
    return x


def through_text(value):
    tensors = []

    def position(item):
        if not isinstance(item, torch.Tensor):
            return None
        tensors.append(item)
        return len(tensors) - 1

    return decode(json.loads(json.dumps(encode(value, position, "argument x"))), tensors)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**70), 1.0, 0.1, math.inf, "text", "tensor", [], (), {}, (1,), [(1.0, [None])],
        {"tensor": 1, 2: {"dtype": (3,)}}, slice(1, None, 2), Point(1, (2,)), Mode.FIRST, [Mode.SECOND],
        Settings(3, [Settings(4)]), nl.bfloat16, nl.float8_e4m3, [nl.add, nl.exp], nl.sbuf, nisa.engine,
        np.float32(0.1), np.int64(7), np.dtype("int8"), np.dtype(ml_dtypes.bfloat16), torch.bfloat16, helper, Settings,
        math.sqrt, np.float32,
    ],
)  # fmt: skip
def test_arguments_come_back(value):
    found = through_text(value)
    assert found == value and type(found) is type(value)


def test_what_compares_in_no_simple_way_comes_back():
    assert math.isnan(through_text(math.nan)) and math.copysign(1, through_text(-0.0)) == -1
    x = torch.ones(2)
    assert through_text({"a": [(x, 1)]})["a"][0][0] is x
    again = through_text(kernel[2])
    assert again.func is kernel.func and again.lnc == 2
    partly = through_text(KernelSettings(more=x))
    assert partly.more is x and not hasattr(partly, "size")
    assert through_text(np.array(0.5, ml_dtypes.bfloat16)[()]) == 0.5


class Opaque:
    pass


def _local_class():
    @dataclasses.dataclass
    class Local:
        size: int = 1

    return Local()


@pytest.mark.parametrize("value", [Opaque(), {1, 2}, _local_class(), 1j, b"bytes", collections.OrderedDict(a=1)])
def test_what_nobody_else_would_understand_is_refused(value):
    with pytest.raises(CallError, match=r"argument x.*cannot be part of a compiled graph.*dataclasses"):
        encode([value], lambda item: None, "argument x")


def test_equal_calls_have_equal_texts():
    def text(*args, lnc=1, **kwargs):
        return prepare_call(kernel.func, lnc, args, kwargs).call.text()

    x = torch.ones(2, 3)
    assert text(x) == text(torch.zeros(2, 3)) == text(torch.empty(2, 3, device="meta"))
    others = {text(x), text(x=x), text(x, lnc=2), text(x.bfloat16()), text(x.T)}
    assert len(others) == 5


def test_results_are_new_tensors_and_arguments_stay_as_they_are():
    @nki.jit
    def double(x, y):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.dma_copy(dst=tile, src=x)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=2.0)
        nisa.dma_copy(dst=x, src=tile)
        return y, x, kernel(y)

    x, y = torch.ones(2, 3), torch.zeros(3, 2).T
    prepared = prepare_call(double.func, 1, (x, y), {})
    assert prepared.call.written == (0,) and prepared.call.name == "double"
    copied, doubled = run(prepared.tensors, prepared.call.text())
    assert torch.equal(copied, y) and copied is not y
    assert torch.equal(doubled, torch.full((2, 3), 2.0)) and torch.equal(x, torch.ones(2, 3))


def test_a_transposed_argument_of_the_same_shape_is_a_result_of_its_own():
    @nki.jit
    def transposed(x):
        return x.permute((1, 0))

    x = torch.arange(4.0).reshape(2, 2)
    prepared = prepare_call(transposed.func, 1, (x,), {})
    assert len(prepared.call.results) == 1
    assert torch.equal(run(prepared.tensors, prepared.call.text())[0], transposed(x)) and torch.equal(
        transposed(x), x.T
    )


# Names


def test_functions_of_one_name_are_told_apart():
    def make(factor):
        def scaled(x):
            return factor

        return scaled

    first, second = make(1), make(2)
    names = register(first), register(second), register(first)
    assert names[0] == names[2] != names[1]
    assert resolve(*names[0]) is first and resolve(*names[1]) is second
    assert register(kernel.func)[0] == f"{__name__}:kernel" and resolve(*register(kernel.func)) is kernel.func


def test_a_module_that_is_loaded_again_has_kernels_of_its_own(tmp_path, monkeypatch):
    import importlib
    import os

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (tmp_path / "nki_calls_tests_module.py").write_text("def kernel(x):\n    return 1\n")
    module = importlib.import_module("nki_calls_tests_module")
    before, name = module.kernel, register(module.kernel)
    again = importlib.reload(module).kernel
    assert register(again) != name and resolve(*name) is before
    (tmp_path / "nki_calls_tests_module.py").write_text("def kernel(x):\n    return 2\n")
    os.utime(tmp_path / "nki_calls_tests_module.py", ns=(1, 1))
    changed = importlib.reload(module).kernel
    assert register(changed)[0] == name[0] and register(changed)[1] != name[1] and resolve(*name) is before


# Sources


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A package whose kernel imports a module of it inside of a function, and one from beside the package."""
    files = {
        "pack/__init__.py": "",
        "pack/kernels/__init__.py": "",
        "pack/kernels/flash.py": (
            "from . import tiles\ndef kernel():\n    from ..sizes import ROWS\n    from ..limits import MOST\n"
        ),
        "pack/kernels/tiles.py": "import beside.deep\n",
        "pack/sizes.py": "ROWS = 1\n",
        "pack/limits/__init__.py": "MOST = 1\n",
        "pack/unused.py": "",
        "beside/__init__.py": "",
        "beside/deep.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "matters"),
    [
        ("pack/kernels/flash.py", True), ("pack/kernels/tiles.py", True), ("pack/sizes.py", True),
        ("pack/limits/__init__.py", True), ("beside/deep.py", True), ("beside/__init__.py", False),
        ("pack/unused.py", False),
    ],
)  # fmt: skip
def test_the_digest_is_of_all_that_is_imported(changed, matters, project):
    def digest():
        from optimum_neuron_torch.emulator.nki import sources

        sources._digest_of.cache_clear()
        namespace = {}
        file = project / "pack/kernels/flash.py"
        exec(compile("def kernel(): pass", str(file), "exec"), namespace)
        return source_digest(namespace["kernel"])

    before = digest()
    assert before and before == digest()
    with (project / changed).open("a") as file:
        file.write("# changed\n")
    assert (digest() != before) == matters


def test_functions_without_a_file_have_the_digest_of_their_code():
    def made(text):
        namespace = {}
        exec(text, namespace)
        return namespace["kernel"]

    one = made("def kernel(x):\n    return 1")
    assert source_digest(one) == source_digest(made("def kernel(x):\n    return 1")) != ""
    assert source_digest(one) != source_digest(made("def kernel(x):\n    return 2"))
    assert source_digest(len) == ""
    assert "#" in register(one)[0]


def test_operators_of_torch_itself_do_not_read_all_of_it():
    from optimum_neuron_torch.emulator.nki.sources import _folder_of_packages, _reached, source_file

    file = source_file(torch._prims_common.is_same_shape)
    assert _reached(file, _folder_of_packages(file)) == {file}
