"""The public API, and nothing else: each name is imported from its room when it is first used.

Importing this package registers hooks that prepare Transformers, Diffusers and Accelerate for the neuron device as
soon as they are imported (or at once, where they already are); it imports none of them itself. `unwire()` takes the
hooks back.
"""

import importlib
from typing import TYPE_CHECKING

# At once, not lazily: the submodule of the same name would otherwise take the function's place when it is first
# imported.
from .report import Report, report
from .wiring import unwire, wire


if TYPE_CHECKING:
    from .api import export_cache, import_cache, prepare, strict, unprepare, warmup
    from .buckets.planning.plan import Plan, plan
    from .config import Buckets, Growth, NeuronConfig
    from .integrations.pipelines import pipeline
    from .runtime import is_emulated

__version__ = "0.1.0.dev0"

_HOMES = {
    "Buckets": ".config",
    "Growth": ".config",
    "NeuronConfig": ".config",
    "Plan": ".buckets.planning.plan",
    "export_cache": ".api",
    "import_cache": ".api",
    "is_emulated": ".runtime",
    "pipeline": ".integrations.pipelines",
    "plan": ".buckets.planning.plan",
    "prepare": ".api",
    "strict": ".api",
    "unprepare": ".api",
    "warmup": ".api",
}

__all__ = sorted([*_HOMES, "Report", "nki", "report", "unwire", "wire"])


def __getattr__(name: str):
    if name == "nki":
        return importlib.import_module(".nki", __name__)
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


wire()
