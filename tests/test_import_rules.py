"""Who may import whom, checked from the sources, so that the real device can take the emulator's place.

Each rule is a function from a parsed file to the lines that break it. Every rule is also run over small snippets that
break it: a rule that cannot fail says nothing.
"""

import ast
import subprocess
import sys

import pytest

from tests.sources import PACKAGE, ROOT, Import, SourceFile, called_name, leading_text, sources


EMULATOR = f"{PACKAGE}.emulator"

# What only the emulator may import: a native host has none of these.
EMULATOR_ONLY = (EMULATOR, "jax", "jaxlib", "torch_mlir")

# Rooms by height: each may import itself and the rooms below. Rooms of one height are apart, but for two floors: the
# ground, and the integrations with the verbs of the public API, which are written in terms of each other.
GROUND = 0
INTEGRATIONS = 3
OPEN_FLOORS = (GROUND, INTEGRATIONS)
HEIGHTS = {
    "config": GROUND,
    "files": GROUND,
    "report": GROUND,
    "runtime": GROUND,
    "tables": GROUND,
    "buckets": 1,
    "generation": 2,
    "nki": 2,
    "integrations": INTEGRATIONS,
    "api": INTEGRATIONS,
    "wiring": 4,
}


# ---- the rules ----


def emulator_imports(file: SourceFile) -> list[int]:
    """Lines outside the emulator that import it, or what only it may import."""
    if file.module == EMULATOR or file.module.startswith(f"{EMULATOR}."):
        return []
    return [found.line for found in file.imports() if found.within(*EMULATOR_ONLY)]


def plugin_imports(file: SourceFile) -> list[int]:
    """Lines of the emulator that import something of the plugin."""
    if not (file.module == EMULATOR or file.module.startswith(f"{EMULATOR}.")):
        return []
    return [found.line for found in file.imports() if found.within(PACKAGE) and not found.within(EMULATOR)]


def upward_imports(file: SourceFile) -> list[int]:
    """Lines that import a room above, or beside, the file's own."""
    if file.room in ("", "emulator", "cli"):
        return []
    height = HEIGHTS[file.room]

    def allowed(found: Import) -> bool:
        room = found.target.removeprefix(PACKAGE).strip(".").split(".")[0]
        return room == file.room or HEIGHTS.get(room, height) < height or HEIGHTS.get(room) == height in OPEN_FLOORS

    return [found.line for found in file.imports() if found.within(PACKAGE) and not allowed(found)]


def private_imports(file: SourceFile) -> list[int]:
    """Lines of the command line that import more of the plugin than its public names, runtime.py and what stands
    behind `check`.
    """
    if file.room != "cli":
        return []
    allowed = (f"{PACKAGE}.cli", f"{PACKAGE}.runtime", f"{PACKAGE}.integrations.checking")
    return [
        found.line
        for found in file.imports()
        if found.within(PACKAGE) and found.target != PACKAGE and not found.within(*allowed)
    ]


def device_uses(file: SourceFile) -> list[int]:
    """Lines outside runtime.py and the emulator that use torch.neuron or torch_neuronx."""
    if file.room in ("runtime", "emulator"):
        return []
    imports = {found.line for found in file.imports() if found.within("torch_neuronx", "torch.neuron")}
    return sorted(imports | {node.lineno for node in ast.walk(file.tree) if _names_device_module(node)})


def _names_device_module(node: ast.AST) -> bool:
    """Whether this is `torch.neuron`, `getattr(torch, "neuron")` or `get_device_module("neuron")`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "neuron" and isinstance(node.value, ast.Name) and node.value.id == "torch"
    if not isinstance(node, ast.Call) or called_name(node) not in ("getattr", "get_device_module"):
        return False
    owner_is_torch = called_name(node) == "get_device_module" or getattr(node.args[0], "id", None) == "torch"
    return owner_is_torch and any(leading_text(argument).startswith("neuron") for argument in node.args)


RULES = (emulator_imports, plugin_imports, upward_imports, private_imports, device_uses)


# ---- the rules hold ----


PACKAGE_SOURCES = sources(PACKAGE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_package_keeps_rule(rule):
    broken = [f"{path.relative_to(ROOT)}:{line}" for path in PACKAGE_SOURCES for line in rule(SourceFile.read(path))]
    assert not broken, f"{rule.__doc__} Found: {', '.join(broken)}"


def test_examples_run_on_the_native_device():
    broken = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources("examples")
        for line in emulator_imports(SourceFile.read(path))
    ]
    assert not broken


def test_every_room_has_its_height():
    rooms = {SourceFile.read(path).room for path in PACKAGE_SOURCES} - {"", "emulator", "cli"}
    assert rooms <= HEIGHTS.keys(), "give a new room its height in HEIGHTS"


def test_no_module_is_called_utils():
    """The one exception is the native package's own name, which its stand-in must have."""
    facade = ROOT / PACKAGE / "emulator" / "facade"
    paths = sources(PACKAGE, "tests", "model_tests", "examples", "benchmarks")
    assert not [path for path in paths if "utils" in (path.stem, *path.parts) and facade not in path.parents]


def test_namespace_has_no_init():
    """`optimum` belongs to several distributions: an `__init__.py` would hide the others'."""
    assert not list((ROOT / "optimum").rglob("__init__.py"))


def _loaded_after(statement: str, *modules: str) -> list[str]:
    """Which of `modules` a new interpreter has loaded after `statement`."""
    program = f"import sys; {statement}; print(*sorted(set(sys.modules) & set({modules!r})))"
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("statement", ["import torch", f"import {PACKAGE}", "import optimum.commands.register.neuron"])
def test_import_is_light(statement):
    heavy = ("transformers", "diffusers", "accelerate", "jax", "jaxlib", "torch_mlir", "torch._dynamo")
    assert _loaded_after(statement, *heavy) == []


# ---- the rules can fail ----


def _snippet(source: str, module: str, is_package: bool = False) -> SourceFile:
    return SourceFile(f"{PACKAGE}.{module}".rstrip("."), ast.parse(source), is_package)


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (emulator_imports, "buckets.plan", "import jax.numpy as jnp"),
        (emulator_imports, "buckets.plan", "def f():\n    from torch_mlir import fx"),
        (emulator_imports, "report", "from .emulator.compiler import metrics"),
        (emulator_imports, "report", "from . import emulator"),
        (emulator_imports, "buckets.plan", "from ..emulator import device"),
        (emulator_imports, "runtime", f"importlib.import_module('{EMULATOR}.device')"),
        (emulator_imports, "", "importlib.import_module('.emulator', __name__)"),
        (emulator_imports, "", "importlib.import_module(f'.emulator.{name}', __name__)"),
        (plugin_imports, "emulator.wiring", "from .. import runtime"),
        (plugin_imports, "emulator.device.build", f"from {PACKAGE} import report"),
        (plugin_imports, "emulator.compiler.cache", f"import {PACKAGE}"),
        (upward_imports, "buckets.pad", "from ..integrations import transformers"),
        (upward_imports, "buckets.pad", "if TYPE_CHECKING:\n    from ..generation.cache import BucketCache"),
        (upward_imports, "nki.ops", "from ..generation.cache import BucketCache"),
        (upward_imports, "runtime", "from .buckets.plan import plan"),
        (upward_imports, "integrations.trainer", "from ..wiring import entries"),
        (upward_imports, "config", f"from {PACKAGE} import prepare"),
        (private_imports, "cli.plan", "from ..buckets.plan import plan"),
        (private_imports, "cli.plan", "from .. import report, runtime"),
        (device_uses, "report", "import torch_neuronx.metrics"),
        (device_uses, "report", "importlib.import_module(f'torch_neuronx{name}')"),
        (device_uses, "buckets.pad", "import torch\ntorch.neuron.synchronize()"),
        (device_uses, "buckets.pad", "from torch import neuron"),
        (device_uses, "buckets.pad", "getattr(torch, 'neuron')"),
        (device_uses, "buckets.pad", "torch.get_device_module('neuron')"),
    ],
)
def test_rule_finds(rule, module, source):
    assert rule(_snippet(source, module, is_package=module == ""))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("emulator.compiler.stablehlo", "import torch_mlir\nfrom ..device import host_aliases"),
        ("emulator.facade.torch_neuronx", "import torch\ntorch.neuron.synchronize()"),
        ("runtime", "import torch\ntorch.neuron.synchronize()\nimport torch_neuronx"),
        ("report", "from . import runtime\nfrom .tables import render"),
        ("buckets.plan", "from ..report import report\nfrom . import pad"),
        ("integrations.transformers", "from ..generation import cache\nfrom ..nki import masks\nimport transformers"),
        (
            "cli.env",
            f"import {PACKAGE} as ont\nfrom ..runtime import cache_dir\nfrom .. import runtime\nfrom . import cache",
        ),
        ("nki.ops", "tensor.device.type == 'neuron'\ngetattr(config, 'neuron', None)"),
    ],
)
def test_rules_allow(module, source):
    file = _snippet(source, module)
    assert {rule.__name__: rule(file) for rule in RULES} == {rule.__name__: [] for rule in RULES}
