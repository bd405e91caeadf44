"""Names of the old dialect (`neuronxcc.nki`, NKI 0.1 and before) that are gone, each with what to write instead."""

from ..names import MissingNameError


REMOVED = {
    "arange": "slice instead, t[0:128, 0:512], or give an access pattern with t.ap(...)",
    "mgrid": "slice instead, t[0:128, 0:512], or give an access pattern with t.ap(...)",
    "par_dim": "the first dimension of a tile is its partition: write its size alone, and make blocks a Python list",
    "spmd_dim": "kernel[2](...) runs a kernel on both cores of a logical NeuronCore",
    "nc": "kernel[2](...) runs a kernel on both cores of a logical NeuronCore",
    "all_reduce": "nki.collectives has the collective operations",
    "atomic_rmw": "use nisa.dma_compute",
    "loop_reduce": "add to a tile in the loop, or accumulate in PSUM",
    "fp32": "write nl.tile_size for limits and np.finfo(np.float32) for the range of float32",
    "int64": "the engines are 32 bits wide: use nl.int32",
    "float64": "the engines are 32 bits wide: use nl.float32",
    "uint64": "the engines are 32 bits wide: use nl.uint32",
    "tensor": "annotate with nl.NkiTensor, or nki.typing.tensor",
}


def missing(name: str) -> MissingNameError:
    """What to raise for a name that `nki.language` does not have."""
    return MissingNameError.of("nki.language", name, REMOVED)
