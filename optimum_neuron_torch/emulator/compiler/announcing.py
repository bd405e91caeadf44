"""One line per graph, compiled or loaded: what, how large, how long, by whom."""

from __future__ import annotations

from optimum_neuron_torch.emulator import logs
from optimum_neuron_torch.emulator.compiler.metrics import PHASES, GraphRecord


def announce(record: GraphRecord) -> None:
    """Log a finished graph at INFO."""
    logs.logger().info("%s", compilation_line(record))


def compilation_line(record: GraphRecord) -> str:
    """`mini, encode batch 1: loaded mini_0_inference_0 from the cache, 210 nodes, 0.31 s (...), executor aten`."""
    seconds = {phase: getattr(record, f"torch_neuronx_{phase}_us") / 1e6 for phase in PHASES}
    phases = ", ".join(f"{name.removeprefix('fx_')} {value:.2f}" for name, value in seconds.items() if value >= 0.005)
    served = record.bucket or record.inputs or "no inputs"
    what = f"loaded {record.graph_name} from the cache" if record.cached else f"compiled {record.graph_name}"
    lowering = "" if record.lowering == "checked" else f", lowering {record.lowering}"
    return (
        f"{record.model_name}, {served}: {what}, {record.graph_node_count} nodes, {sum(seconds.values()):.2f} s"
        f"{f' ({phases})' if phases else ''}, executor {record.executor}{lowering}"
    )


def announce_program(record: GraphRecord, seconds: float) -> None:
    """Log that a graph that was interpreted runs its compiled program from now on, at INFO."""
    logs.logger().info(
        "%s: %s runs its compiled program, executor %s (compiled in %.2f s)",
        record.model_name,
        record.graph_name,
        record.executor,
        seconds,
    )


def announce_recompile(where: str, explanation: str, reason: str) -> None:
    """Log why a graph is compiled again, at INFO; with TORCH_LOGS=neuron_recompiles, in Dynamo's words too."""
    if logs.is_wanted(logs.RECOMPILES):
        logs.emit(logs.RECOMPILES, lambda: f"Recompiling {where}: {explanation}\n{reason}")
    else:
        logs.logger().info("Recompiling %s: %s", where, explanation)
