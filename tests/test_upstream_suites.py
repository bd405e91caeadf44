"""The runner of Hugging Face's own suites, over a small checkout made for it: it tells each kind of outcome apart."""

from pathlib import Path

import pytest

from model_tests.upstream.__main__ import main
from model_tests.upstream.checkout import Checkout, CheckoutError
from model_tests.upstream.outcomes import Expectation, Status, read_expectations
from model_tests.upstream.run import Settings, run_suite
from model_tests.upstream.suites import select


CASES = """
import os
from pathlib import Path

import pytest

ON_DEVICE = os.environ["DIFFUSERS_TEST_DEVICE"] == "neuron"


class TestModel:
    @pytest.mark.parametrize("size", [1, 2])
    def test_passes(self, size):
        Path("written.txt").write_text("not into the checkout")
        assert os.environ.get("DIFFUSERS_TEST_DEVICE_SPEC", "") == ("device_spec.py" if ON_DEVICE else "")

    @pytest.mark.parametrize("size", [1, 2])
    def test_device_alone(self, size):
        assert not ON_DEVICE

    def test_both(self):
        raise RuntimeError("not the device's")

    def test_both_but_differently(self):
        raise RuntimeError("on the device") if ON_DEVICE else KeyError("on the CPU")

    def test_download(self):
        raise OSError("We couldn't connect to 'https://huggingface.co' to load the files")

    @pytest.fixture
    def teardown(self):
        yield
        raise RuntimeError("in the teardown")

    def test_teardown(self, teardown):
        assert not ON_DEVICE

    @pytest.mark.skip(reason="slow")
    def test_skipped(self):
        pass


def test_function():
    pass
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    tests = tmp_path / "checkout" / "tests"
    tests.mkdir(parents=True)
    (tests / "__init__.py").touch()
    (tests / "common.py").write_text("from diffusers import ModelMixin\n")
    (tests / "test_cases.py").write_text(CASES)
    (tests / "test_crash.py").write_text("import os\n\ndef test_crash():\n    os._exit(3)\n")
    return Checkout.read("diffusers", tests.parent)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings("neuron", tmp_path / "logs")


def test_outcomes_are_told_apart(checkout, settings):
    known = Expectation("diffusers", "*::test_device_alone[2]", "assert not True", "a reason")
    unlike = Expectation("diffusers", "*::test_device_alone[1]", "another error", "a reason")
    other = Expectation("transformers", "*", "", "another library's")
    (result,) = run_suite(checkout, ["tests/test_cases.py"], settings, [other, unlike, known])
    found = {outcome.test.removeprefix("tests/test_cases.py::"): outcome.status for outcome in result.outcomes}
    assert found == {
        "TestModel::test_passes[1]": Status.PASSED,
        "TestModel::test_passes[2]": Status.PASSED,
        "TestModel::test_device_alone[1]": Status.FAILED,
        "TestModel::test_device_alone[2]": Status.EXPECTED,
        "TestModel::test_both": Status.ON_CPU_TOO,
        "TestModel::test_both_but_differently": Status.FAILED,
        "TestModel::test_download": Status.HUB,
        "TestModel::test_teardown": Status.FAILED,
        "TestModel::test_skipped": Status.SKIPPED,
        "test_function": Status.PASSED,
    }
    assert result.is_failure
    assert not (checkout.path / "written.txt").exists()


def test_a_process_that_dies_is_a_failure(checkout, settings):
    (result,) = run_suite(checkout, ["tests/test_crash.py"], settings, [])
    assert [outcome.status for outcome in result.outcomes] == [Status.FAILED]
    assert "pytest ended with 3" in result.outcomes[0].message


def test_exit_code(checkout, settings, capsys):
    arguments = ["--diffusers", str(checkout.path), "--logs", str(settings.logs), "tests/test_cases.py", "--", "-k"]
    assert main([*arguments, "device_alone"]) == 1
    assert main([*arguments, "passes or both and not differently or download or skipped"]) == 0
    assert "tests/test_cases.py::TestModel::test_both" in capsys.readouterr().out


def test_folders_give_their_test_files(checkout):
    assert select(checkout, ["tests"]) == ["tests/test_cases.py", "tests/test_crash.py"]
    assert select(checkout, ["tests/test_missing.py"]) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a folder"),
        ({}, r"holds no folder tests/"),
        ({"tests/common.py": "from transformers import AutoModel\n"}, "do not import diffusers"),
    ],
)
def test_bad_checkouts_are_told(tmp_path, content, message, capsys):
    path = tmp_path / "other"
    for name, text in (content or {}).items():
        (path / name).parent.mkdir(parents=True)
        (path / name).write_text(text)
    if content is not None:
        path.mkdir(exist_ok=True)
    with pytest.raises(CheckoutError, match=message):
        Checkout.read("diffusers", path)
    assert main(["--diffusers", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_another_version_is_told(checkout):
    assert "unknown" in checkout.mismatch()
    init = checkout.path / "src" / "diffusers" / "__init__.py"
    init.parent.mkdir(parents=True)
    init.write_text(f'__version__ = "{checkout.installed}"\n')
    assert Checkout.read("diffusers", checkout.path).mismatch() is None
    init.write_text('__version__ = "0.1.0"\n')
    assert "0.1.0" in Checkout.read("diffusers", checkout.path).mismatch()


def test_expected_failures_have_reasons():
    assert all(len(known.reason) > 20 for known in read_expectations())
