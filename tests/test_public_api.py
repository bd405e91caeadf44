"""The public names and signatures, as the documentation promises them."""

import inspect

import pytest

import optimum_neuron_torch as ont


SIGNATURES = {
    "Growth": "(low: int, high: int | None, factor: float = 2) -> None",
    "prepare": "(model_or_pipeline, config=None, *, tokenizer=None, verify=None)",
    "unprepare": "(obj)",
    "warmup": "(obj, buckets=None, *, dry_run=False, progress=True, gradients=False)",
    "plan": "(sizes_or_path=None, *, graphs=6, limits=None)",
    "report": "(obj=None)",
    "strict": "(*kinds)",
    "export_cache": "(path, obj=None, *, isa=None, threads=None)",
    "import_cache": "(path, *, trust=False)",
    "is_emulated": "()",
    "wire": "()",
    "unwire": "()",
    "Buckets": "(*, batch='auto', sequence='auto', encoder_sequence='auto', cache='auto', overflow=None, "
    "dims=None, **other_axes)",
    "NeuronConfig": "(*, buckets=None, attn_implementation='nki', nki='torch', compile='model', verify='warn', "
    "outputs='exact', strict=(), options=None)",
}


def bare(signature: inspect.Signature) -> str:
    parameters = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    signature = inspect.signature(getattr(ont, name))
    assert SIGNATURES[name] in (bare(signature), str(signature))


def test_all_names_exist_and_no_others():
    assert set(ont.__all__) == {*SIGNATURES, "Plan", "Report", "nki", "pipeline"}
    assert all(getattr(ont, name) is not None for name in ont.__all__)
    with pytest.raises(AttributeError, match="no attribute 'prepair'"):
        ont.prepair  # noqa: B018
