"""The instructions, by engine. What is listed here is what `nki.isa` offers."""

from .activations import activate2, activation, activation_reduce, exponential
from .cores import core_barrier, sendrecv
from .dma import dma_compute, dma_copy, dma_transpose
from .elementwise import reciprocal, scalar_tensor_tensor, tensor_scalar, tensor_tensor
from .gathering import local_gather, nc_n_gather, nc_stream_shuffle
from .moving import memset, tensor_copy
from .mx import nc_matmul_mx, quantize_mx
from .patterns import affine_select, iota, sequence_bounds
from .random import dropout, rand2, rand_get_state, rand_set_state, rng, set_rng_seed
from .reductions import tensor_partition_reduce, tensor_reduce, tensor_scalar_reduce
from .registers import register_alloc, register_load, register_move, register_store
from .scans import tensor_scalar_cumulative, tensor_tensor_scan
from .searching import max8, nc_find_index8, nc_match_replace8, nonzero_with_count, topk
from .selecting import range_select, select_reduce, tensor_copy_predicated
from .statistics import bn_aggr, bn_stats
from .tensor_engine import nc_matmul, nc_transpose


__all__ = [
    "activate2",
    "activation",
    "activation_reduce",
    "affine_select",
    "bn_aggr",
    "bn_stats",
    "core_barrier",
    "dma_compute",
    "dma_copy",
    "dma_transpose",
    "dropout",
    "exponential",
    "iota",
    "local_gather",
    "max8",
    "memset",
    "nc_find_index8",
    "nc_match_replace8",
    "nc_matmul",
    "nc_matmul_mx",
    "nc_n_gather",
    "nc_stream_shuffle",
    "nc_transpose",
    "nonzero_with_count",
    "quantize_mx",
    "rand2",
    "rand_get_state",
    "rand_set_state",
    "range_select",
    "reciprocal",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
    "rng",
    "scalar_tensor_tensor",
    "select_reduce",
    "sendrecv",
    "sequence_bounds",
    "set_rng_seed",
    "tensor_copy",
    "tensor_copy_predicated",
    "tensor_partition_reduce",
    "tensor_reduce",
    "tensor_scalar",
    "tensor_scalar_cumulative",
    "tensor_scalar_reduce",
    "tensor_tensor",
    "tensor_tensor_scan",
    "topk",
]
