"""What users do to a model after prepare(): results stay those of a plain model to which the same was done, and no
graph of an earlier state is used.
"""

import copy
import io
import pickle
import warnings
from collections.abc import Callable

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

import optimum_neuron_torch as ont
from optimum_neuron_torch.integrations.modules import prepared_of


OPTIONS = {"executor": "aten", "lowering": "off"}
CONFIG = ont.NeuronConfig(buckets=ont.Buckets(batch=[4], sequence=[16], cache=[32]), options=OPTIONS)
TINY = {
    "vocab_size": 320, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip


def made(seed: int = 0, **settings) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(num_key_value_heads=1, bos_token_id=1, eos_token_id=None, **{**TINY, **settings})
    return LlamaForCausalLM(config).eval()


class Pair:
    """A prepared model and a plain one on the CPU: what is done to one is done to the other."""

    def __init__(self, plain: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> None:
        self.plain, self.model = plain, ont.prepare(copy.deepcopy(plain), CONFIG)
        self.inputs = {"input_ids": ids, "attention_mask": mask}
        self.agree()

    def do(self, change: Callable[[torch.nn.Module], object]) -> None:
        """Both get the change, with the same random numbers, and then have to agree."""
        for target in (self.plain, self.model):
            torch.manual_seed(7)
            change(target)
        self.agree()

    def agree(self, tolerance: float = 1e-5) -> None:
        found, expected = self.logits(self.model), self.logits(self.plain)
        assert found.shape == expected.shape
        assert (found - expected).abs().max() <= tolerance * max(1, expected.abs().max())
        found, expected = self.generated(self.model), self.generated(self.plain)
        assert (found - expected).abs().max() <= tolerance * max(1, expected.abs().max())

    def logits(self, model: torch.nn.Module) -> torch.Tensor:
        device = next(model.parameters()).device
        with torch.no_grad():
            output = model(**{name: value.to(device) for name, value in self.inputs.items()}, use_cache=False)
        return output.logits.cpu().float()[self.inputs["attention_mask"].bool()]

    def generated(self, model: torch.nn.Module) -> torch.Tensor:
        """The logits of two steps; the second follows the token that the first chose."""
        output = model.generate(
            **self.inputs, max_new_tokens=2, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        return torch.stack([step.cpu().float() for step in output.logits])

    @property
    def graphs(self) -> int:
        report = ont.report(self.model)
        return report.graphs + report.cached


@pytest.fixture
def pair(ids, mask) -> Pair:
    return Pair(made(), ids, mask)


def test_to_the_cpu_and_back_uses_the_graphs_again(pair):
    pair.model.to("cpu")
    pair.agree()
    known = pair.graphs
    pair.model.to("neuron")
    pair.agree()
    assert pair.graphs == known and ont.report(pair.model).departures == []


@pytest.mark.parametrize(
    ("cast", "tolerance"),
    [
        pytest.param(lambda m: m.to(torch.bfloat16), 3e-2, id="bfloat16"),
        pytest.param(lambda m: m.half(), 1e-2, id="half", marks=pytest.mark.slow),
        pytest.param(lambda m: m.double(), 1e-5, id="double", marks=pytest.mark.slow),
    ],
)
def test_another_dtype(pair, cast, tolerance):
    for model in (pair.model, pair.plain):
        cast(model)
    expected = pair.logits(pair.plain)
    found = pair.logits(pair.model)
    assert (found - expected).abs().max() <= tolerance * max(1, expected.abs().max())
    for model in (pair.model, pair.plain):
        model.float()
    pair.agree()


CHANGES = {
    "more tokens": lambda m: m.resize_token_embeddings(400, mean_resizing=False),
    "fewer tokens": lambda m: m.resize_token_embeddings(310),
    "other weights": lambda m: m.load_state_dict(made(5).state_dict()),
    "assigned weights": lambda m: m.load_state_dict(
        {name: value.to(m.device) for name, value in made(6).state_dict().items()}, assign=True
    ),
    "edited in place": lambda m: m.model.layers[0].mlp.up_proj.weight.data.mul_(3),
    "exchanged storage": lambda m: setattr(m.lm_head.weight, "data", m.lm_head.weight.data * 2),
    "another module": lambda m: setattr(m.model.layers[0].self_attn, "q_proj", linear(32, 32, m.device)),
    "eager attention": lambda m: m.set_attn_implementation("eager"),
    "sdpa": lambda m: m.set_attn_implementation("sdpa"),
    "tied": lambda m: (setattr(m.config, "tie_word_embeddings", True), m.tie_weights()),
    "an attribute": lambda m: setattr(m.model.norm, "variance_epsilon", 0.5),
    "the configuration": lambda m: setattr(m.config, "output_hidden_states", True),
    "fewer layers": lambda m: (
        setattr(m.model, "layers", m.model.layers[:0]),
        setattr(m.config, "num_hidden_layers", 0),
    ),
    "checkpointing": lambda m: m.gradient_checkpointing_enable(),
    "frozen": lambda m: m.requires_grad_(False),
    "a hook": lambda m: m.model.norm.register_forward_hook(lambda module, args, output: output * 2),
}


def linear(inputs: int, outputs: int, device: torch.device) -> torch.nn.Linear:
    module = torch.nn.Linear(inputs, outputs, bias=True)
    return module.to(device)


QUICK = ("more tokens", "exchanged storage", "another module", "a hook")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CHANGES]
)
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_a_change(pair, name):
    pair.do(CHANGES[name])


@pytest.mark.slow
def test_a_change_and_its_undoing_uses_the_first_graphs_again(pair):
    known = pair.graphs
    handles = []
    pair.do(lambda m: handles.append(m.model.norm.register_forward_hook(lambda module, args, output: output * 2)))
    assert pair.graphs > known
    known = pair.graphs
    pair.do(lambda m: handles.pop(0).remove())
    assert pair.graphs == known


@pytest.mark.slow
def test_tied_weights_that_part(ids, mask):
    pair = Pair(made(tie_word_embeddings=True), ids, mask)
    pair.do(lambda m: m.tie_weights())
    pair.do(lambda m: setattr(m.lm_head, "weight", torch.nn.Parameter(m.lm_head.weight.detach() * 2)))


LORA = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_adapters_put_on_a_prepared_model_switched_and_taken_off(pair):
    first = pair.model
    base = pair.logits(pair.plain)
    pair.plain = get_peft_model(pair.plain, LoraConfig(r=4, **LORA), adapter_name="one").eval()
    pair.model = get_peft_model(pair.model, LoraConfig(r=4, **LORA), adapter_name="one").eval()
    pair.do(lambda m: m.load_state_dict(pair.plain.state_dict()))
    assert not torch.allclose(pair.logits(pair.model), base, atol=1e-3)
    pair.do(lambda m: (m.add_adapter("two", LoraConfig(r=4, **LORA)), m.load_state_dict(pair.plain.state_dict())))
    for name in ("two", "one", "two"):
        pair.do(lambda m, name=name: (m.set_adapter(name), m.eval()))
    with pair.plain.disable_adapter(), pair.model.disable_adapter():
        pair.agree()
        torch.testing.assert_close(pair.logits(pair.model), base, rtol=1e-5, atol=1e-5)
    pair.do(lambda m: (m.delete_adapter("one"), m.set_adapter("two"), m.eval()))
    pair.do(lambda m: m.merge_adapter())
    pair.do(lambda m: m.unmerge_adapter())
    pair.plain, pair.model = pair.plain.merge_and_unload(), pair.model.merge_and_unload()
    pair.agree()
    assert pair.model is first and ont.report(first).departures == []


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_two_adapters_of_one_rank_share_graphs_per_switch(pair):
    """Switching back and forth compiles each state once."""
    for name in ("plain", "model"):
        wrapped = get_peft_model(getattr(pair, name), LoraConfig(r=4, **LORA), adapter_name="one").eval()
        wrapped.add_adapter("two", LoraConfig(r=4, **LORA))
        setattr(pair, name, wrapped)
    pair.model.load_state_dict(pair.plain.state_dict())
    for name in ("one", "two"):
        pair.do(lambda m, name=name: (m.set_adapter(name), m.eval()))
    known = pair.graphs
    for name in ("one", "two"):
        pair.do(lambda m, name=name: (m.set_adapter(name), m.eval()))
    assert pair.graphs == known


def test_a_copy_has_a_life_of_its_own(pair):
    twin = copy.deepcopy(pair.model)
    with torch.no_grad():
        twin.lm_head.weight.mul_(2)
    pair.agree()
    other = copy.deepcopy(pair.plain)
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    torch.testing.assert_close(pair.logits(twin), pair.logits(other), rtol=1e-5, atol=1e-5)
    assert prepared_of(twin) is not None and ont.report(twin).name != ont.report(pair.model).name
    ont.unprepare(twin)
    assert prepared_of(pair.model) is not None


@pytest.mark.parametrize("by", ["pickle", "torch.save"])
def test_pickling_leaves_the_preparation_out(pair, by):
    if by == "pickle":
        again = pickle.loads(pickle.dumps(pair.model))
    else:
        buffer = io.BytesIO()
        torch.save(pair.model, buffer)
        buffer.seek(0)
        again = torch.load(buffer, weights_only=False)
    assert prepared_of(again) is None and prepared_of(pair.model) is not None
    assert not [name for name in vars(again) if "neuron" in name]
    pair.model = ont.prepare(again, CONFIG)
    pair.agree()


def test_saved_and_loaded_with_its_configuration(pair, tmp_path):
    pair.model.save_pretrained(tmp_path)
    pair.model = LlamaForCausalLM.from_pretrained(tmp_path, device_map="neuron")
    pair.agree()
    assert prepared_of(pair.model).config == CONFIG
    assert prepared_of(LlamaForCausalLM.from_pretrained(tmp_path)) is None
    given = ont.NeuronConfig(buckets=ont.Buckets(batch=[3], sequence=[12], cache=[24]), options=OPTIONS)
    pair.model = LlamaForCausalLM.from_pretrained(tmp_path, device_map="neuron", neuron_config=given)
    pair.agree()
    assert prepared_of(pair.model).config == given, "what is given goes before what was saved"


@pytest.mark.slow
def test_a_training_step_in_between(pair):
    losses = []
    for model in (pair.plain, pair.model):
        model.train()
        inputs = {name: x.to(model.device) for name, x in pair.inputs.items()}
        loss = model(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
        losses.append(loss.item())
        model.eval()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    pair.agree()


def test_prepared_again_and_unprepared(pair):
    other = ont.NeuronConfig(buckets=ont.Buckets(batch=[3], sequence=[12], cache=[24]), options=OPTIONS)
    ont.prepare(pair.model, other)
    pair.agree()
    assert {use.bucket["batch"] for use in ont.report(pair.model).buckets} == {3}
    ont.unprepare(pair.model)
    pair.agree()
    assert not [name for name in vars(pair.model) if "neuron" in name]
    assert pair.model.config._attn_implementation == pair.plain.config._attn_implementation
    ont.prepare(pair.model, CONFIG)
    pair.agree()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*compiled by the caller")
def test_a_compilation_of_the_users_own_around_it(pair):
    compiled = torch.compile(pair.model, options=OPTIONS)
    torch.testing.assert_close(pair.logits(compiled), pair.logits(pair.plain), rtol=1e-5, atol=1e-5)
    pair.agree()
    pair.model.compile(options=OPTIONS)
    pair.agree()
    with pytest.raises(TypeError, match="prepare the model itself"):
        ont.prepare(compiled, CONFIG)


def test_a_pad_token_that_comes_late(ids):
    """The pooled position of a classifier is found by the pad token: pads of another value would move it."""
    torch.manual_seed(0)
    config = LlamaConfig(num_key_value_heads=1, num_labels=3, **{**TINY, "pad_token_id": None})
    plain = LlamaForSequenceClassification(config).eval()
    model = ont.prepare(copy.deepcopy(plain), CONFIG)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(ids[:1])  # one row needs no pad token
        plain.config.pad_token_id = model.config.pad_token_id = 317
        late = ids.clone()
        late[1, 7:] = 317
        mask = (late != 317).long()
        torch.testing.assert_close(
            model(late, attention_mask=mask).logits.cpu(),
            plain(late, attention_mask=mask).logits,
            rtol=1e-5,
            atol=1e-5,
        )


def test_an_encoder_after_changes(ids):
    torch.manual_seed(0)
    plain = BertForSequenceClassification(BertConfig(num_labels=3, **TINY)).eval()
    model = ont.prepare(copy.deepcopy(plain), CONFIG)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    changes: list[Callable] = [
        lambda m: None,
        lambda m: setattr(m, "classifier", linear(32, 7, m.device)),
        lambda m: setattr(m.config, "output_hidden_states", True),
        lambda m: m.resize_token_embeddings(330, mean_resizing=False),
        lambda m: setattr(m.config, "return_dict", False),
    ]
    for change in changes:
        for target in (plain, model):
            torch.manual_seed(3)
            change(target)
        with torch.no_grad():
            found, expected = (m(ids.to(m.device), attention_mask=mask.to(m.device)) for m in (model, plain))
        assert type(found) is type(expected)
        found, expected = (x if isinstance(x, tuple) else x.to_tuple() for x in (found, expected))
        for part, other in zip(found, expected, strict=True):
            torch.testing.assert_close(
                [x.cpu() for x in part] if isinstance(part, tuple) else part.cpu(),
                list(other) if isinstance(other, tuple) else other,
                rtol=1e-5,
                atol=1e-5,
            )
