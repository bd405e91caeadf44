"""How long an instruction keeps its engine, from documented widths and clocks.

The rules of thumb are those of the Neuron documentation (`chips.py` names the pages): an engine streams one element
per partition and cycle, whatever the number of partitions, and starts an instruction every 64 cycles at most. What an
instruction's own page says goes before. Rules that no page gives, for what is left, are marked.
"""

import math
from typing import NamedTuple

from ..chips import Chip
from ..records import Footprint, Operand, Record


PIECES_PER_ENGINE = 8  # partitions that one DMA engine moves; [dma], "Performance Considerations"

# Vector Engine, in cycles per element: `nki.api.shared`, "NKI Engine Selection" (reciprocal); [isa] bn_aggr.
_SLOWER = {"reciprocal": 8.0, "bn_aggr": 13 / 3}
# Elements per cycle: [v4] "Fast Exponential Evaluation", "MX data-type Quantization", "XORWOW-based PRNG".
_FASTER = {"exponential": 4, "quantize_mx": 4, "rand2": 4}
# [v3] "Vector Engine Performance Mode".
_COPIES = {"tensor_copy", "tensor_scalar"}
_PAIRS = {"tensor_tensor", "scalar_tensor_tensor"}
# Results that leave through the Scalar Engine's accumulators: [v2] "Pipelined Reduction".
_READS_ACCUMULATOR = {"activation_reduce"}
_SIXTEEN_BITS = {"bfloat16", "float16"}


class Cost(NamedTuple):
    """`busy_ns`: until the engine can start the next instruction; for a DMA, of each of the `engines` it uses.
    `result_ns`: from then on until another instruction can read what was written. `start_ns`: from the moment when its
    operands are ready until it starts, of which `descriptors_ns` are spent where one transfer after the other is
    prepared.
    """

    busy_ns: float
    result_ns: float = 0.0
    start_ns: float = 0.0
    engines: int = 1
    descriptors_ns: float = 0.0


def cost_of(record: Record, chip: Chip) -> Cost:
    engine = record.engine
    if engine == "dma":
        return _dma_cost(record, chip)
    if record.op == "core_barrier":  # a semaphore, whichever engine waits for it: nobody reads the data
        return Cost(0.0, start_ns=chip.dma_start_ns)
    if engine == "sync":
        return Cost(0.0)
    cycles = _CYCLES[engine](record, chip)
    ghz = chip.ghz(engine)
    return Cost(cycles / ghz, chip.result_cycles(engine) / ghz)


def matmul_flops(record: Record) -> int:
    """Multiplications and additions of a matrix multiplication; 0 of what only moves elements, and of all else."""
    detail = record.detail
    if record.engine != "tensor" or not detail or "k" not in detail or _is_transpose(record):
        return 0
    return 2 * detail["k"] * detail["m"] * detail["n"]


def matmul_ideal_ns(record: Record, chip: Chip) -> float:
    """How long a multiplication takes where all of the array works, at the rate for the type of the inputs.

    For inputs of 32 bits that is the rate of 16 bits, as in Neuron's profiler.
    """
    flops = matmul_flops(record)
    if not flops:
        return 0.0
    dtypes = [operand.dtype for operand in record.reads[:2]]
    speedup = 1
    if all(dtype.is_packed for dtype in dtypes):
        speedup = chip.mx_matmul_speedup
    elif all(dtype.itemsize == 1 for dtype in dtypes):
        speedup = chip.float8_matmul_speedup
    return flops / (chip.matmul_flops_per_ns * speedup)


# The Tensor Engine


def _tensor_cycles(record: Record, chip: Chip) -> float:
    stationary = record.reads[0] if record.reads else record.writes[0]
    if record.op == "nc_transpose":
        # [isa] nc_transpose: the identity that moves has as many columns as the data has partitions.
        rows, columns = stationary.shape[0], _free_size(stationary)
        cycles = max(rows, min(chip.matmul_min_cycles, columns))
        return cycles * (chip.float32_transpose_passes if stationary.dtype.itemsize == 4 else 1)
    detail = record.detail or {}
    columns = detail.get("m", _free_size(stationary))
    moving = detail.get("n", _free_size(record.writes[0]))
    cycles = max(min(chip.matmul_min_cycles, columns), moving)
    if any(operand.dtype == "float32" for operand in record.reads[:2]):
        cycles *= chip.float32_transpose_passes if _is_transpose(record) else chip.float32_matmul_passes
    return cycles * _share_of_array(detail.get("tile_size"), chip)


def _is_transpose(record: Record) -> bool:
    return record.op == "nc_transpose" or bool((record.detail or {}).get("transpose"))


def _share_of_array(tile_size: tuple[int, int] | None, chip: Chip) -> float:
    """[isa] nc_matmul: tiles of the array work at the same time. That all of them do is an assumption."""
    if not tile_size:
        return 1.0
    rows, columns = tile_size
    return (rows / chip.array_rows) * (columns / chip.array_columns)


# Engines that stream


def _vector_cycles(record: Record, chip: Chip) -> float:
    elements = _streamed(record)
    if record.op in _SLOWER:
        cycles = elements * _SLOWER[record.op]
    elif record.op in _FASTER and chip.generation >= 4:
        cycles = elements / _FASTER[record.op]
    else:
        cycles = elements * _streams(record, elements) / _vector_speedup(record, chip)
    return max(chip.min_cycles, cycles * _stride_penalty(record, chip))


def _scalar_cycles(record: Record, chip: Chip) -> float:
    speedup = 1
    if record.op in _COPIES and _are_fast(_full_operands(record), chip):
        speedup = chip.scalar_copy_speedup
    cycles = max(chip.min_cycles, _streamed(record) / speedup * _stride_penalty(record, chip))
    reads_accumulator = record.op in _READS_ACCUMULATOR or (record.op == "activation" and len(record.writes) > 1)
    return cycles + (chip.read_accumulator_cycles if reads_accumulator else 0)


def _gpsimd_cycles(record: Record, chip: Chip) -> float:
    """[isa] iota, affine_select. That others take as long per element is an assumption, topk's page apart."""
    if record.op == "topk" and record.detail and "n" in record.detail:
        return chip.gpsimd_start_cycles + 4 * record.detail["n"] + _free_size(record.writes[0])
    return chip.gpsimd_start_cycles + _streamed(record)


_CYCLES = {"tensor": _tensor_cycles, "vector": _vector_cycles, "scalar": _scalar_cycles, "gpsimd": _gpsimd_cycles}


def _streamed(record: Record) -> int:
    """Elements per partition of the largest operand."""
    return max((_free_size(operand) for operand in (*record.writes, *record.reads)), default=1)


def _full_operands(record: Record) -> list[Operand]:
    """Tiles, without the vectors of one number per partition."""
    elements = _streamed(record)
    return [operand for operand in (*record.writes, *record.reads) if _free_size(operand) == elements]


def _streams(record: Record, elements: int) -> int:
    """[isa] tensor_tensor, tensor_copy_predicated: two tiles in SBUF share one port, else they are read together.

    16-bit floats are read together as well, by what [v3] and [isa] list. Tiles of one element count as numbers.
    """
    tiles = [operand for operand in record.reads if _free_size(operand) == elements]
    if len(tiles) < 2 or elements == 1 or any(tile.region.space == "psum" for tile in tiles):
        return 1
    if record.op in _PAIRS and all(operand.dtype in _SIXTEEN_BITS for operand in (*record.writes, *tiles)):
        return 1
    return 2


def _vector_speedup(record: Record, chip: Chip) -> int:
    """[v3] "Vector Engine Performance Mode": of copies and tensor_scalar, by type, memory and contiguity."""
    if record.op not in _COPIES:
        return 1
    operands = _full_operands(record)
    in_sbuf = all(operand.region.space == "sbuf" for operand in operands)
    is_contiguous = all(_is_contiguous(operand) for operand in operands)
    if not _are_fast(operands, chip):
        return chip.vector_copy_speedup_of_others if in_sbuf and is_contiguous else 1
    if in_sbuf and is_contiguous:
        return chip.vector_copy_speedup
    in_psum = [operand for operand in operands if operand.region.space == "psum"]
    return chip.vector_copy_speedup_in_part if in_sbuf or (is_contiguous and len(in_psum) < 2) else 1


def _are_fast(operands: list[Operand], chip: Chip) -> bool:
    return all(operand.dtype.itemsize in chip.fast_itemsizes and operand.dtype.is_float for operand in operands)


def _is_contiguous(operand: Operand) -> bool:
    return operand.contiguous_bytes > operand.dtype.itemsize or _free_size(operand) == 1


def _stride_penalty(record: Record, chip: Chip) -> int:
    """[v2] "Access pattern"."""
    return 2 if any(_inner_stride(f) > chip.slow_stride_bytes for f in (*record.written, *record.read)) else 1


def _inner_stride(footprint: Footprint) -> int:
    """Bytes between neighbours of the innermost dimension that has any."""
    if footprint.pitch:
        for size, stride in zip(footprint.shape[:0:-1], footprint.strides[:0:-1], strict=True):
            if size > 1:
                return abs(stride)
    return 0


def _free_size(operand: Operand) -> int:
    return math.prod(operand.shape[1:])


# DMA


def dma_bytes(record: Record) -> int:
    """What a DMA writes; what it only reads is no larger."""
    return sum(_nbytes(operand) for operand in record.writes)


def _nbytes(operand: Operand) -> int:
    return math.prod(operand.shape) * operand.dtype.itemsize


def _dma_cost(record: Record, chip: Chip) -> Cost:
    if not record.writes or not record.reads:
        return Cost(0.0, start_ns=chip.dma_start_ns)
    nbytes = max(_nbytes(operand) for operand in (*record.writes, *record.reads))
    if record.op == "dma_transpose":
        return _transpose_cost(record, chip, nbytes)
    piece = min(_piece_bytes(operand) for operand in (*record.writes, *record.reads))
    engines = _dma_engines(record, chip)
    busy = _moving_ns(nbytes, piece, engines, chip)
    if record.op == "dma_compute":
        busy /= chip.dma_compute_share
    return _transfer(busy, engines, chip)


def _moving_ns(nbytes: int, piece: int, engines: int, chip: Chip) -> float:
    return (nbytes / chip.dma_bytes_per_ns + math.ceil(nbytes / piece) * chip.dma_piece_ns) / engines


def _transfer(busy_ns: float, engines: int, chip: Chip) -> Cost:
    return Cost(busy_ns, start_ns=chip.dma_start_ns, engines=engines, descriptors_ns=chip.dma_descriptors_ns)


def _piece_bytes(operand: Operand) -> int:
    """What lies together: the descriptors of a DMA address one such piece each ([v2], "DMA buffer").

    In HBM a piece may be as large as the tensor: then it is the other side that cuts it, or the number of engines.
    """
    return max(1, operand.contiguous_bytes)


def _dma_engines(record: Record, chip: Chip) -> int:
    """[dma]: each engine moves eight partitions. Between tensors in HBM all of them work, which is an assumption."""
    partitions = [
        operand.shape[0] for operand in (*record.writes, *record.reads) if operand.region.space in ("sbuf", "psum")
    ]
    if not partitions:
        return chip.dma_engines
    return min(chip.dma_engines, max(1, -(-max(partitions) // PIECES_PER_ENGINE)))


def _transpose_cost(record: Record, chip: Chip, nbytes: int) -> Cost:
    from_sbuf = record.reads[0].region.space == "sbuf"
    share = chip.dma_transpose_from_sbuf if from_sbuf else chip.dma_transpose_from_hbm
    itemsize = record.writes[0].dtype.itemsize
    engines = chip.dma_engines
    if share is None or itemsize not in (2, 4):
        busy = _moving_ns(nbytes, itemsize, engines, chip)
    else:
        busy = nbytes / engines / (chip.dma_bytes_per_ns * share)
    return _transfer(busy, engines, chip)
