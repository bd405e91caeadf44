"""The tables of PyTorch's own tests that the device is checked against. Importing this imports none of them: they take
seconds to load, which the collection of tests would pay for."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

from tests.conformance.outcome import Outcome


@dataclass(frozen=True)
class Table:
    title: str
    source: str
    explanation: str
    columns: tuple[str, ...]
    module: str

    def entries(self) -> Iterable[str]:
        return importlib.import_module(self.module).entries()

    def check(self, entry: str, column: str) -> Outcome:
        return importlib.import_module(self.module).check(entry, column)


TABLES = {
    "operators": Table(
        title="Operators",
        source="torch.testing._internal.common_methods_invocations.op_db",
        explanation="Every sample as a function; the first 32 where the entry has them as a method, in place, with "
        "non-contiguous inputs, and with `out=` of the right size, empty, and transposed. *gradient*: first-order "
        "gradients at float32. *errors*: calls that the table says are wrong.",
        columns=("float32", "bfloat16", "int64", "bool", "complex64", "gradient", "errors"),
        module="tests.conformance.operators",
    ),
    "modules": Table(
        title="Modules",
        source="torch.testing._internal.common_modules.module_db",
        explanation="At float32: results, gradients of inputs and parameters, and the buffers afterwards, in training "
        "and in evaluation. *pickle*: pickled, copied, moved to the CPU and back.",
        columns=("train", "eval", "pickle"),
        module="tests.conformance.modules",
    ),
    "optimizers": Table(
        title="Optimizers",
        source="torch.testing._internal.common_optimizers.optim_db",
        explanation="Parameters and state after four steps with each of the entry's settings. *capturable* is "
        "compared with the CPU's other implementation, within 1e-5: the CPU has none. *errors*: settings that the "
        "table says are wrong.",
        columns=("forloop", "foreach", "fused", "differentiable", "capturable", "errors"),
        module="tests.conformance.optimizers",
    ),
}
