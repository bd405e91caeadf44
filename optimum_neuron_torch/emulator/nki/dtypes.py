"""The element types of NKI: their names, how NumPy stores them, and how values go to and from float32.

The engines compute in float32 and cast on the way out, so `to_float32` and `convert` run for nearly every operand of
nearly every instruction. What they do:

* rounding is to nearest, ties to even; subnormals, signed zeros and infinities are kept;
* a float that is too large for a narrower float becomes infinity, or NaN where the type has none (float8_e4m3fn): the
  casts do not saturate, which is why kernels clip before they store float8;
* a float becomes an integer by rounding to nearest even and saturating; NaN becomes 0;
* an integer outside the range of a narrower integer type saturates, as it would on its way through float32.
"""

import sys
from collections.abc import Callable
from functools import cache, lru_cache

import ml_dtypes
import numpy as np

from .errors import NkiError


class NkiDtypeError(NkiError, ValueError):
    """What was given is no element type of NKI, or none for this use."""


class DType(str):
    """One element type. It is its own name, so it compares, hashes and prints as the string does; one object per type.

    Attributes:
        storage: the NumPy type of one element in memory. Packed types and `tfloat32` have no NumPy type: they are
            stored as unsigned integers and as float32.
        itemsize: bytes of one element.
        is_float, is_integer, is_packed: exactly one is true, but for `bool`, where none is.
        min, max: the range of finite values; None for packed types.
        packed: how many elements one element packs (1, or 4).
    """

    __slots__ = ("storage", "itemsize", "is_float", "is_integer", "is_packed", "packed", "min", "max")

    def __new__(cls, name: str) -> "DType":
        return as_dtype(name)

    def __repr__(self) -> str:
        return f"nl.{self}_" if self == "bool" else f"nl.{self}"

    def __reduce__(self):
        return as_dtype, (str(self),)


def _make(name: str, storage, *, packed: int = 1) -> DType:
    dtype = str.__new__(DType, name)
    dtype.storage = np.dtype(storage)
    dtype.itemsize = dtype.storage.itemsize
    dtype.packed = packed
    dtype.is_packed = packed > 1
    dtype.is_integer = dtype.storage.kind in "iu" and not dtype.is_packed
    dtype.is_float = not dtype.is_packed and not dtype.is_integer and name != "bool"
    dtype.min = dtype.max = None
    if dtype.is_integer:
        dtype.min, dtype.max = int(np.iinfo(storage).min), int(np.iinfo(storage).max)
    elif dtype.is_float:
        limits = ml_dtypes.finfo(dtype.storage)
        dtype.min, dtype.max = float(limits.min), float(limits.max)
        if name == "tfloat32":
            dtype.max = float(np.uint32(0x7F7FE000).view(np.float32))
            dtype.min = -dtype.max
    elif name == "bool":
        dtype.min, dtype.max = 0, 1
    return dtype


_BY_NAME: dict[str, DType] = {
    name: _make(name, storage)
    for name, storage in {
        "float32": np.float32,
        "tfloat32": np.float32,
        "bfloat16": ml_dtypes.bfloat16,
        "float16": np.float16,
        "float8_e4m3": ml_dtypes.float8_e4m3,
        "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2,
        "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
        "int8": np.int8,
        "int16": np.int16,
        "int32": np.int32,
        "uint8": np.uint8,
        "uint16": np.uint16,
        "uint32": np.uint32,
        "bool": np.bool_,
    }.items()
}
_BY_NAME["float8_e4m3fn_x4"] = _make("float8_e4m3fn_x4", np.uint32, packed=4)
_BY_NAME["float8_e5m2_x4"] = _make("float8_e5m2_x4", np.uint32, packed=4)
_BY_NAME["float4_e2m1fn_x4"] = _make("float4_e2m1fn_x4", np.uint16, packed=4)

_PACKED = frozenset(name for name, dtype in _BY_NAME.items() if dtype.is_packed)

ALL_DTYPES: tuple[DType, ...] = tuple(_BY_NAME.values())

float32 = _BY_NAME["float32"]
tfloat32 = _BY_NAME["tfloat32"]
bfloat16 = _BY_NAME["bfloat16"]
float16 = _BY_NAME["float16"]
float8_e4m3 = _BY_NAME["float8_e4m3"]
float8_e4m3fn = _BY_NAME["float8_e4m3fn"]
float8_e5m2 = _BY_NAME["float8_e5m2"]
float8_e8m0fnu = _BY_NAME["float8_e8m0fnu"]
float8_e4m3fn_x4 = _BY_NAME["float8_e4m3fn_x4"]
float8_e5m2_x4 = _BY_NAME["float8_e5m2_x4"]
float4_e2m1fn_x4 = _BY_NAME["float4_e2m1fn_x4"]
int8 = _BY_NAME["int8"]
int16 = _BY_NAME["int16"]
int32 = _BY_NAME["int32"]
uint8 = _BY_NAME["uint8"]
uint16 = _BY_NAME["uint16"]
uint32 = _BY_NAME["uint32"]
bool_ = _BY_NAME["bool"]

# What 64-bit types become; named in the error, never done in silence.
_NARROWER = {"float64": "float32", "int64": "int32", "uint64": "uint32"}


def as_dtype(given) -> DType:
    """The DType meant by a name, a NumPy or ml_dtypes type, a torch or JAX dtype, or a DType.

    Raises:
        NkiDtypeError: for anything else; it names what exists.
    """
    if type(given) is DType:
        return given
    try:
        return _look_up(given)
    except TypeError:  # Unhashable: surely no type.
        raise NkiDtypeError(_unknown(given)) from None


@lru_cache(maxsize=256, typed=True)
def _look_up(given) -> DType:
    name = _name_of(given)
    found = _BY_NAME.get("bool" if name == "bool_" else name)
    if found is None:
        raise NkiDtypeError(_unknown(given))
    return found


def _name_of(given) -> str | None:
    if isinstance(given, str):
        return str(given)
    if isinstance(given, np.dtype):
        # NumPy has no packed types: a structure with one field of that name stands for one.
        is_packed = given.names is not None and len(given.names) == 1 and given.names[0] in _PACKED
        return given.names[0] if is_packed else given.name
    if isinstance(getattr(given, "dtype", None), np.dtype):  # jax.numpy.bfloat16 and its like carry the NumPy type.
        return given.dtype.name
    if isinstance(given, type):
        # `float` and `int` are 64 bits wide to NumPy, 32 to a reader: neither is a type of NKI. `bool` is plain.
        is_element = issubclass(given, np.generic) or given is bool or given.__module__.startswith("ml_dtypes")
        return np.dtype(given).name if is_element else None
    text = str(given)
    return text.removeprefix("torch.") if text.startswith("torch.") else None


def _unknown(given) -> str:
    text = given if isinstance(given, str) else repr(given)
    name = _name_of(given) if getattr(given, "__hash__", None) else None
    if name in _NARROWER:
        return f"{text} is no NKI dtype: the engines are 32 bits wide; convert to {_NARROWER[name]} before the call"
    return f"{text} is no NKI dtype; there are {', '.join(ALL_DTYPES)}"


def to_float32(array: np.ndarray, dtype: DType) -> np.ndarray:
    """The values of stored elements as float32, as an engine reads them; float32 is returned as it is, not copied."""
    if dtype is float32:
        return array
    if dtype is bfloat16:
        return _bfloat16_to_float32(array)
    if dtype is float16:
        return _float16_to_float32(array)
    if dtype is tfloat32:
        # The bytes may have been written as float32.
        return _round_to_tfloat32(array)
    if dtype.is_packed:
        raise NkiDtypeError(
            f"{dtype} packs {dtype.packed} values in one element, which only nc_matmul_mx reads; "
            "take a view of the elements as another dtype to read them"
        )
    if dtype.is_float:
        return _float8_values(dtype).take(array.view(np.uint8), mode="clip")
    return array.astype(np.float32)


def convert(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values cast to a dtype, as elements of `dtype.storage`, as an engine writes them.

    Elements that are stored in that way already are returned as they are, not copied; but for `tfloat32`, whose stored
    form is float32's, and which is rounded.
    """
    if values.dtype == dtype.storage and dtype is not tfloat32:
        return values
    if values.ndim == 0:
        return convert(values.reshape(1), dtype).reshape(())
    return _CONVERSIONS[dtype](_plain(values, dtype), dtype)


def store(values: np.ndarray, dtype: DType, out: np.ndarray) -> None:
    """Casts values as `convert` does, into elements of memory of the same shape."""
    torch = _loaded_torch() if dtype in _CAST_BY_TORCH and values.dtype == np.float32 else None
    is_plain = values.flags.writeable and min(values.strides + out.strides, default=0) >= 0
    # Tensors may overlay each other: a cast in place would read what it has written.
    if torch is None or not is_plain or np.may_share_memory(values, out):
        out[...] = convert(values, dtype)
    elif dtype is bfloat16:
        torch.from_numpy(out.view(np.int16)).view(torch.bfloat16).copy_(torch.from_numpy(values))
    else:
        torch.from_numpy(out).copy_(torch.from_numpy(values))


_CAST_BY_TORCH = (bfloat16, float16)


def convert_bits(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers cast to an integer dtype by keeping the low bits: what a bitwise instruction writes."""
    return values if values.dtype == dtype.storage else values.astype(dtype.storage)


def _plain(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Values in a NumPy type that NumPy itself computes with: float32, float64 or an integer."""
    kind = values.dtype.kind
    if kind in "iub":
        return values
    if kind == "f" and values.dtype.itemsize != 2:
        return values if values.dtype == np.float32 or dtype.is_integer else _narrowed(values, np.float32)
    return to_float32(values, as_dtype(values.dtype))


def _narrowed(values: np.ndarray, storage) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(storage)


def _has_nan(values: np.ndarray) -> bool:
    # The maximum is NaN just where an element is, and comes without the array of booleans that isnan().any() needs.
    return bool(values.size) and bool(np.isnan(values.max()))


def _loaded_torch():
    """torch, where it is loaded already: it casts between float32 and 16 bits several times as fast as NumPy."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "from_numpy") else None


def _for_torch(array: np.ndarray) -> np.ndarray:
    """The array as torch takes it without a warning: contiguous (strides may be negative here) and writeable."""
    flags = array.flags
    return array if flags.c_contiguous and flags.writeable else array.copy(order="C")


_16 = np.uint32(16)
_1 = np.uint32(1)


def _bfloat16_to_float32(array: np.ndarray) -> np.ndarray:
    wide = array.view(np.uint16).astype(np.uint32)
    np.left_shift(wide, _16, out=wide)
    return wide.view(np.float32)


def _float16_to_float32(array: np.ndarray) -> np.ndarray:
    if (torch := _loaded_torch()) is not None:
        return torch.from_numpy(_for_torch(array)).float().numpy()
    return array.astype(np.float32)


def _to_bfloat16(values: np.ndarray, dtype: DType) -> np.ndarray:
    if values.dtype != np.float32:
        values = values.astype(np.float32)
    if (torch := _loaded_torch()) is not None:
        return torch.from_numpy(_for_torch(values)).bfloat16().view(torch.int16).numpy().view(dtype.storage)
    bits = values.view(np.uint32)
    # Adding half of what is dropped, less one where the last kept bit is even, carries just where rounding goes up.
    rounded = bits >> _16
    rounded &= _1
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= _16
    kept = rounded.astype(np.uint16)
    if _has_nan(values):
        # The carry can make another number of a NaN.
        kept[np.isnan(values)] = 0x7FC0
    return kept.view(dtype.storage)


def _round_to_tfloat32(values: np.ndarray, dtype: DType = tfloat32) -> np.ndarray:
    values = values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(13)
    rounded &= _1
    rounded += np.uint32(0xFFF)
    rounded += bits
    rounded &= np.uint32(0xFFFFE000)
    kept = rounded.view(np.float32)
    if _has_nan(values):
        kept[np.isnan(values)] = np.nan
    return kept


def _to_float16(values: np.ndarray, dtype: DType) -> np.ndarray:
    if values.dtype != np.float32:
        values = values.astype(np.float32)
    if (torch := _loaded_torch()) is not None:
        return torch.from_numpy(_for_torch(values)).half().numpy()
    return _narrowed(values, np.float16)


@cache
def _float8_values(dtype: DType) -> np.ndarray:
    """The float32 value of each of the 256 bytes."""
    return np.arange(256, dtype=np.uint8).view(dtype.storage).astype(np.float32)


@cache
def _float8_of_upper_half(dtype: DType) -> np.ndarray:
    """The byte of each float32 whose lower 16 bits are zero, by its upper 16 bits."""
    upper = np.arange(1 << 16, dtype=np.uint32) << _16
    return _narrowed(upper.view(np.float32), dtype.storage).view(np.uint8)


def _to_float8(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Looks up the upper half of each float32, with its last bit set where the lower half is not zero.

    That is rounding to odd: it says exactly on which side of a tie a value is, so that rounding the 8 bits of mantissa
    that are left to 3 gives what rounding all 24 gives.
    """
    values = values.astype(np.float32, copy=False)
    bits = values.view(np.uint32)
    upper = bits >> _16
    upper |= (bits & np.uint32(0xFFFF)) != 0
    return _float8_of_upper_half(dtype).take(upper, mode="clip").view(dtype.storage)


def _to_integer(values: np.ndarray, dtype: DType) -> np.ndarray:
    if values.dtype.kind in "iub":
        return _saturated_integers(values, dtype)
    rounded = np.rint(values)
    if not rounded.size or dtype.min <= float(rounded.min()) and float(rounded.max()) <= dtype.max:
        return rounded.astype(dtype.storage)
    if dtype.itemsize == 4:
        # float32 has no 2**31 - 1: only in float64 are all bounds exact.
        rounded = rounded.astype(np.float64)
    np.clip(rounded, dtype.min, dtype.max, out=rounded)
    rounded[np.isnan(rounded)] = 0
    return rounded.astype(dtype.storage)


def _saturated_integers(values: np.ndarray, dtype: DType) -> np.ndarray:
    if values.dtype.kind == "b":
        return values.astype(dtype.storage)
    limits = np.iinfo(values.dtype)
    if limits.min < dtype.min or limits.max > dtype.max:
        values = np.clip(values, max(limits.min, dtype.min), min(limits.max, dtype.max))
    return values.astype(dtype.storage)


def _to_bool(values: np.ndarray, dtype: DType) -> np.ndarray:
    return values != 0


def _to_float32(values: np.ndarray, dtype: DType) -> np.ndarray:
    return values.astype(np.float32)


def _to_packed(values: np.ndarray, dtype: DType) -> np.ndarray:
    raise ValueError(
        f"nothing casts {values.dtype} values to {dtype}: quantize_mx makes packed elements, and a view of another "
        f"dtype's bytes reads as them"
    )


def _conversion_to(dtype: DType) -> Callable[[np.ndarray, DType], np.ndarray]:
    if dtype.is_packed:
        return _to_packed
    if dtype.is_integer:
        return _to_integer
    if dtype.is_float and dtype.itemsize == 1:
        return _to_float8
    return {
        float32: _to_float32,
        tfloat32: _round_to_tfloat32,
        bfloat16: _to_bfloat16,
        float16: _to_float16,
        bool_: _to_bool,
    }[dtype]


_CONVERSIONS = {dtype: _conversion_to(dtype) for dtype in ALL_DTYPES}
