"""Which NeuronCore a kernel runs on, and that its figures are those that the documentation states as totals."""

import subprocess
import sys

import pytest

from optimum_neuron_torch.emulator.nki.chips import (
    CHIPS,
    PLATFORM_VARIABLE,
    VERSION_VARIABLE,
    chip_of,
    current_chip,
    targeting,
)


MIB = 2**20


@pytest.fixture(autouse=True)
def _no_target(monkeypatch):
    monkeypatch.delenv(PLATFORM_VARIABLE, raising=False)
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)


# SBUF in MiB, TFLOPS of bfloat16 and float32, and GB/s of all DMA engines together.
@pytest.mark.parametrize(
    ("generation", "sbuf", "bfloat16", "float32", "dma"),
    [(2, 24, 92, 23, 272), (3, 28, 79, 20, 368), (4, 32, 79, 20, 528)],
)
def test_the_totals_are_the_documented_ones(generation, sbuf, bfloat16, float32, dma):
    chip = CHIPS[generation]
    assert chip.partitions * chip.sbuf_partition_bytes == sbuf * MIB
    assert chip.partitions * chip.psum_partition_bytes == 2 * MIB
    assert chip.psum_bank_bytes == 2048
    assert round(chip.matmul_flops_per_ns / 1000) == bfloat16
    assert round(chip.matmul_flops_per_ns / 1000 / chip.float32_matmul_passes) == float32
    assert chip.dma_peak_bytes_per_ns == dma


@pytest.mark.parametrize(
    ("platform", "version", "generation"),
    [
        ("", "", 3),
        ("trn1", "", 2),
        ("inf2", "", 2),
        ("TRN2", "", 3),
        ("trn3", "gen2", 4),
        ("", "gen2", 2),
        ("", "gen4", 4),
        ("gen3", "", 3),
    ],
)
def test_the_environment_names_the_chip(monkeypatch, platform, version, generation):
    monkeypatch.setenv(PLATFORM_VARIABLE, platform)
    monkeypatch.setenv(VERSION_VARIABLE, version)
    assert current_chip().generation == generation


def test_a_chip_that_does_not_exist_is_refused(monkeypatch):
    monkeypatch.setenv(PLATFORM_VARIABLE, "trn9")
    with pytest.raises(ValueError, match="NEURON_PLATFORM_TARGET_OVERRIDE=trn9.*trn1.*gen4"):
        current_chip()
    with pytest.raises(ValueError, match="'h100' is no target"), targeting("h100"):
        pass


def test_an_explicit_choice_wins_and_ends(monkeypatch):
    monkeypatch.setenv(PLATFORM_VARIABLE, "trn1")
    with targeting("trn3") as chip:
        assert current_chip() is chip is CHIPS[4]
    assert current_chip() is CHIPS[2]


def test_the_default_is_the_emulated_devices():
    from optimum_neuron_torch.emulator.device.hardware import DEFAULT_PLATFORM

    assert current_chip() is chip_of(DEFAULT_PLATFORM)


def test_choosing_a_chip_needs_no_torch():
    code = "import sys; from optimum_neuron_torch.emulator.nki.chips import current_chip; current_chip(); "
    code += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
