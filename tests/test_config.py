"""NeuronConfig and Buckets: what is accepted, refused, saved and read back."""

import json

import pytest

from optimum_neuron_torch import Buckets, Growth, NeuronConfig
from optimum_neuron_torch.config import CONFIG_NAME


def test_a_configuration_survives_saving(tmp_path):
    buckets = Buckets(batch=[4, 1], sequence=Growth(16, 512), cache="auto", overflow="grow")
    config = NeuronConfig(
        buckets=buckets, verify="raise", strict=("stock_path", "recompile"), options={"executor": "aten"}
    )
    path = config.save_pretrained(tmp_path / "new")
    assert path.name == CONFIG_NAME and json.loads(path.read_text())["buckets"]["batch"] == [1, 4]
    assert NeuronConfig.from_pretrained(tmp_path / "new") == config
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == [CONFIG_NAME]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": [1, 2]}, "expected Buckets"),
        ({"compile": "blocky"}, "compile='blocky': expected one of"),
        ({"compile": True}, "compile=True: expected one of"),
        ({"verify": "maybe"}, "verify='maybe'"),
        ({"nki": "gpu"}, "nki='gpu'"),
        ({"outputs": "short"}, "outputs='short'"),
        ({"strict": ("recompiles",)}, r"unknown strict kinds \['recompiles'\].*recompile"),
        ({"options": "aten"}, "expected a dict"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        NeuronConfig(**arguments)


@pytest.mark.parametrize("sizes", [[], [0], [1.5], ["a"], "some", [True], -3])
def test_bad_sizes_are_named(sizes):
    with pytest.raises(ValueError, match=r"(?s)axis 'sequence'.*Buckets\(sequence=\[32, 64, 128\]\)"):
        Buckets(sequence=sizes)


@pytest.mark.parametrize("arguments", [(0, 4), (4, 2), (2, 8, 1)])
def test_bad_growth_is_refused(arguments):
    with pytest.raises(ValueError, match="growth rule"):
        Growth(*arguments)


def test_a_file_of_another_project_is_ignored(tmp_path, caplog):
    (tmp_path / CONFIG_NAME).write_text('{"compiler_type": "neuronx-cc"}')
    with caplog.at_level("INFO", logger="optimum_neuron_torch"):
        assert NeuronConfig.from_pretrained(tmp_path) is None
    assert "no `format` key" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"format": "optimum_neuron_torch/99"}', "another version"),
        ('{"format": "optimum_neuron_torch/1", "colour": 1}', "keys this version does not know"),
    ],
)
def test_a_broken_file_of_ours_is_named(tmp_path, text, message):
    (tmp_path / CONFIG_NAME).write_text(text)
    with pytest.raises(ValueError, match=message):
        NeuronConfig.from_pretrained(tmp_path)
