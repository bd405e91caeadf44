"""Many processes on one compile cache: each graph is compiled once, and killing processes leaves a usable cache.

    python benchmarks/shared_cache.py [--processes 8] [--kills 100] [--executor aten] [--seed 0]

First all processes start at once on an empty cache; each graph has to be compiled by one of them and loaded by the
others. Then processes are killed (SIGKILL, with their compilers) at random times while they fill a cache, every second
time an empty one; after each kill a fresh process has to get right results, and one more has to compile nothing.
Processes are forked from one that has imported everything, so that a kill hits the cache and not an import.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch

import optimum_neuron_torch as ont


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--executor", choices=["aten", "inductor"], default="aten")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ["NEURON_EMULATOR_EXECUTOR"] = arguments.executor
    os.environ.setdefault("NEURON_EMULATOR_LOWERING", "off")
    with tempfile.TemporaryDirectory(prefix="shared-cache-") as folder:
        import_all()
        together = run_together(Path(folder), arguments.processes)
        killed = kill_at_random(Path(folder), arguments.kills, random.Random(arguments.seed))
    print(json.dumps({"executor": arguments.executor, "together": together, "killed": killed}, indent=2))
    return 0 if together["is_right"] and killed["is_right"] else 1


def import_all() -> None:
    """What the work imports, on the CPU: a process that has used the device cannot be forked."""
    import optimum_neuron_torch.emulator.compiler.backend  # noqa: F401

    ont.prepare  # noqa: B018 (lazy)
    torch.compile(torch.nn.Softmax(-1), backend="aot_eager")(torch.ones(2))
    torch._dynamo.reset()


# ---- what each process does -----------------------------------------------------------------------------------------


def work() -> dict:
    """Two graphs of a prepared module and one of a torch.compile, compared with the CPU."""
    told: list[str] = []
    warnings.showwarning = lambda message, *rest: told.append(str(message))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    inputs = [torch.randn(rows, 8) for rows in (1, 4)]
    with torch.no_grad():
        expected = [module(x) for x in inputs] + [torch.nn.functional.softmax(inputs[0], -1)]
        compiled = torch.compile(torch.nn.Softmax(-1), backend="neuron", dynamic=False)
        prepared = ont.prepare(module.to("neuron"), ont.NeuronConfig(verify=False))
        found = [prepared(x.to("neuron")) for x in inputs] + [compiled(inputs[0].to("neuron"))]
    difference = max((a.cpu() - b).abs().max().item() for a, b in zip(found, expected, strict=True))
    report = ont.report()
    return {"difference": difference, "graphs": report.graphs, "cached": report.cached, "warnings": told}


class Child:
    """`work()` in a forked process of its own group, on a cache; its result comes through a file."""

    def __init__(self, cache: Path) -> None:
        handle, name = tempfile.mkstemp(suffix=".json")
        os.close(handle)
        self.file = Path(name)
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.environ["OPTIMUM_NEURON_CACHE"] = str(cache)
            try:
                self.file.write_text(json.dumps(work()))
            except BaseException:
                self.file.write_text(json.dumps({"error": traceback.format_exc(limit=-3)}))
            os._exit(0)

    def result(self) -> dict:
        os.waitpid(self.pid, 0)
        text = self.file.read_text()
        self.file.unlink()
        return json.loads(text) if text else {"error": "it ended without a result"}

    def kill(self) -> None:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(self.pid, signal.SIGKILL)  # before it had its group
        os.waitpid(self.pid, 0)
        self.file.unlink()


def is_right(result: dict) -> bool:
    return "error" not in result and result["difference"] < 1e-5


# ---- the two experiments --------------------------------------------------------------------------------------------


def run_together(folder: Path, count: int) -> dict:
    """All at once on an empty cache."""
    cache = folder / "together"
    cache.mkdir(mode=0o700)
    start = time.perf_counter()
    children = [Child(cache) for _ in range(count)]
    results = [child.result() for child in children]
    graphs, cached = (sum(result.get(key, 0) for result in results) for key in ("graphs", "cached"))
    return {
        "processes": count,
        "graphs": graphs,
        "cached": cached,
        "warnings": sum(len(result.get("warnings", ())) for result in results),
        "errors": [result["error"] for result in results if "error" in result],
        "seconds": round(time.perf_counter() - start, 1),
        "is_right": all(map(is_right, results)) and graphs == 3 and cached == 3 * (count - 1),
    }


def kill_at_random(folder: Path, count: int, chance: random.Random) -> dict:
    """`count` times: kill a process at a random time, then see what a fresh one makes of the cache."""
    cache = folder / "killed"
    outcome = {"kills": count, "into": {"an empty cache": 0, "a used cache": 0}, "wrong": [], "warnings": []}
    cache.mkdir(mode=0o700)
    start = time.perf_counter()
    Child(cache).result()
    length = 1.5 * (time.perf_counter() - start)
    for turn in range(count):
        is_empty = turn % 2 == 0
        if is_empty:
            shutil.rmtree(cache)
            cache.mkdir(mode=0o700)
        else:  # something is missing, so that the next process has something to write
            victims = [path for path in cache.rglob("*") if path.is_file() and path.suffix not in (".lock", ".json")]
            for path in chance.sample(victims, k=min(len(victims), 2)):
                path.unlink()
        outcome["into"]["an empty cache" if is_empty else "a used cache"] += 1
        victim = Child(cache)
        time.sleep(chance.uniform(0, length))
        victim.kill()
        fresh, last = Child(cache).result(), Child(cache).result()
        outcome["warnings"] += fresh.get("warnings", [])
        if not (is_right(fresh) and is_right(last) and last["graphs"] == 0 and last["cached"] == 3):
            outcome["wrong"].append({"turn": turn, "fresh": fresh, "last": last})
        print(f"\r{turn + 1} of {count} kills", end="", file=sys.stderr, flush=True)
    outcome["is_right"] = not outcome["wrong"]
    return outcome


if __name__ == "__main__":
    sys.exit(main())
