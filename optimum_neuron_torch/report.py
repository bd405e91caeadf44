"""What was compiled, run eagerly, padded and refused: the ledger each prepared object keeps, and the report made from
it.
"""

import logging
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from . import runtime


logger = logging.getLogger(__name__)

_ledgers: "weakref.WeakSet[Ledger]" = weakref.WeakSet()
_names: Counter = Counter()
_names_lock = threading.Lock()


class StrictError(RuntimeError):
    """Something happened that the `strict` kinds of the configuration, or of the enclosing `strict()` block, do not
    allow.
    """


_strict_kinds: list[frozenset[str]] = []


@dataclass
class BucketUse:
    """How often one bucket of one function ran, and how many of its positions were real."""

    function: str
    bucket: dict[str, int]
    calls: int = 0
    real: int = 0
    padded: int = 0


@dataclass(frozen=True)
class Departure:
    """A call, or a whole object, that left the bucketed path: `kind` is a strict kind, `where` names it, `reason` says
    why.
    """

    kind: str
    where: str
    reason: str


class CountedCalls:
    """A compiled function that counts its calls, each of which takes `paths` of attention."""

    def __init__(self, function: Callable[..., Any], paths: Counter[str]) -> None:
        self.function, self.paths, self.calls = function, paths, 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args)


class Ledger:
    """The records of one prepared object. Thread safe."""

    def __init__(self, class_name: str, strict: tuple[str, ...] = ()) -> None:
        with _names_lock:
            _names[class_name] += 1
            count = _names[class_name]
        self.name = class_name if count == 1 else f"{class_name}-{count}"
        self.strict = frozenset(strict)
        self.buckets: dict[tuple, BucketUse] = {}
        self.departures: Counter[Departure] = Counter()
        # Paths of attention outside graphs; those in graphs follow from how often these are called.
        self.attention: Counter[str] = Counter()
        self._counted: list[CountedCalls] = []
        self._lock = threading.Lock()
        _ledgers.add(self)

    def used(self, function: str, bucket: dict[str, int], real: int, padded: int) -> None:
        """Count one call of a bucket: `real` of its `padded` positions (tokens, rows) carry data of the user."""
        key = (function, *bucket.items())
        with self._lock:
            use = self.buckets.setdefault(key, BucketUse(function, dict(bucket)))
            use.calls, use.real, use.padded = use.calls + 1, use.real + real, use.padded + padded

    def counting(self, compiled: CountedCalls) -> CountedCalls:
        """Enter a compiled function, whose calls are counted from its first one on; returns it."""
        with self._lock:
            self._counted.append(compiled)
        return compiled

    def attention_paths(self) -> Counter[str]:
        """How many calls of attention took each path, in graphs and outside."""
        paths = Counter(self.attention)
        for compiled in list(self._counted):
            for path, calls in compiled.paths.items():
                paths[path] += calls * compiled.calls
        return paths

    def depart(self, kind: str, where: str, reason: str, *, warn: bool = True) -> None:
        """Record that the bucketed path was left; warns once per reason, raises StrictError where `kind` is strict.

        `warn=False` is for facts of a model, which belong into the report and are no events.
        """
        departure = Departure(kind, where, reason)
        if kind in self.strict.union(*_strict_kinds):
            raise StrictError(f"strict {kind!r}: {self.name}, {where}: {reason}")
        with self._lock:
            self.departures[departure] += 1
            first = self.departures[departure] == 1
        if first and warn:
            warnings.warn(f"{self.name}, {where}: {reason}", stacklevel=3)


def push_strict(kinds: frozenset[str]) -> None:
    _strict_kinds.append(kinds)


def pop_strict(kinds: frozenset[str]) -> None:
    _strict_kinds.remove(kinds)


@dataclass
class Report:
    """A snapshot. Counts are of this process; times are in seconds, memory in bytes.

    `graphs` were compiled here, `cached` came from the persistent cache. `eager_signatures` and `copies` are the
    device's counters (None where it keeps none). `fallbacks` are the ops that ran, or on the device would run, on the
    CPU; `unknown_ops` those of which nothing public says where they run (None on a real device). `padded_share` is the
    share of the positions run that were padding. `attention` counts calls by path: of prepared models that attend by
    "nki" always, of PyTorch's own scaled_dot_product_attention where kernels run; of graphs that a user's own
    torch.compile made none, as their calls are not seen. `recompiles` are the graphs made although their function had
    one, each with what had changed; `graph_breaks` the source lines at which code under `torch.compile` left its
    graphs; `cpu_autocopies` the CPU tensors that entered compiled graphs.
    """

    name: str
    emulated: bool
    graphs: int
    cached: int
    eager_signatures: int | None
    copies: int | None
    buckets: list[BucketUse]
    padded_share: float
    fallbacks: list[str]
    attention: dict[str, int]
    departures: list[dict[str, Any]]
    times: dict[str, float]
    unknown_ops: list[str] | None = None
    lowering: dict[str, int] = field(default_factory=dict)
    graph_names: list[str] = field(default_factory=list)
    recompiles: list[dict[str, str]] = field(default_factory=list)
    graph_breaks: list[dict[str, Any]] = field(default_factory=list)
    cpu_autocopies: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that json can write."""
        return asdict(self)

    def __str__(self) -> str:
        from .tables import render_report

        return render_report(self)


def ledger_of(obj: Any) -> Ledger | None:
    return getattr(obj, "_neuron_ledger", None)


def report(obj: Any = None) -> Report:
    """What happened so far: of one prepared model or pipeline, or (None) of the whole process.

    Raises ValueError for an object that was not prepared.
    """
    if obj is None:
        return _make_report("all", list(_ledgers), runtime.graph_records())
    ledgers = _ledgers_below(obj)
    if not ledgers:
        raise ValueError(
            f"{type(obj).__name__} was not prepared: load it with device_map='neuron' or call prepare() on it"
        )
    names = {ledger.name for ledger in ledgers}
    records = [record for record in runtime.graph_records() if record.get("model_name") in names]
    name = ledgers[0].name if len(ledgers) == 1 else type(obj).__name__
    return _make_report(name, ledgers, records)


def _ledgers_below(obj: Any) -> list[Ledger]:
    """The ledger of a prepared object, or those of a pipeline's components and of a wrapper's inner model."""
    own = ledger_of(obj)
    if own is not None:
        return [own]
    parts = list(getattr(obj, "components", {}).values()) if isinstance(getattr(obj, "components", None), dict) else []
    parts += [part for part in (getattr(obj, "model", None), getattr(obj, "_orig_mod", None)) if part is not None]
    if hasattr(obj, "modules"):
        parts += [inner for inner in obj.modules() if inner is not obj]
    parts = {id(part): part for part in parts}.values()
    return [ledger for part in parts for ledger in [ledger_of(part)] if ledger is not None]


_TIMES = {
    "trace": "torch_neuronx_trace_us",
    "passes": "torch_neuronx_fx_passes_us",
    "lower": "torch_neuronx_lower_us",
    "compile": "torch_neuronx_compile_us",
    "load": "torch_neuronx_load_us",
}


def _make_report(name: str, ledgers: list[Ledger], records: list[dict[str, Any]]) -> Report:
    cached = [record for record in records if record.get("cached")]
    uses = sorted(
        (use for ledger in ledgers for use in list(ledger.buckets.values())),
        key=lambda use: (use.function, *use.bucket.values()),
    )
    padded = sum(use.padded for use in uses)
    departures: Counter[Departure] = Counter()
    attention: Counter[str] = Counter()
    for ledger in ledgers:
        departures.update(ledger.departures)
        attention.update(ledger.attention_paths())
    return Report(
        name=name,
        emulated=runtime.is_emulated(),
        graphs=len(records) - len(cached),
        cached=len(cached),
        eager_signatures=runtime.counter("eager_signatures"),
        copies=runtime.counter("copies"),
        buckets=uses,
        padded_share=1 - sum(use.real for use in uses) / padded if padded else 0.0,
        fallbacks=runtime.fallback_ops(),
        unknown_ops=runtime.unknown_ops(),
        attention=dict(attention),
        departures=[{**asdict(departure), "calls": calls} for departure, calls in departures.items()],
        times={key: sum(record.get(field) or 0 for record in records) / 1e6 for key, field in _TIMES.items()},
        lowering=dict(Counter(str(record.get("lowering", "unknown")) for record in records)),
        graph_names=[str(record.get("graph_name")) for record in records],
        recompiles=[
            {"graph": str(record.get("graph_name")), "reason": str(record["recompile_reason"])}
            for record in records
            if record.get("recompile_reason")
        ],
        graph_breaks=runtime.graph_breaks(),
        cpu_autocopies=runtime.counter("cpu_autocopies"),
    )
