"""A model with its kernels in the simulator: the tokens of the CPU, and graphs made, kept and counted as ever."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import optimum_neuron_torch as ont


PROGRAM = textwrap.dedent(
    """
    import collections, json, sys
    import torch
    from transformers import AutoModelForCausalLM
    import optimum_neuron_torch as ont

    path, nki = sys.argv[1:]
    config = ont.NeuronConfig(
        nki=nki, buckets=ont.Buckets(batch=[4], sequence=[16], cache=[32]), options={"executor": "aten"}
    )
    ids = torch.randint(5, 300, (3, 11), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    call = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    expected = AutoModelForCausalLM.from_pretrained(path).generate(**call)
    model = AutoModelForCausalLM.from_pretrained(path, device_map="neuron", neuron_config=config)
    with ont.runtime.collecting_kernel_runs() as runs:
        found = model.generate(**call)
    report = ont.report(model)
    print(json.dumps({
        "equal": torch.equal(found.cpu(), expected),
        "kernels": collections.Counter(run.kernel for run in runs),
        "cores": sorted({run.lnc for run in runs}),
        "attention": report.attention,
        "graphs": report.graphs,
        "cached": report.cached,
        "lowering": report.lowering,
        "eager": report.eager_signatures,
        "breaks": report.graph_breaks,
        # Whether layers take kernels depends on which version of the `kernels` package is there.
        "departures": [row for row in report.departures if row["kind"] != "kernels"],
    }))
    """
)


def generate(path, cache, nki, **environment):
    environment = {**os.environ, "OPTIMUM_NEURON_CACHE": str(cache), **environment}
    command = [sys.executable, "-c", PROGRAM, path, nki]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr[-2000:]
    return json.loads(said.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
def test_generation_with_kernels(tiny_llama, tmp_path):
    plain = generate(tiny_llama, tmp_path, "torch")
    first, second = (generate(tiny_llama, tmp_path, "simulate") for _ in range(2))
    for found in (plain, first, second):
        assert found["equal"] and found["lowering"] == {"checked": 2}
        assert (found["eager"], found["breaks"], found["departures"]) == (0, [], [])
    # Two layers: a prefill, and three steps behind it.
    assert plain["kernels"] == {} and plain["attention"] == {"nki (torch)": 8}
    for found in (first, second):
        assert found["kernels"]["flash_attention_kernel"] == 2 and found["kernels"]["decode_attention_kernel"] == 6
        assert found["attention"] == {"nki (flash kernel)": 2, "nki (decode kernel)": 6}
    # Graphs with kernels are others than those without, and are kept as these are.
    assert [(found["graphs"], found["cached"]) for found in (plain, first, second)] == [(2, 0), (2, 0), (0, 2)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "value", "cores"),
    [("NEURON_LOGICAL_NC_CONFIG", "1", [1]), ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3", [2])],
    ids=["one core", "trn3"],
)
def test_graphs_of_another_chip_are_others(tiny_llama, tmp_path, name, value, cores):
    here, there = (
        generate(tiny_llama, tmp_path, "simulate"),
        generate(tiny_llama, tmp_path, "simulate", **{name: value}),
    )
    again = generate(tiny_llama, tmp_path, "simulate")
    assert all(found["equal"] for found in (here, there, again))
    assert [found["cores"] for found in (here, there, again)] == [[2], cores, [2]]
    assert [(found["graphs"], found["cached"]) for found in (here, there, again)] == [(2, 0), (2, 0), (0, 2)]


def test_the_configuration_is_kept(tmp_path):
    ont.NeuronConfig(nki="simulate").save_pretrained(tmp_path)
    assert ont.NeuronConfig.from_pretrained(tmp_path).nki == "simulate"
