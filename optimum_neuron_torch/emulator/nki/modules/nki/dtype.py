"""`nki.dtype`: the element types."""

from optimum_neuron_torch.emulator.nki.dtypes import ALL_DTYPES, DType, bool_


globals().update({str(dtype): dtype for dtype in ALL_DTYPES if dtype is not bool_})
