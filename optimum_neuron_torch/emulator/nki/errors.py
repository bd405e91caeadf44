"""What the simulator raises where a kernel does what the chip, or NKI, does not allow."""

import linecache
import sys
from pathlib import Path
from types import FrameType


SIMULATOR_DIR = str(Path(__file__).resolve().parent)


class NkiError(Exception):
    """A kernel that breaks a rule of NKI or a limit of the chip. `nki.isa.NkiValidationError` is this class.

    Attributes:
        message: what was given, the limit, and the way out.
        op: the instruction, e.g. "nisa.nc_matmul"; None where none was issued.
        operands: the instruction's tensors, e.g. ["dst: psum float32[128, 512]"].
        location: "file.py:12" of the kernel's line; None outside a kernel.
        source: the text of that line.
    """

    def __init__(self, message: str, *, op: str | None = None) -> None:
        super().__init__(message)
        self.message, self.op, self.operands = message, op, []
        self.location, self.source = None, ""
        frame = kernel_frame()
        if frame is not None:
            self.place(frame.f_code.co_filename, frame.f_lineno)

    def place(self, file: str, line: int) -> "NkiError":
        """Sets the kernel's line, where it is another than the one that runs."""
        self.location, self.source = f"{file}:{line}", linecache.getline(file, line).strip()
        return self

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.message}" if self.op else self.message]
        if self.operands:
            lines.append("  operands: " + "; ".join(self.operands))
        if self.location:
            lines.append(f"  at {self.location}" + (f": {self.source}" if self.source else ""))
        return "\n".join(lines)


class OldNamespaceError(NkiError, ImportError):
    """A kernel imports `neuronxcc.nki`."""


class NkiWarning(UserWarning):
    """What a kernel does that the chip may punish, though it is allowed."""


def kernel_frame() -> FrameType | None:
    """The innermost frame outside the simulator: the kernel's line, where one is running."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((SIMULATOR_DIR, "<frozen ")):
        frame = frame.f_back
    return frame


def location_of(frame: FrameType | None) -> str | None:
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
