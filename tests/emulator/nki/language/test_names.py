"""The names of `nki.language`: all that are documented are there, those that are gone say what replaces them."""

import importlib.util
import inspect

import pytest

from optimum_neuron_torch.emulator.nki.chips import CHIPS
from optimum_neuron_torch.emulator.nki.errors import NkiError, NkiWarning
from tests.emulator.nki.language.tiles import nisa, nki, nl


# As the Neuron documentation lists them.
DOCUMENTED = """
    bool_ int8 int16 int32 uint8 uint16 uint32 float16 float32 bfloat16 tfloat32 float8_e4m3 float8_e4m3fn float8_e5m2
    float8_e5m2_x4 float8_e4m3fn_x4 float8_e8m0fnu float4_e2m1fn_x4 sbuf psum hbm private_hbm shared_hbm tile_size
    DType
    MemoryRegion NKIObject NkiTensor is_hbm is_on_chip is_psum is_sbuf ds ndarray zeros ones full zeros_like empty_like
    load store load_transpose2d copy shared_constant shared_identity_matrix device_print rand random_seed
    program_id num_programs program_ndim affine_range sequential_range static_range dynamic_range fori_loop while_loop
    no_reorder expand_dims broadcast_to transpose matmul gather_flattened where dropout softmax rms_norm
    sum max min mean prod var all
    add subtract multiply divide maximum minimum abs_max abs_min abs square power equal not_equal less less_equal
    greater greater_equal bitwise_and bitwise_or bitwise_xor invert left_shift right_shift logical_and logical_or
    logical_xor logical_not exp log sqrt rsqrt tanh sigmoid relu gelu gelu_apprx_sigmoid gelu_apprx_tanh gelu_dx
    gelu_apprx_sigmoid_dx silu silu_dx softplus mish erf erf_dx reciprocal sin cos tan arctan ceil floor trunc negative
    sign fmod mod average prelu bypass
""".split()


def test_every_documented_name_is_there():
    assert [name for name in DOCUMENTED if not hasattr(nl, name)] == []


def test_nothing_else_is_offered():
    offered = {name for name in vars(nl) if not name.startswith("_")}
    # `range` is what public kernels count with; `missing` makes the errors below.
    assert offered - set(DOCUMENTED) == {"range"}


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("mgrid", "slice instead"),
        ("arange", "slice instead"),
        ("par_dim", "first dimension of a tile is its partition"),
        ("spmd_dim", r"kernel\[2\]"),
        ("atomic_rmw", "nisa.dma_compute"),
        ("all_reduce", "nki.collectives"),
        ("int64", "nl.int32"),
    ],
)
def test_names_that_are_gone_say_what_replaces_them(name, replacement):
    def kernel():
        getattr(nl, name)

    with pytest.raises(NkiError, match=f"nl.{name} is gone: .*{replacement}"):
        nki.simulate(kernel)()
    assert not hasattr(nl, name)


def test_an_unknown_name_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        nl.flash  # noqa: B018


def test_arguments_that_are_gone_say_what_replaces_them():
    def masked():
        tile = nl.ndarray((128, 8), nl.float32)
        nisa.tensor_copy(dst=tile, src=tile, mask=None)

    def typed():
        tile = nl.ndarray((128, 8), nl.float32)
        nisa.tensor_copy(dst=tile, src=tile, dtype=nl.bfloat16)

    def returning():
        nisa.tensor_copy(src=nl.ndarray((128, 8), nl.float32))

    for kernel, hint in [(masked, "slice the operands"), (typed, "destination's dtype"), (returning, "write to dst=")]:
        with pytest.raises(NkiError, match=hint):
            nki.simulate(kernel)()


def test_the_old_namespace_is_refused_in_kernels():
    def kernel():
        import neuronxcc.nki  # noqa: F401

    with pytest.raises(NkiError, match="neuronxcc.nki is gone: import nki") as caught:
        nki.simulate(kernel)()
    assert isinstance(caught.value, ImportError) and "import neuronxcc.nki" in caught.value.source
    # Outside, whether the old package is there is an ordinary question.
    assert importlib.util.find_spec("neuronxcc") is None


def test_names_of_memories_as_strings_are_gone():
    with pytest.raises(NkiError, match="write nl.psum"):
        nki.simulate(lambda: nl.zeros((128, 4), nl.float32, buffer="psum"))()


def test_memories():
    assert nl.hbm is nl.private_hbm
    assert [nl.is_hbm(m) for m in (nl.hbm, nl.shared_hbm, nl.private_hbm, nl.sbuf, nl.psum)] == [1, 1, 1, 0, 0]
    assert [nl.is_on_chip(m) for m in (nl.hbm, nl.sbuf, nl.psum)] == [False, True, True]
    assert nl.is_sbuf(nl.sbuf) and not nl.is_sbuf(nl.psum) and nl.is_psum(nl.psum) and not nl.is_psum(nl.hbm)


@pytest.mark.parametrize(("target", "generation", "kib"), [("trn1", 2, 192), ("trn2", 3, 224), ("trn3", 4, 256)])
def test_tile_sizes(target, generation, kib, monkeypatch):
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    monkeypatch.delenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", raising=False)
    sizes = nl.tile_size
    assert (sizes.pmax, sizes.gemm_stationary_fmax, sizes.gemm_moving_fmax) == (128, 128, 512)
    assert (sizes.psum_bank_fmax, sizes.psum_fmax, sizes.psum_bank_fmax_bytes, sizes.psum_num_banks) == (
        512,
        512,
        2048,
        8,
    )
    # The guides give the capacity; what the compiler leaves of it is not documented.
    assert 0 < sizes.sbuf_fmax_bytes <= kib * 1024 == CHIPS[generation].sbuf_partition_bytes
    assert sizes.sbuf_fmax == sizes.sbuf_fmax_bytes // 4 and sizes.total_available_sbuf_size == sizes.sbuf_fmax_bytes
    assert sizes.sbuf_size_bytes == 128 * kib * 1024
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
    assert sizes.psum_num_banks == (8 if generation == 2 else 7)


def test_functions_have_the_documented_parameters():
    documented = {
        "sum": "x axis dtype keepdims",
        "all": "x axis dtype",
        "softmax": "x axis dtype",
        "rms_norm": "x w axis n epsilon dtype compute_dtype",
        "where": "condition x y dtype",
        "dropout": "x rate dtype",
        "ndarray": "shape dtype buffer name address",
        "full": "shape fill_value dtype buffer name",
        "zeros_like": "x dtype buffer name",
        "rand": "shape dtype buffer name",
        "random_seed": "seed",
        "expand_dims": "x axis",
        "broadcast_to": "x shape dtype",
        "transpose": "x dtype",
        "matmul": "x y transpose_x",
        "load": "src dtype",
        "store": "dst value",
        "load_transpose2d": "src dtype",
        "gather_flattened": "data indices axis dtype",
        "fori_loop": "lower upper body_fun step",
        "while_loop": "init body_fun",
        "affine_range": "start stop step",
        "dynamic_range": "start stop step",
        "shared_constant": "constant",
        "shared_identity_matrix": "n dtype dst",
        "device_print": "print_prefix tensor",
        "program_id": "axis",
        "num_programs": "axes",
    }
    for name, parameters in documented.items():
        assert list(inspect.signature(getattr(nl, name)).parameters) == parameters.split(), name


def test_the_loop_that_is_gone_still_runs_with_a_warning():
    def kernel():
        seen = [int(i) for i in nl.dynamic_range(3)]
        assert seen == [0, 1, 2]

    with pytest.warns(NkiWarning, match="nl.fori_loop"):
        nki.simulate(kernel)()
