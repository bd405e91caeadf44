"""Instructions made by hand, for tests of what is worked out from them."""

from optimum_neuron_torch.emulator.nki.dtypes import as_dtype
from optimum_neuron_torch.emulator.nki.records import Footprint, Record
from optimum_neuron_torch.emulator.nki.tensor import contiguous_strides


PITCHES = {"sbuf": 224 * 1024, "psum": 16 * 1024}


def tile(space="sbuf", shape=(128, 512), dtype="float32", *, owner=0, byte=0, partition=0, strides=None) -> Footprint:
    """A tensor at an explicit address, or of its own allocation where `owner` is given; `strides` in elements."""
    dtype = as_dtype(dtype)
    free = contiguous_strides(shape[1:], dtype.itemsize) if strides is None else [s * dtype.itemsize for s in strides]
    pitch = PITCHES[space] if not owner else shape[0] and free[0] * shape[1]
    return Footprint(space, owner, pitch, partition * pitch + byte, tuple(shape), (pitch, *free), dtype)


def in_hbm(shape=(128, 512), dtype="float32", *, owner=1, byte=0, strides=None) -> Footprint:
    dtype = as_dtype(dtype)
    steps = contiguous_strides(shape, dtype.itemsize) if strides is None else [s * dtype.itemsize for s in strides]
    return Footprint("private_hbm", owner, 0, byte, tuple(shape), tuple(steps), dtype)


def record(op, engine, written=(), read=(), *, line=1, core=0, **detail) -> Record:
    return Record(op, engine, core, "/kernels/made.py", line, tuple(written), tuple(read), detail or None)
