"""tensor_reduce, tensor_partition_reduce, tensor_scalar_reduce: against NumPy, as the API reference defines them."""

import numpy as np
import pytest

import nki.isa as nisa
import nki.language as nl
from tests.emulator.nki.isa.issuing import (
    FLOATS,
    INTEGERS,
    cast,
    issued,
    normal,
    out,
    psum,
    refusal,
    run,
    sbuf,
    some,
    tile,
)


commands = nisa.reduce_cmd


# tensor_reduce


REDUCTIONS = {
    "add": lambda x: x.sum(-1),
    "multiply": lambda x: x.prod(-1),
    "maximum": lambda x: x.max(-1),
    "minimum": lambda x: x.min(-1),
    "subtract": lambda x: x[..., 0] - x[..., 1:].sum(-1),
    "logical_and": lambda x: (x != 0).all(-1),
    "logical_or": lambda x: (x != 0).any(-1),
    "logical_xor": lambda x: (x != 0).sum(-1) % 2,
}


@pytest.mark.parametrize("target", ["trn1", "trn2", "trn3"])
@pytest.mark.parametrize("op", list(REDUCTIONS))
def test_reductions_of_the_last_dimension(op, target):
    x = some("float32", 128, 7)
    result = issued(
        lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, op), data, axis=1), x, shape=(128, 1), target=target
    )
    np.testing.assert_allclose(result[:, 0], REDUCTIONS[op](x).astype(np.float32), rtol=1e-6)


@pytest.mark.parametrize(
    "axis, kept", [(3, (3, 4)), (-1, (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ([3, 2], (3,)), ((1, 2, 3), ())]
)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("negate", [False, True])
def test_the_last_dimensions_are_reduced(axis, kept, keepdims, negate):
    x = some("bfloat16", 32, 3, 4, 5)
    shape = (32, *kept, *(1,) * (3 - len(kept))) if keepdims else (32, *(kept or (1,)))
    result = issued(
        lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, axis, negate=negate, keepdims=keepdims),
        x,
        shape=shape,
        dtype="float32",
    )
    expected = x.astype(np.float32).reshape(32, *kept, -1).sum(-1)
    np.testing.assert_array_equal(result.reshape(32, *kept), -expected if negate else expected)


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("in_dtype", [*FLOATS, *INTEGERS])
def test_reductions_are_cast_to_float32_and_back(in_dtype, out_dtype):
    x = some(in_dtype, 100, 6)
    result = issued(lambda dst, data: nisa.tensor_reduce(dst, nl.add, data, 1), x, shape=(100, 1), dtype=out_dtype)
    np.testing.assert_array_equal(result[:, 0], cast(x.astype(np.float32).sum(1), out_dtype))


@pytest.mark.parametrize("op, ufunc", [("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_are_reduced(op, ufunc, dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (64, 3), dtype=dtype, endpoint=True)
    result = issued(lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, op), data, 1), x, shape=(64, 1))
    np.testing.assert_array_equal(result[:, 0], ufunc.reduce(x, axis=1))


def test_strided_and_psum_data():
    x = normal(128, 12, 8)
    result = issued(
        lambda dst, data: nisa.tensor_reduce(dst, nl.maximum, data.permute([0, 2, 1]), 2),
        x,
        shape=(128, 8),
        inputs="psum",
        buffer="psum",
    )
    np.testing.assert_array_equal(result, x.max(1))


@pytest.mark.parametrize("op", ["abs_max", "abs_min"])
def test_magnitudes_are_reduced_from_trn3_on(op):
    x = normal(32, 9)
    result = issued(
        lambda dst, data: nisa.tensor_reduce(dst, getattr(nl, op), data, 1), x, shape=(32, 1), target="trn3"
    )
    at = np.abs(x).argmax(1) if op == "abs_max" else np.abs(x).argmin(1)
    np.testing.assert_array_equal(result[:, 0], x[np.arange(32), at])


def test_nan_is_kept():
    x = normal(16, 5)
    x[3, 2] = np.nan
    result = issued(lambda dst, data: nisa.tensor_reduce(dst, nl.maximum, data, 1), x, shape=(16, 1))
    np.testing.assert_array_equal(result[:, 0], x.max(1))


# tensor_partition_reduce


@pytest.mark.parametrize("partitions", [1, 32, 100, 128])
@pytest.mark.parametrize("op, function", [("add", np.sum), ("average", np.mean), ("maximum", np.max)])
def test_partitions_are_reduced(op, function, partitions):
    x = normal(partitions, 4, 6)
    result = issued(lambda dst, data: nisa.tensor_partition_reduce(dst, getattr(nl, op), data), x, shape=(1, 4, 6))
    np.testing.assert_allclose(result[0], function(x.astype(np.float64), axis=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op, ufunc", [("bitwise_and", np.bitwise_and), ("bitwise_or", np.bitwise_or)])
def test_bits_of_partitions_are_reduced(op, ufunc):
    x = np.random.default_rng(0).integers(0, 2**16, (3, 40), dtype=np.uint16)
    result = issued(lambda dst, data: nisa.tensor_partition_reduce(dst, getattr(nl, op), data), x, shape=(1, 40))
    np.testing.assert_array_equal(result[0], ufunc.reduce(x, axis=0))


# tensor_scalar_reduce


WHOLE = {"add": np.sum, "multiply": np.prod, "maximum": np.max, "minimum": np.min}


@pytest.mark.parametrize("negate", [False, True])
@pytest.mark.parametrize("op", list(WHOLE))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elements_and_their_reduction(op, negate, dtype):
    x = some("float32", 128, 3, 4)

    def kernel(values):
        data, scaled = tile(values, nl.psum), nl.ndarray(values.shape, dtype)
        total = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_scalar_reduce(scaled, data, nl.multiply, 1.5, getattr(nl, op), total, reduce_res_negate=negate)
        return out(scaled), out(total)

    scaled, total = run(kernel, x)
    np.testing.assert_array_equal(scaled, cast(x * np.float32(1.5), dtype))
    expected = WHOLE[op](x * np.float32(1.5), axis=(1, 2))
    np.testing.assert_allclose(total[:, 0], -expected if negate else expected, rtol=1e-6)


def test_a_reduction_over_several_instructions():
    x, start = normal(64, 30), normal(64, 1, seed=1)

    def kernel(values, initial):
        data, scaled = tile(values), nl.ndarray((64, 10), nl.float32)
        results = [nl.ndarray((64, 1), nl.float32) for _ in range(4)]
        steps = [(commands.reset_reduce, None), (commands.reduce, results[0]), (commands.reduce, results[1])]
        for i, (command, result) in enumerate(steps):
            part = data[:, 10 * i : 10 * i + 10]
            nisa.tensor_scalar_reduce(scaled, part, nl.add, 0.0, nl.add, result, reduce_cmd=command)
        for result, given in ((results[2], tile(initial)), (results[3], 2.0)):
            nisa.tensor_scalar_reduce(
                scaled,
                data[:, :10],
                nl.add,
                0.0,
                nl.maximum,
                result,
                reduce_cmd=commands.load_reduce,
                reduce_init=given,
            )
        return tuple(map(out, results))

    two, three, loaded, from_two = run(kernel, x, start)
    np.testing.assert_allclose(two[:, 0], x[:, :20].sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(three[:, 0], x.sum(1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(loaded[:, 0], np.maximum(x[:, :10].max(1), start[:, 0]))
    np.testing.assert_array_equal(from_two[:, 0], np.maximum(x[:, :10].max(1), np.float32(2)))


def test_negation_leaves_the_accumulators():
    x = normal(16, 8)

    def kernel(values):
        data, copy = tile(values), nl.ndarray(values.shape, nl.float32)
        first, second = nl.ndarray((16, 1), nl.float32), nl.ndarray((16, 1), nl.float32)
        nisa.tensor_scalar_reduce(copy, data, nl.add, 0.0, nl.maximum, first, reduce_res_negate=True)
        nisa.tensor_scalar_reduce(copy, data, nl.add, 0.0, nl.maximum, second, reduce_cmd=commands.reduce)
        return out(first), out(second)

    first, second = run(kernel, x)
    np.testing.assert_array_equal(first[:, 0], -x.max(1))
    np.testing.assert_array_equal(second[:, 0], x.max(1))


def test_the_documentation_says_max_and_min_too():
    x = normal(16, 8)
    result = issued(
        lambda dst, data: nisa.tensor_scalar_reduce(sbuf(16, 8), data, nl.add, 0.0, nl.max, dst), x, shape=(16, 1)
    )
    np.testing.assert_array_equal(result[:, 0], x.max(1))


def total(command=commands.reset_reduce, op0=nl.add, operand0=1.0, reduce_op=nl.add, result=True, **more):
    nisa.tensor_scalar_reduce(
        sbuf(8, 4), sbuf(8, 4), op0, operand0, reduce_op, sbuf(8, 1) if result else None, reduce_cmd=command, **more
    )


@pytest.mark.parametrize(
    "words, emit",
    [
        ("axis 0 is the partition", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.add, sbuf(8, 4), 0)),
        ("are the last ones", lambda: nisa.tensor_reduce(sbuf(8, 4), nl.add, sbuf(8, 4, 4), 1)),
        ("are the last ones", lambda: nisa.tensor_reduce(sbuf(8, 4), nl.add, sbuf(8, 4, 4), 5)),
        ("integer or a list", lambda: nisa.tensor_reduce(sbuf(8, 4), nl.add, sbuf(8, 4, 4), "x")),
        ("gives 4 elements", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.add, sbuf(8, 4, 4), 2)),
        ("no reduction", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.equal, sbuf(8, 4), 1)),
        ("no reduction", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.exp, sbuf(8, 4), 1)),
        ("tensor_partition_reduce", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.average, sbuf(8, 4), 1)),
        ("take integers", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.bitwise_or, sbuf(8, 4), 1)),
        (
            "negate=True",
            lambda: nisa.tensor_reduce(sbuf(8, 1, dtype="int8"), nl.bitwise_or, sbuf(8, 4, dtype="int8"), 1, True),
        ),
        ("NeuronCore-v4", lambda: nisa.tensor_reduce(sbuf(8, 1), nl.abs_max, sbuf(8, 4), 1)),
        ("PSUM", lambda: nisa.tensor_partition_reduce(sbuf(1, 4), nl.add, psum(8, 4))),
        ("PSUM", lambda: nisa.tensor_partition_reduce(psum(1, 4), nl.add, sbuf(8, 4))),
        ("one partition", lambda: nisa.tensor_partition_reduce(sbuf(8, 4), nl.add, sbuf(8, 4))),
        ("no reduction of this", lambda: nisa.tensor_partition_reduce(sbuf(1, 4), nl.minimum, sbuf(8, 4))),
        ("not supported", lambda: total(reverse0=True)),
        ("no reduction of this", lambda: total(reduce_op=nl.subtract)),
        ("arithmetic operators", lambda: total(op0=nl.bitwise_or)),
        ("reduce_cmd is one of", lambda: total(commands.idle)),
        ("reduce_cmd is one of", lambda: total(3)),
        ("starts from a value", lambda: total(commands.load_reduce)),
        ("only for reduce_cmd.load_reduce", lambda: total(reduce_init=1.0)),
        ("hold nothing", lambda: total(commands.reduce)),
        ("must be float32", lambda: total(commands.load_reduce, reduce_init=sbuf(8, 1, dtype="bfloat16"))),
        ("must be float32", lambda: total(operand0=sbuf(8, 1, dtype="bfloat16"))),
        (
            "shape (8, 1)",
            lambda: nisa.tensor_scalar_reduce(sbuf(8, 4), sbuf(8, 4), nl.add, 1.0, nl.add, sbuf(8, 2)),
        ),
    ],
)
def test_what_is_refused(words, emit):
    assert words in refusal(emit)
