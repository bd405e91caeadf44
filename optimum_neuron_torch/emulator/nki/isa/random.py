"""Random numbers: a XORWOW generator per partition and engine.

XORWOW is what the Neuron documentation names for `rand2` and the states of `rand_set_state` (Marsaglia, "Xorshift
RNGs", Journal of Statistical Software 8, 2003). How the Vector Engine's 24 words make four generators, and how
`set_rng_seed` makes states of one number, is not documented: sequences here are reproducible, and not the chip's.
"""

from typing import Any

import numpy as np

from ..core import Core, current
from ..errors import NkiError
from ..instruction import Step, instruction
from ..memory import MemoryRegion
from ..tensor import NkiTensor
from .constants import engine as engines
from .operands import (
    check_per_partition,
    choose_engine,
    in_buffer,
    needs_generation,
    on_chip,
    per_partition,
    same_elements,
    tensors,
)


WORDS = 6  # of one generator
GENERATORS = {"gpsimd": 1, "vector": 4}  # per partition
WEYL = np.uint32(362437)
DEFAULT_SEED = 0


def _states(core: Core, engine: str) -> np.ndarray:
    """uint32 (partitions, generators, 6) of this core's engine, seeded where nobody has."""
    known = core.random_state.get(engine)
    if known is None:
        known = core.random_state[engine] = _seeded(core, engine, DEFAULT_SEED)
    return known


def _seeded(core: Core, engine: str, seed: int) -> np.ndarray:
    entropy = [seed & 0xFFFFFFFF, core.index, GENERATORS[engine]]
    shape = (core.run.chip.partitions, GENERATORS[engine], WORDS)
    words = np.random.SeedSequence(entropy).generate_state(int(np.prod(shape)), np.uint32)
    words = words.reshape(shape)
    words[..., 0] |= 1  # five words of zero would stay zero
    return words


def _draw(core: Core, engine: str, partitions: int, count: int) -> np.ndarray:
    """uint32 (partitions, count): element i of a partition comes from its generator i modulo their number."""
    states = _states(core, engine)[:partitions]
    generators = states.shape[1]
    rounds = -(-count // generators)
    drawn = np.empty((rounds, partitions, generators), np.uint32)
    x, y, z, w, v, d = (states[..., word].copy() for word in range(WORDS))
    for turn in range(rounds):
        t = x ^ (x >> np.uint32(2))
        x, y, z, w = y, z, w, v
        v = (v ^ (v << np.uint32(4))) ^ (t ^ (t << np.uint32(1)))
        d = d + WEYL
        drawn[turn] = d + v
    for word, values in enumerate((x, y, z, w, v, d)):
        states[..., word] = values
    return drawn.transpose(1, 0, 2).reshape(partitions, -1)[:, :count]


def _uniform(core: Core, partitions: int, count: int) -> np.ndarray:
    """float32 in [0, 1), from 24 bits each."""
    return (_draw(core, "vector", partitions, count) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


@instruction
def rng(dst: NkiTensor, engine: Any = engines.vector) -> Step:
    """Random bits: the lowest of 32 for narrower integers."""
    on_chip(dst)
    if not dst.dtype.is_integer:
        raise NkiError(f"dst is an integer tensor, but is {dst.describe()}")
    if engine is engines.gpsimd:
        needs_generation(3, "rng on the GpSimd engine")
    name = choose_engine(engine, ("vector", "gpsimd"), dst)
    core = current()

    def generate() -> None:
        bits = _draw(core, name, dst.shape[0], dst.free_size)
        dst.write(bits.astype(dst.dtype.storage))

    return Step(name, (dst,), (), generate)


@instruction
def set_rng_seed(src_seeds: NkiTensor) -> Step:
    """Starts the Vector Engine's sequence anew, from a tensor of shape (1, 1) with 32 bits."""
    on_chip(src_seeds)
    if src_seeds.size != 1 or src_seeds.dtype.itemsize != 4:
        raise NkiError(f"src_seeds is one number of 32 bits, but is {src_seeds.describe()}")
    core = current()

    def seed() -> None:
        number = int(src_seeds.read().reshape(-1).view(np.uint32)[0])
        core.random_state["vector"] = _seeded(core, "vector", number)

    return Step("vector", (), (src_seeds,), seed)


def _state_engine(tensor: NkiTensor, engine: Any, role: str) -> str:
    needs_generation(3, "the state of a random generator")
    on_chip(tensor)
    if engine is engines.vector:
        needs_generation(4, "the state of the Vector Engine's generators")
    name = choose_engine(engine, ("gpsimd", "vector"), tensor)
    words = GENERATORS[name] * WORDS
    if tensor.dtype != "uint32" or tensor.free_size != words:
        raise NkiError(f"{role} has {words} uint32 words per partition on {name}, but is {tensor.describe()}")
    return name


@instruction
def rand_set_state(src_seeds: NkiTensor, engine: Any = engines.gpsimd) -> Step:
    """Sets the generators' words: 6 per partition on GpSimd, 24 on the Vector Engine."""
    name = _state_engine(src_seeds, engine, "src_seeds")
    in_buffer(src_seeds, MemoryRegion.sbuf, role="src_seeds")
    core = current()

    def store() -> None:
        words = src_seeds.read().reshape(src_seeds.shape[0], GENERATORS[name], WORDS)
        _states(core, name)[: src_seeds.shape[0]] = words

    return Step(name, (), (src_seeds,), store)


@instruction
def rand_get_state(dst: NkiTensor, engine: Any = engines.gpsimd) -> Step:
    """The generators' words, as `rand_set_state` takes them."""
    name = _state_engine(dst, engine, "dst")
    if current().run.chip.generation < 4:
        in_buffer(dst, MemoryRegion.sbuf, role="dst")
    core = current()
    return Step(name, (dst,), (), lambda: dst.write(_states(core, name)[: dst.shape[0]].copy()))


@instruction
def rand2(dst: NkiTensor, min: Any, max: Any) -> Step:
    """Numbers uniform between `min` and `max`, one of each per partition or one for all."""
    needs_generation(4, "rand2")
    on_chip(dst)
    partitions = dst.shape[0]
    check_per_partition(min, partitions, "min")
    check_per_partition(max, partitions, "max")
    if not isinstance(min, NkiTensor) and not isinstance(max, NkiTensor) and not min < max:
        raise NkiError(f"min={min!r} and max={max!r}: min is below max")
    if not (dst.dtype.is_float or dst.dtype.is_integer):
        raise NkiError(f"dst is a float or an integer tensor, but is {dst.describe()}")
    core = current()

    def generate() -> None:
        low = per_partition(min, partitions, "min")
        high = per_partition(max, partitions, "max")
        dst.write(low + _uniform(core, partitions, dst.free_size) * (high - low))

    return Step("vector", (dst,), tensors(min, max), generate)


@instruction
def dropout(dst: NkiTensor, data: NkiTensor, prob: Any) -> Step:
    """`data` with elements replaced by zero with probability `prob`, a number or one per partition."""
    on_chip(dst, data)
    same_elements(dst, data)
    partitions = data.shape[0]
    check_per_partition(prob, partitions, "prob")
    if dst.dtype != data.dtype:
        raise NkiError(f"dst has data's dtype, but they are {dst.dtype} and {data.dtype}")
    if isinstance(prob, NkiTensor):
        if data.dtype.is_integer and prob.dtype != "float32":
            raise NkiError(f"prob is float32 for integer data, but is {prob.describe()}")
        if not prob.dtype.is_float:
            raise NkiError(f"prob is a float tensor, but is {prob.describe()}")
    elif not 0 <= prob <= 1:
        raise NkiError(f"prob={prob!r} is no probability")
    core = current()

    def drop() -> None:
        is_kept = _uniform(core, partitions, data.free_size) >= per_partition(prob, partitions, "prob")
        values = data.read().reshape(partitions, -1)
        dst.write(np.where(is_kept, values, np.zeros((), values.dtype)))

    return Step("vector", (dst,), (data, *tensors(prob)), drop)
