"""compile="blocks" against the CPU and compile="model": results, number of graphs, what runs eagerly and why."""

import copy
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from accelerate.utils import compile_regions
from diffusers import DiTTransformer2DModel, FluxTransformer2DModel
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetModel,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch import runtime
from optimum_neuron_torch.buckets.blocks import repeated_blocks
from tests.tiny_models import TINY


FOUR = {**TINY, "num_hidden_layers": 4}


def config(compile: str = "blocks", **others) -> ont.NeuronConfig:
    buckets = ont.Buckets(batch=[1, 4, 16], sequence=[16, 32], cache=[64])
    options = {"executor": "aten", "lowering": "off"}
    return ont.NeuronConfig(compile=compile, buckets=buckets, verify=False, options=options, **others)


def on_neuron(plain: torch.nn.Module, compile: str = "blocks", **others) -> torch.nn.Module:
    return ont.prepare(copy.deepcopy(plain).to("neuron"), config(compile, **others))


def made(model_class: type, config) -> torch.nn.Module:
    torch.manual_seed(0)
    return model_class(config).eval()


def llama(layers: int = 4) -> torch.nn.Module:
    settings = {**TINY, "num_hidden_layers": layers}
    return made(LlamaForCausalLM, LlamaConfig(num_key_value_heads=2, eos_token_id=2, **settings))


def graphs(model: torch.nn.Module) -> int:
    report = ont.report(model)
    return report.graphs + report.cached


def generate(model, ids, mask, **arguments) -> torch.Tensor:
    torch.manual_seed(0)
    arguments = {"max_new_tokens": 6, "do_sample": False, **arguments}
    return model.generate(ids, attention_mask=mask, **arguments).cpu()


@pytest.mark.parametrize("layers", [2, 5])
def test_generate_has_one_graph_per_function_and_bucket_whatever_the_depth(layers, ids, mask):
    plain = llama(layers)
    model = on_neuron(plain)
    assert torch.equal(generate(model, ids, mask), generate(plain, ids, mask))
    assert graphs(model) == 2  # a prefill's block and a decode step's
    beams = {"num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(generate(model, ids, mask, **beams), generate(plain, ids, mask, **beams))
    assert graphs(model) == 5  # both at the batch of the beams, and the reordering of the store
    for _ in range(2):
        generate(model, ids[:, :9], mask[:, :9])
    report = ont.report(model)
    assert graphs(model) == 5 and not report.departures
    assert {use.function for use in report.buckets} == {"prefill", "decode", "gather"}


DECODERS = {
    "learned positions": lambda: made(
        GPT2LMHeadModel, GPT2Config(vocab_size=320, n_embd=48, n_layer=4, n_head=4, n_positions=256, eos_token_id=2)
    ),
    "two kinds of layers": lambda: made(
        Gemma2ForCausalLM,
        Gemma2Config(num_key_value_heads=2, head_dim=12, sliding_window=8, query_pre_attn_scalar=12, **FOUR),
    ),
}


@pytest.mark.parametrize(("family", "kinds"), [("learned positions", 1), ("two kinds of layers", 2)])
def test_blocks_of_different_state_are_different_graphs(family, kinds, ids, mask):
    plain = DECODERS[family]()
    model = on_neuron(plain)
    assert torch.equal(generate(model, ids, mask), generate(plain, ids, mask))
    assert graphs(model) == 2 * kinds
    assert not ont.report(model).departures


def test_a_forward_equals_the_whole_steps(ids, mask):
    plain = made(BertModel, BertConfig(**FOUR))
    blocks, whole = on_neuron(plain), on_neuron(plain, "model")
    with torch.no_grad():
        found, expected = (each(ids, attention_mask=mask).last_hidden_state.cpu() for each in (blocks, whole))
        reference = plain(ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, reference, rtol=0, atol=1e-5)
    assert graphs(blocks) == 1


def test_gradients_equal_the_cpus(ids):
    plain = llama()
    model = on_neuron(plain)
    for each in (plain, model):
        each(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits.square().mean().backward()
    assert graphs(model) == 2  # forward and backward
    found, expected = dict(model.named_parameters()), dict(plain.named_parameters())
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name].grad.cpu(), parameter.grad, rtol=1e-4, atol=1e-7)


def test_weights_and_settings_that_change_between_calls_are_noticed(ids, mask):
    plain = made(BertModel, BertConfig(**FOUR))
    model = on_neuron(plain)

    def compare() -> None:
        with torch.no_grad():
            found, expected = (each(ids, attention_mask=mask).last_hidden_state.cpu() for each in (model, plain))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)

    compare()
    for each in (plain, model):
        with torch.no_grad():
            each.encoder.layer[2].output.dense.weight.mul_(2)
    compare()
    assert graphs(model) == 1
    for each in (plain, model):
        each.encoder.layer[1].output.LayerNorm.eps = 0.5
        each.encoder.layer[3].intermediate.intermediate_act_fn = torch.nn.ReLU()
    compare()
    assert graphs(model) == 3


def dit() -> torch.nn.Module:
    torch.manual_seed(0)
    return DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=3, sample_size=8, patch_size=2
    ).eval()


DIT_INPUTS = {"timestep": torch.tensor([3, 7]), "class_labels": torch.tensor([1, 5])}


def test_a_diffusers_transformer(ids):
    plain = dit()
    model = on_neuron(plain)
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = plain(latents, **DIT_INPUTS).sample
        found = model(latents.to("neuron"), **{k: v.to("neuron") for k, v in DIT_INPUTS.items()}).sample
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)
    assert graphs(model) == 1
    assert not [d for d in ont.report(model).departures if d["kind"] == "stock_path"]


def test_hidden_states_are_recorded_and_attentions_run_eagerly(ids, mask):
    plain = made(BertModel, BertConfig(attn_implementation="eager", **FOUR))
    model = on_neuron(plain, attn_implementation=None)

    def compare(**arguments) -> None:
        with torch.no_grad():
            found, expected = (each(ids, attention_mask=mask, **arguments) for each in (model, plain))
        assert found.keys() == expected.keys()
        for name in expected:
            pairs = zip(found[name], expected[name], strict=True)
            for one, other in pairs if isinstance(expected[name], tuple) else [(found[name], expected[name])]:
                torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-5)

    compare(output_hidden_states=True)
    compare()
    assert graphs(model) == 2 and not ont.report(model).departures
    compare(output_attentions=True)
    reasons = {departure["reason"] for departure in ont.report(model).departures}
    assert reasons == {"it runs eagerly: outputs are recorded inside it"}
    compare()
    assert graphs(model) == 2  # with and without the argument, which goes through the blocks


def test_blocks_that_cannot_be_compiled_alone_run_eagerly_with_the_reason(ids, mask):
    plain = llama(2)
    model = on_neuron(plain)
    seen = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
    with pytest.warns(UserWarning, match="a hook on its LlamaMLP"):
        assert torch.equal(generate(model, ids, mask), generate(plain, ids, mask))
    assert len(seen) == 6
    assert graphs(model) == 2  # of the other layer
    with pytest.warns(UserWarning, match="DynamicCache"), torch.no_grad():
        found = model(ids, attention_mask=mask, cache=DynamicCache()).logits.cpu()
        expected = plain(ids, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


class ReadsItsNumber(torch.nn.Module):
    """A block whose result depends on which one it is."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.layer_idx = number, number
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.number if self.number > 1 else self.linear(x)


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(ReadsItsNumber(number) for number in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_a_number_that_is_read_keeps_blocks_apart():
    torch.manual_seed(0)
    plain = Stack().eval()
    model = on_neuron(plain)
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(model(x).cpu(), plain(x), rtol=0, atol=1e-5)
    assert graphs(model) == 4


def test_a_model_without_blocks_is_compiled_whole(caplog):
    plain = made(
        ResNetModel, ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", num_channels=3)
    )
    assert not repeated_blocks(plain)
    model = on_neuron(plain)
    pictures = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with caplog.at_level("INFO", logger="optimum_neuron_torch"), torch.no_grad():
        for _ in range(2):
            found = model(pictures).last_hidden_state.cpu()
    torch.testing.assert_close(found, plain(pictures).last_hidden_state.detach(), rtol=0, atol=1e-5)
    assert graphs(model) == 1
    assert caplog.text.count("has no repeated blocks") == 1


PROGRAM = textwrap.dedent(
    """
    import json, sys, torch
    import optimum_neuron_torch as ont
    from tests.integrations.test_blocks import generate, graphs, llama, on_neuron
    plain = llama()
    model = on_neuron(plain)
    ids = torch.arange(5, 14)[None]
    same = torch.equal(*(generate(each, ids, torch.ones_like(ids)) for each in (model, plain)))
    report = ont.report(model)
    print(json.dumps({"same": same, "graphs": report.graphs, "cached": report.cached}))
    """
)


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path):
    results = []
    for seed in (1, 2):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OPTIMUM_NEURON_CACHE": str(tmp_path)}
        command = [sys.executable, "-c", PROGRAM]
        output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=250)
        results.append(json.loads(output.stdout.splitlines()[-1]))
    assert results == [{"same": True, "graphs": 2, "cached": 0}, {"same": True, "graphs": 0, "cached": 2}]


# ---- without prepare() ----------------------------------------------------------------------------------------------

SETTINGS = {"backend": "neuron", "options": {"executor": "aten", "lowering": "off"}}


def records() -> int:
    return len(runtime.graph_records())


def test_diffusers_regional_compilation_has_one_graph_per_class_and_layout():
    torch.manual_seed(0)
    plain = FluxTransformer2DModel(
        in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    ).eval()  # fmt: skip
    model = copy.deepcopy(plain).to("neuron")
    model.compile_repeated_blocks(fullgraph=True, **SETTINGS)
    inputs = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([1.0]),
        "img_ids": torch.zeros(16, 3),
        "txt_ids": torch.zeros(8, 3),
    }
    before = records()
    with torch.no_grad():
        expected = plain(**inputs).sample
        found = model(**{name: x.to("neuron") for name, x in inputs.items()}).sample
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)
    made = runtime.graph_records()[before:]
    # The first single block gets slices of the double blocks' outputs: other strides, which Dynamo tells apart.
    assert ["strides" in record["recompile_reason"] for record in made] == [False, False, True]


def test_accelerates_regional_compilation_has_one_graph_per_layer_that_names_its_number(ids):
    """Dynamo takes `layer_idx` for a constant; compile="blocks" does not."""
    plain = llama()
    model = compile_regions(copy.deepcopy(plain).to("neuron"), **SETTINGS)
    before = records()
    with torch.no_grad():
        expected = plain.model(ids, use_cache=False).last_hidden_state
        found = model.model(ids.to("neuron"), use_cache=False).last_hidden_state
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)
    names = [record["graph_name"] for record in runtime.graph_records()[before:]]
    assert len(names) == 4, names
