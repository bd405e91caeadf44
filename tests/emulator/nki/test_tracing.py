"""Kernels run without data: shapes and dtypes of results, the listing, and what is checked all the same."""

import dataclasses

import numpy as np
import pytest


torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402

import nki  # noqa: E402
import nki.isa as nisa  # noqa: E402
import nki.language as nl  # noqa: E402
from optimum_neuron_torch.emulator.nki import TensorSpec, trace  # noqa: E402
from optimum_neuron_torch.emulator.nki.errors import NkiError  # noqa: E402


@nki.jit
def outer_product(left, right, dtype=None):
    """left[K, M], right[K, N] -> their product [M, N], and left as it came."""
    (k, m), n = left.shape, right.shape[1]
    left_tile, right_tile = nl.ndarray((k, m), left.dtype), nl.ndarray((k, n), right.dtype)
    nisa.dma_copy(dst=left_tile, src=left)
    nisa.dma_copy(dst=right_tile, src=right)
    product = nl.ndarray((m, n), nl.float32, buffer=nl.psum)
    nisa.nc_matmul(dst=product, stationary=left_tile, moving=right_tile)
    rounded = nl.ndarray((m, n), dtype or left.dtype)
    nisa.tensor_copy(dst=rounded, src=product)
    result = nl.ndarray((m, n), dtype or left.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=rounded)
    return {"product": result, "left": left, "count": (m * n, None)}


LEFT, RIGHT = torch.ones(64, 32), torch.ones(64, 128)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (LEFT, RIGHT),
        (LEFT.numpy(), RIGHT.numpy()),
        (LEFT.to("meta"), RIGHT.to("meta")),
        (LEFT.to("neuron"), RIGHT.to("neuron")),
        (TensorSpec((64, 32), "float32"), TensorSpec((64, 128), nl.float32)),
        (TensorSpec((64, 32), torch.float32), RIGHT.numpy()),
    ],
    ids=["torch", "numpy", "meta", "neuron", "specs", "mixed"],
)
def test_outputs_have_the_shapes_of_a_real_call(left, right):
    outputs = trace(outer_product, left, right).outputs
    real = outer_product(LEFT, RIGHT)
    assert outputs["product"].shape == tuple(real["product"].shape) and outputs["product"].dtype == "float32"
    assert outputs["left"].argument is left and outputs["product"].argument is None
    assert outputs["count"] == real["count"] == (32 * 128, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int32", "uint8"])
def test_empty_outputs_are_what_a_call_returns(dtype):
    real = outer_product(LEFT, RIGHT, getattr(nl, dtype))["product"]
    empty = trace(outer_product, LEFT, RIGHT, getattr(nl, dtype)).empty_outputs()
    assert empty["left"] is LEFT
    assert (empty["product"].shape, empty["product"].dtype) == (real.shape, real.dtype)
    arrays = trace(outer_product, LEFT.numpy(), RIGHT.numpy(), getattr(nl, dtype)).empty_outputs()
    real = outer_product(LEFT.numpy(), RIGHT.numpy(), getattr(nl, dtype))["product"]
    assert (arrays["product"].shape, arrays["product"].dtype) == (real.shape, real.dtype)


def test_fake_tensors_give_fake_tensors():
    with FakeTensorMode() as mode:
        left, right = torch.empty(64, 32, dtype=torch.bfloat16), torch.empty(64, 128, dtype=torch.bfloat16)
        assert trace(outer_product, left, right).outputs["product"] == TensorSpec((32, 128), nl.bfloat16)
        called = outer_product(left, right)
    for result in (called["product"], trace(outer_product, left, right).empty_outputs()["product"]):
        assert tuple(result.shape) == (32, 128) and result.dtype == torch.bfloat16
    assert isinstance(called["product"], FakeTensor) and called["product"].fake_mode is mode
    assert called["left"] is left


def test_meta_tensors_give_meta_tensors():
    result = outer_product(LEFT.to("meta"), RIGHT.to("meta"))["product"]
    assert result.is_meta and tuple(result.shape) == (32, 128)


def test_an_operator_of_torch_with_a_traced_kernel_compiles():
    """What a custom operator needs: the kernel as its implementation and, on fake tensors, as its shape function."""

    @torch.library.custom_op("nki_tracing_tests::product", mutates_args=())
    def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return outer_product(left, right)["product"]

    product.register_fake(lambda left, right: outer_product(left, right)["product"])
    compiled = torch.compile(lambda left, right: product(left + 1, right) * 2, backend="aot_eager", fullgraph=True)
    left, right = torch.randn(64, 32), torch.randn(64, 128)
    torch.testing.assert_close(compiled(left, right), (left + 1).T @ right * 2, rtol=1e-4, atol=1e-4)


def test_nothing_is_read_or_written():
    left = LEFT.clone()

    @nki.jit
    def overwrite(x):
        tile = nl.ndarray(x.shape, x.dtype)
        nisa.memset(dst=tile, value=5.0)
        nisa.dma_copy(dst=x, src=tile)
        return x

    assert trace(overwrite, left).outputs.argument is left
    assert torch.equal(left, LEFT)
    assert torch.equal(overwrite(left), torch.full_like(LEFT, 5))


def test_the_listing_is_for_readers():
    text = str(trace(outer_product, LEFT, RIGHT))
    lines = text.splitlines()
    assert lines[0].startswith("outer_product on Trn2") and "5 instructions" in lines[0]
    assert "float32[32, 128]" in lines[0]
    assert [line.split()[3] for line in lines[1:]] == ["dma_copy", "dma_copy", "nc_matmul", "tensor_copy", "dma_copy"]
    matmul = next(line for line in lines if "nc_matmul" in line)
    assert "psum float32[32, 128] <- sbuf float32[64, 32], sbuf float32[64, 128]" in matmul
    assert "test_tracing.py:" in matmul and "tensor" in matmul


def test_as_many_instructions_as_a_real_run():
    with nki.simulation() as reports:
        outer_product(LEFT, RIGHT)
    traced = trace(outer_product, LEFT, RIGHT)
    assert [repr(record) for record in traced.instructions] == [repr(record) for record in reports[0].records]


def test_two_cores():
    @nki.jit
    def kernel(x):
        out = nl.ndarray((4, x.shape[1]), x.dtype, buffer=nl.shared_hbm)
        core = nl.program_id(0)
        tile = nl.ndarray((2, x.shape[1]), x.dtype)
        nisa.dma_copy(dst=tile, src=x[nl.ds(2 * core, 2)])
        nisa.dma_copy(dst=out[nl.ds(2 * core, 2)], src=tile)
        return out, nl.num_programs(0)

    x = np.ones((4, 8), np.float32)
    for traced in (trace(kernel, x, lnc=2), trace(kernel[2], x)):
        assert traced.outputs == (TensorSpec((4, 8), "float32"), 2)
        assert [record.core for record in traced.instructions] == [0, 0, 1, 1]
        assert "2 cores" in str(traced) and "core 1" in str(traced)
    assert trace(kernel, x).outputs[1] == 1


def test_containers_and_dataclasses_go_in_and_out():
    @dataclasses.dataclass
    class Pair:
        first: object
        second: object = None

    @nki.jit
    def kernel(pair, more):
        assert pair.first.shape == (4, 8) and more["x"][0].shape == (2, 2)
        out = nl.ndarray((3, 3), nl.bfloat16, buffer=nl.shared_hbm)
        return Pair(out, [out, pair.first])

    x, y = TensorSpec((4, 8), "float32"), TensorSpec((2, 2), "int32")
    pair = Pair(x)
    outputs = trace(kernel, pair, {"x": (y,)}).outputs
    assert pair.first is x
    assert outputs.first == TensorSpec((3, 3), "bfloat16") and outputs.second[1].argument is x


# What is checked all the same


def test_rules_are_checked():
    @nki.jit
    def kernel():
        tile = nl.ndarray((128, 4), nl.float32)
        nisa.memset(dst=tile[10:20], value=0.0)

    with pytest.raises(NkiError, match=r"nisa\.memset: 10 partitions") as error:
        trace(kernel)
    assert "test_tracing.py" in error.value.location


def test_capacity_is_checked():
    @nki.jit
    def kernel():
        tiles = [nl.ndarray((128, 30_000), nl.float32) for _ in range(2)]
        for tile in tiles:
            nisa.memset(dst=tile, value=0.0)
        nisa.tensor_copy(dst=tiles[1], src=tiles[0])

    with pytest.raises(NkiError, match="capacity"):
        trace(kernel)


def test_results_are_checked():
    @nki.jit
    def kernel():
        return nl.ndarray((4, 4), nl.float32)

    with pytest.raises(NkiError, match="shared HBM"):
        trace(kernel)


def test_memory_is_not_taken():
    """A terabyte of HBM, and as much of SBUF as there is."""

    @nki.jit
    def kernel(x):
        nl.ndarray((128, 50_000), nl.float32)
        nl.ndarray((128, 50_000), nl.float32, address=(0, 0))
        return nl.ndarray((1024, 1024, 1024, 256), nl.float32, buffer=nl.shared_hbm)

    traced = trace(kernel, TensorSpec((1024, 1024, 1024, 256), "float32"))
    assert traced.outputs.shape == (1024, 1024, 1024, 256)


def test_specs_cannot_be_run():
    with pytest.raises(NkiError, match="argument left has a shape and no data"):
        outer_product(TensorSpec((64, 32), "float32"), RIGHT.numpy())


def test_a_spec_of_what_no_tensor_is():
    with pytest.raises(NkiError, match="float64"):
        TensorSpec((4, 4), "float64")
    with pytest.raises(NkiError, match="argument left has the shape"):
        trace(outer_product, TensorSpec((0, 4), "float32"), RIGHT)


def test_symbolic_sizes_that_nobody_knows_are_refused():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment):
        unknown = torch.empty(environment.create_unbacked_symint(), 32)
    with pytest.raises(NkiError, match="argument left has a shape that is not known"):
        trace(outer_product, unknown, RIGHT)
