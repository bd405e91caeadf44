"""What the pages on kernels show runs as it stands, and so does the example of a kernel of one's own."""

import os
import re
import subprocess
import sys

import pytest

from tests.sources import ROOT


def run(arguments, tmp_path):
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    said = subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert said.returncode == 0, said.stderr[-3000:]
    return said.stdout


@pytest.mark.parametrize("page", ["how-to/write-kernels.md", "how-to/simulate-kernels.md", "concepts/kernels.md"])
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    said = run(["page.py"], tmp_path)
    assert "estimate from documented clocks" in said


@pytest.mark.timeout(300)
def test_the_example_trains_and_compiles_a_model_with_its_kernel(tmp_path):
    said = run([str(ROOT / "examples" / "custom_kernel.py"), "--rows", "200", "--output", "."], tmp_path)
    assert "gradients as on the CPU, 4 kernels ran" in said
    assert "one graph: logits as on the CPU, 2 kernels ran in it" in said
    assert (tmp_path / "timeline.png").stat().st_size > 0
