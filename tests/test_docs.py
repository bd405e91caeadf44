"""The documentation agrees with the code: its links lead somewhere, its code parses, the names it uses exist."""

import ast
import re
from pathlib import Path

import pytest

import optimum_neuron_torch
from tests.sources import PACKAGE, ROOT


PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
VARIABLE = re.compile(r"\b(?:NEURON_EMULATOR\w*|OPTIMUM_NEURON_\w+)")


def _page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_code_parses(page):
    for block in _python_blocks(page):
        ast.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=_page_id)
def test_code_uses_public_names(page):
    names = {
        node.attr
        for block in _python_blocks(page)
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("ont", PACKAGE)
    }
    assert names <= set(optimum_neuron_torch.__all__)


def test_api_page_names_all_public_names():
    text = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert [name for name in optimum_neuron_torch.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_environment_page_names_all_variables():
    documented = set(VARIABLE.findall((ROOT / "docs" / "reference" / "environment.md").read_text()))
    files = [ROOT / "setup.py", *(ROOT / PACKAGE).rglob("*.py"), *(ROOT / PACKAGE).rglob("*.cpp")]
    used = {name for file in files for name in VARIABLE.findall(file.read_text())}
    assert {name for name in used if not name.endswith("_")} == {n for n in documented if not n.endswith("_")}
