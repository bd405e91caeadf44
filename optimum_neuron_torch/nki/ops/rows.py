"""What ops on rows share: which tensors their kernels take, and how these see them.

Shape legend: T rows, W width.
"""

import torch


KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of rows that a kernel keeps whole on one partition of SBUF.
MAX_ROW_BYTES = 32 * 1024


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """(T, W), contiguous: the last dimension, and all others as one."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def refusal_of_rows(*tensors: torch.Tensor) -> str | None:
    """Why no kernel can take these tensors, which have the same dtype and are not empty, or None."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= set(KERNEL_DTYPES):
        return f"dtypes {', '.join(sorted(str(dtype).removeprefix('torch.') for dtype in dtypes))}"
    if any(0 in tensor.shape for tensor in tensors):
        return "an empty tensor"
    return None


def refusal_of_whole_rows(*tensors: torch.Tensor) -> str | None:
    """As `refusal_of_rows`, for kernels that keep whole rows on the chip."""
    row_bytes = max(tensor.shape[-1] * tensor.element_size() for tensor in tensors)
    if row_bytes > MAX_ROW_BYTES:
        return f"rows of {row_bytes} bytes, above {MAX_ROW_BYTES}"
    return refusal_of_rows(*tensors)
