"""What the attention kernels share: limits, what their arguments have to be, and how masks are broadcast.

Shape legend: B batch, H query heads, G key/value heads, Q queries, K keys, D head size of q and k, E head size of v.
"""

from typing import Any


PARTITIONS = 128
BANK = 512  # float32 numbers in a bank of PSUM, which a product on NeuronCore-v3 does not cross
HEAD_MAX = 256  # two products of 128 rows

LOWEST = -3.4028235e38  # the lowest float32: what range_select writes for keys that are not seen
FLOOR = 1e30  # no maximum is below -FLOOR, so that exp of a logit that is not seen is 0 in rows that see no key
SMALLEST = 1e-18  # instead of a sum of 0; no other is below 1, and the Scalar Engine's log begins at 2^-64


def check_heads(query_BHQD: Any, key_BGKD: Any, value_BGKE: Any, is_causal: bool = False) -> None:
    """Raises ValueError for tensors that do not fit together, or are too wide."""
    query, key, value = query_BHQD, key_BGKD, value_BGKE
    (batch, heads, queries, depth), (_, groups, keys, _) = query.shape, key.shape
    if key.shape[0] != batch or heads % groups or key.shape[3] != depth or tuple(value.shape[:3]) != key.shape[:3]:
        raise ValueError(
            f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} do not fit together: "
            "they are (B, H, Q, D), (B, G, K, D) and (B, G, K, E), with H a multiple of G"
        )
    if max(depth, value.shape[3]) > HEAD_MAX:
        raise ValueError(f"head sizes {depth} and {value.shape[3]}: up to {HEAD_MAX} are possible")
    if not query.dtype == key.dtype == value.dtype:
        raise ValueError(f"query, key and value are of one dtype, not {query.dtype}, {key.dtype} and {value.dtype}")
    if is_causal and queries != keys:
        raise ValueError(f"is_causal with {queries} queries and {keys} keys: it takes as many of both; pass ranges")


def broadcast(tensor: Any, dim: int, index: int) -> int:
    """Where `index` is in a dimension that may be 1 for all."""
    return 0 if tensor.shape[dim] == 1 else index


def ceil(size: int, unit: int) -> int:
    """How many units hold `size`."""
    return -(-size // unit)
