"""Buckets that contradict each other, the model or the device: a right result, or an error that says what to do; the
next call is right.
"""

import copy
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

import optimum_neuron_torch as ont
from optimum_neuron_torch.integrations.modules import prepared_of


OPTIONS = {"executor": "aten", "lowering": "off"}
SMALL = {
    "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip


def config(**buckets) -> ont.NeuronConfig:
    return ont.NeuronConfig(buckets=ont.Buckets(**buckets), options=OPTIONS)


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=1, eos_token_id=None)
    ).eval()


@pytest.mark.parametrize(
    "buckets",
    [
        {"batch": [2], "sequence": [64], "cache": [32]},
        {"batch": [2], "sequence": [256], "cache": [512]},
        {"batch": [4, 2, 4], "sequence": [16, 16], "cache": [64, 32]},
    ],
    ids=["a cache below the prompt", "above the model's limit", "unsorted, twice"],
)
def test_buckets_that_are_odd_and_right(buckets, ids, mask):
    plain = gpt2()
    model = ont.prepare(copy.deepcopy(plain), config(**buckets))
    arguments = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids[:2], **arguments | {"attention_mask": mask[:2]}),
                       plain.generate(ids[:2], **arguments | {"attention_mask": mask[:2]}))  # fmt: skip
    assert ont.report(model).departures == []


def test_a_bucket_that_the_models_positions_do_not_reach(ids):
    torch.manual_seed(0)
    plain = BertModel(BertConfig(**SMALL)).eval()
    model = ont.prepare(copy.deepcopy(plain), config(batch=[4], sequence=[16, 256]))
    with torch.no_grad():
        with pytest.raises(ValueError, match=r"sequence 256 is above the limit of BertModel, 64.*\[\.\.\., 64\]"):
            model(torch.ones(2, 20, dtype=torch.long))
        torch.testing.assert_close(
            model(ids).last_hidden_state.cpu(), plain(ids).last_hidden_state, rtol=1e-5, atol=1e-5
        )


def test_what_is_given_goes_before_what_is_saved(tiny_llama, tmp_path, caplog):
    saved, given = config(batch=[2], sequence=[16]), config(batch=[4], sequence=[32])
    AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=saved).save_pretrained(
        tmp_path
    )
    load = AutoModelForCausalLM.from_pretrained
    assert prepared_of(load(tmp_path, device_map="neuron")).config == saved
    with caplog.at_level("INFO", logger="optimum_neuron_torch"):
        model = load(tmp_path, device_map="neuron", neuron_config=given)
    assert prepared_of(model).config == given
    assert any("neuron_config.json" in message for message in caplog.messages)
    model.save_pretrained(tmp_path / "again")
    assert ont.NeuronConfig.from_pretrained(tmp_path / "again") == given


def test_quantised_weights_are_refused_before_the_model_moves(ids):
    model = gpt2()
    model.quantization_method = "gptq"
    assert ont.prepare(copy.deepcopy(model), config()) is not None, "dequantised already"
    model.lm_head.register_buffer("qweight", torch.zeros(4, 8, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"quantised by gptq \(lm_head.qweight is torch.int32\).*dequantize"):
        ont.prepare(model, config())
    assert prepared_of(model) is None and model.device.type == "cpu"


OURS = {"format": "optimum_neuron_torch/1"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"bukets": {}}, "bukets"),
        ({"buckets": {"batch": [0]}}, r"'batch': \[0\]"),
        ({"buckets": {"batch": {"low": 1, "high": 4, "step": 2}}}, "step"),
        ({"buckets": [1, 2]}, "neuron_config.json"),
        ({"strict": ["fast"]}, "fast"),
        ({"strict": None}, "neuron_config.json"),
        ({"options": [1]}, "options"),
        ({"format": "optimum_neuron_torch/99"}, "another version"),
    ],
    ids=str,
)
def test_a_saved_configuration_that_is_wrong_names_its_file(tmp_path, content, message):
    (tmp_path / "neuron_config.json").write_text(json.dumps({**OURS, **content}))
    with pytest.raises(ValueError, match=message) as raised:
        ont.NeuronConfig.from_pretrained(tmp_path)
    assert str(tmp_path) in str(raised.value)


# ---- processes ------------------------------------------------------------------------------------------------------

OUT_OF_MEMORY = """
import copy, gc, torch, transformers, optimum_neuron_torch as ont
torch.manual_seed(0)
plain = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=320, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=65536, num_key_value_heads=2, bos_token_id=1, eos_token_id=None, pad_token_id=0)).eval()
buckets = ont.Buckets(batch=[1], sequence=[16], cache=[32, 32768])
model = ont.prepare(copy.deepcopy(plain), ont.NeuronConfig(buckets=buckets, options={"executor": "aten"}))
ids = torch.arange(7)[None] + 5
def generate(model, new):
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False)
def allocated():
    gc.collect()  # exceptions that Dynamo kept in cycles keep the frames of the call it traced, and their tensors
    return torch.accelerator.memory_allocated()
generate(model, 4)
used = allocated()
for call in (lambda: generate(model, 40), lambda: ont.warmup(model, progress=False)):
    try:
        call()
    except torch.OutOfMemoryError as error:
        print("refused:", error)
print("left over:", allocated() - used)
print("right:", torch.equal(generate(model, 4), generate(plain, 4)))
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_bucket_that_does_not_fit_hbm_is_named_and_the_next_call_is_right():
    lines = run(OUT_OF_MEMORY, NEURON_EMULATOR_HBM="12MiB").splitlines()
    assert len(lines) == 4
    for line in lines[:2]:
        assert line.startswith("refused: LlamaForCausalLM, prefill, batch 1, block 16, cache 32768")
        assert "8.00 MiB were asked for" in line and "NEURON_EMULATOR_HBM" in line
    assert lines[2:] == ["left over: 0", "right: True"]


WARMING = """
import json, sys
import torch, transformers, optimum_neuron_torch as ont
buckets = ont.Buckets(batch=[1], sequence=[16, 32, 64, 128])
config = ont.NeuronConfig(buckets=buckets, options={{"executor": "aten", "lowering": "off"}})
model = transformers.AutoModel.from_pretrained({path!r}, device_map="neuron", neuron_config=config)
print("ready", flush=True)
sys.stdin.readline()
steps = ont.warmup(model, progress={progress})
print(json.dumps([step.state for step in steps]), flush=True)
with torch.no_grad():
    print(model(torch.arange(40)[None]).last_hidden_state.sum().item())
"""


def warming(path: str, cache, progress: bool = False) -> subprocess.Popen:
    """A process that loads a model, says `ready`, and warms it up when it gets a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", WARMING.format(path=path, progress=progress)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OPTIMUM_NEURON_CACHE": str(cache)},
    )  # fmt: skip
    assert process.stdout.readline().strip() == "ready", process.stderr.read()
    return process


@pytest.mark.slow
def test_two_processes_that_warm_one_cache_compile_each_bucket_once(tiny_bert, tmp_path):
    processes = [warming(tiny_bert, tmp_path) for _ in range(2)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=250)[0].splitlines() for process in processes]
    states = [json.loads(output[0]) for output in outputs]
    assert all(sorted(pair) == ["compiled", "loaded"] for pair in zip(*states, strict=True)), states
    assert outputs[0][1] == outputs[1][1]


@pytest.mark.slow
def test_a_warm_up_that_was_killed_goes_on_where_it_stopped(tiny_bert, tmp_path):
    process = warming(tiny_bert, tmp_path, progress=True)
    process.stdin.write("go\n")
    process.stdin.flush()
    deadline = time.monotonic() + 250
    artifacts = lambda: list(tmp_path.glob("graphs/*/artifacts/*/[!.]*"))  # noqa: E731
    while len(artifacts()) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = len(artifacts())
    assert 2 <= kept < 4
    again = warming(tiny_bert, tmp_path)
    states = json.loads(again.communicate("go\n", timeout=250)[0].splitlines()[0])
    assert states.count("loaded") == kept and states.count("compiled") == 4 - kept
