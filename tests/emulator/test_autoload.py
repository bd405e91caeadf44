"""What `import torch` does: the emulated device is there, stays out, or says what is wrong. Each case is a process."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from optimum_neuron_torch.emulator.device import presence


REPOSITORY = Path(__file__).resolve().parents[2]

# Prints what a fresh process sees after `import torch`, as JSON on the last line.
PROBE = """
import json, sys, time, warnings
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    {after}
answer = {{
    "backend": torch._C._get_privateuse1_backend_name(),
    "available": hasattr(torch, "neuron") and torch.neuron.is_available(),
    "accelerator": str(torch.accelerator.current_accelerator()),
    "modules": sorted({{"transformers", "diffusers", "accelerate", "jax", "torch_mlir"}} & set(sys.modules)),
    "warnings": [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)],
}}
try:
    torch.zeros(1, device="neuron")
    answer["error"] = ""
except Exception as error:
    answer["error"] = str(error)
print(json.dumps(answer))
"""


def run(code: str, *, path: Path | None = None, **environment: str) -> str:
    paths = [str(p) for p in (path, REPOSITORY) if p is not None]
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip().splitlines()[-1]


def probe(before: str = "", after: str = "pass", **options: object) -> dict:
    return json.loads(run(PROBE.format(before=before, after=after), **options))


# Loads the emulator by hand, after the probe has changed what it looks at.
LATE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
AUTOLOAD = "import optimum_neuron_torch.emulator as e; e.autoload()"


def make_distribution(directory: Path, name: str, entry_points: str, module: str = "") -> Path:
    """A stand-in for an installed distribution: its metadata, and perhaps a module."""
    info = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
    if module:
        (directory / f"{module}.py").write_text("def autoload():\n    pass\n")
    return directory


def test_import_torch_gives_the_device():
    seen = probe()
    assert seen["error"] == ""
    assert seen["backend"] == "neuron" and seen["available"] and seen["accelerator"] == "neuron"
    assert seen["modules"] == [] and seen["warnings"] == []


@pytest.mark.parametrize("name", ["aaa-native", "zzz-native"])
def test_steps_aside_for_a_native_backend(tmp_path, name):
    """Whether it sorts before or after ours."""
    make_distribution(tmp_path, name, "[torch.backends]\ntorch_neuronx = fake_native:autoload\n", module="fake_native")
    seen = probe(path=tmp_path)
    assert seen["backend"] == "privateuseone" and not seen["available"]


@pytest.mark.parametrize(
    ("name", "entry_points", "native"),
    [
        ("torch-neuronx", "[torch_dynamo_backends]\nneuron = absent.module:backend\n", "torch-neuronx"),
        ("torch_neuronx", "[torch.backends]\nsomething = absent.module:backend\n", "torch-neuronx"),
        ("zzz", "[torch.backends]\ntorch_neuronx = absent.module:backend\n", "zzz"),
        ("other-compiler", "[torch_dynamo_backends]\nother = absent.module:backend\n", None),
        # The placeholder of the native package's name on the package index.
        ("torch-neuronx", "[console_scripts]\nx = y:z\n", None),
    ],
)
def test_native_distribution_is_known_by_its_metadata(tmp_path, monkeypatch, name, entry_points, native):
    make_distribution(tmp_path, name, entry_points)
    monkeypatch.syspath_prepend(tmp_path)
    presence._foreign_entry_points.cache_clear()
    try:
        assert presence.native_distribution() == native
    finally:
        presence._foreign_entry_points.cache_clear()


def test_steps_aside_for_another_accelerator():
    seen = probe(after=f"torch.cuda.is_available = lambda: True; {AUTOLOAD}", **LATE)
    assert seen["backend"] == "privateuseone"


def test_switch_overrides_another_accelerator():
    seen = probe(after=f"torch.cuda.device_count = lambda: 1; {AUTOLOAD}", NEURON_EMULATOR="1", **LATE)
    assert seen["backend"] == "neuron" and seen["error"] == ""


def test_switched_off():
    seen = probe(NEURON_EMULATOR="0")
    assert seen["backend"] == "privateuseone" and not seen["available"]


CHANGE_EXTENSION = "from optimum_neuron_torch.emulator.device import extension; from pathlib import Path; "


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("extension.LIBRARY = Path('absent/_C.so')", "not built"),
        ("torch.__version__ = '99.0.0'", "this is torch 99.0.0"),
    ],
    ids=["missing", "other torch"],
)
def test_broken_extension_is_told_at_first_use(change, says):
    """The name parses, is_available() is False, seeding works, and the error has the command that repairs it."""
    seen = probe(after=f"{CHANGE_EXTENSION}{change}; {AUTOLOAD}; torch.manual_seed(0)", **LATE)
    assert seen["backend"] == "neuron" and not seen["available"]
    assert says in seen["error"] and "python -m optimum_neuron_torch.emulator.device.build" in seen["error"]
    assert len(seen["warnings"]) == 1 and says in seen["warnings"][0]


def test_wrong_environment_is_told_at_first_use():
    assert "unknown strict kind speed" in probe(NEURON_EMULATOR_STRICT="speed")["error"]


@pytest.mark.parametrize("warnings", ["default", "error::RuntimeWarning"])
def test_never_raises(warnings):
    code = f"""
        import torch
        from optimum_neuron_torch.emulator.device import presence
        presence.decide = None
        {AUTOLOAD}
        print(torch._C._get_privateuse1_backend_name())
    """
    assert run(code, PYTHONWARNINGS=warnings, **LATE) == "privateuseone"


def test_one_info_line_once_and_at_little_cost():
    """Under 50 ms where `import torch` takes 1.3 s; as a share of it, since the machine has other work."""
    code = """
        import importlib.metadata, logging, time
        start = time.process_time()
        import torch
        whole = time.process_time() - start
        import optimum_neuron_torch_autoload as entry_point
        importlib.metadata.entry_points()  # torch's own autoload has done this
        lines = []
        handler = logging.Handler(); handler.emit = lambda record: lines.append(record.getMessage())
        logger = logging.getLogger("optimum_neuron_torch.emulator")
        logger.addHandler(handler); logger.setLevel("INFO")
        start = time.process_time()
        entry_point.autoload()
        cost = time.process_time() - start
        entry_point.autoload()
        print(len(lines), "current accelerator" in lines[0], cost / whole)
    """
    answers = [run(code, **LATE).split() for _ in range(3)]
    assert all(answer[:2] == ["1", "True"] for answer in answers)
    assert min(float(answer[2]) for answer in answers) < 0.05 / 1.3


def test_fork_before_and_after_first_use():
    code = """
        import os, torch
        def in_child():
            pid = os.fork()
            if pid == 0:
                try:
                    torch.zeros(2, device="neuron") + 1
                    os._exit(0)
                except RuntimeError as error:
                    os._exit(1 if "spawn" in str(error) else 2)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        torch.manual_seed(0)
        before = in_child()
        torch.zeros(2, device="neuron")
        print(before, in_child())
    """
    assert run(code) == "0 1"
