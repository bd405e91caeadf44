"""Where "bit for bit what the CPU answers" is not the rule, and why. The documentation prints these reasons."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """How values are compared."""

    reason: str = ""
    values: bool = True  # False: uninitialised memory, only geometry is compared
    rtol: float = 0.0
    atol: float = 0.0
    columns: tuple[str, ...] = ()  # where it holds; empty: everywhere


EXACT = Rule()

_UNINITIALISED = Rule("memory that nobody has written: geometry only", values=False)
_CELLS = Rule(
    "within 1e-5: PyTorch composes recurrent networks of other products on accelerators than on the CPU",
    rtol=1e-5,
    atol=1e-5,
)

_CHUNKS = Rule(
    "within 2 %: PyTorch chooses how it accumulates in bfloat16 by the device's name",
    rtol=2e-2,
    atol=2e-2,
    columns=("bfloat16",),
)

_LEAST_SQUARES = Rule(
    "within 1e-5: LAPACK's result depends on how its memory is aligned, on the CPU too", rtol=1e-5, atol=1e-5
)

# By table and entry.
RULES = {
    "operators": {
        **dict.fromkeys(
            (
                "empty",
                "empty_like",
                "empty_permuted",
                "empty_strided",
                "new_empty",
                "new_empty_strided",
                "resize_",
                "resize_as_",
            ),
            _UNINITIALISED,
        ),
        "linalg_lstsq": _LEAST_SQUARES,
        "linalg_lstsq_grad_oriented": _LEAST_SQUARES,
        "nn_functional_linear_cross_entropy_chunked": _CHUNKS,
        "nn_functional_linear_cross_entropy_chunked_none": _CHUNKS,
    },
    "modules": dict.fromkeys(("nn_RNN", "nn_GRU", "nn_LSTM", "nn_GRUCell", "nn_LSTMCell"), _CELLS),
    "optimizers": {},
}


def rule_of(table: str, entry: str, column: str) -> Rule:
    rule = RULES[table].get(entry, EXACT)
    return rule if column in rule.columns or not rule.columns else EXACT


# The CPU has no capturable optimizers: the reference is its other implementation, whose arithmetic has another order.
CAPTURABLE = Rule(rtol=1e-5, atol=1e-6)

# Samples of operators that are left out, by entry and variant: what the CPU itself cannot do without harm.
_OVERRUN = "the CPU's kernel writes past the end of the result"
LEFT_OUT = {
    ("linalg_lu", "out= transposed"): _OVERRUN,
    ("lu_unpack", "out= transposed"): _OVERRUN,
    ("tril", "out= transposed"): _OVERRUN,
    ("triu", "out= transposed"): _OVERRUN,
}

# What the device refuses with a NotImplementedError, by table and entry.
_SPARSE = "sparse layouts"
REFUSED = {
    "operators": dict.fromkeys(("to_sparse", "sparse_sampled_addmm", "sparse_mm_reduce"), _SPARSE),
    "modules": {},
    "optimizers": {"SparseAdam": _SPARSE},
}
