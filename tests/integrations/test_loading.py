"""from_pretrained onto neuron, prepare and unprepare, copies, and bad input."""

import copy
import os
import pickle
import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import optimum_neuron_torch as ont
from tests.tiny_models import TINY


CONFIG = ont.NeuronConfig(
    buckets=ont.Buckets(batch=[4], sequence=[16], cache=[32]), options={"executor": "aten", "lowering": "off"}
)


def is_prepared(model) -> bool:
    return "_neuron_prepared" in vars(model)


@pytest.mark.parametrize("device_map", ["neuron", "auto", "balanced", 0, {"": "neuron"}, torch.device("neuron")])
def test_where_a_device_map_leads(tiny_llama, device_map):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map=device_map, neuron_config=CONFIG)
    assert {p.device for p in model.parameters()} == {torch.device("neuron:0")} and is_prepared(model)
    assert type(model) is LlamaForCausalLM


def test_another_core(tiny_bert, ids):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron:1", neuron_config=CONFIG)
    with torch.no_grad():
        hidden = model(ids).last_hidden_state
    assert hidden.device == torch.device("neuron:1") == model.device


def test_the_cpu_stays_the_cpu(tiny_llama):
    for model in (
        AutoModelForCausalLM.from_pretrained(tiny_llama),
        LlamaForCausalLM.from_pretrained(tiny_llama, device_map="cpu"),
    ):
        assert model.device.type == "cpu" and not is_prepared(model)


def test_neuron_config_false_loads_without_preparing(tiny_llama):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=False)
    assert model.device.type == "neuron" and not is_prepared(model)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"device_map": "neuron:9"}, ValueError, r"neuron:9.*sees 4 logical cores.*neuron:3"),
        ({"device_map": "neuron:-1"}, ValueError, r"neuron:-1.*neuron:0.*neuron:3"),
        ({"device_map": "neuron:one"}, ValueError, r"neuron:one.*neuron:0.*neuron:3"),
        ({"device_map": "neuron", "neuron_config": "fast"}, ValueError, "expected NeuronConfig"),
        ({"device_map": "cpu", "neuron_config": CONFIG}, ValueError, "add device_map='neuron'"),
        (
            {"device_map": "neuron", "neuron_config": ont.NeuronConfig(buckets=ont.Buckets(image=[64]))},
            ValueError,
            r"unknown bucket axes \['image'\]",
        ),
    ],
)
def test_bad_input(tiny_llama, arguments, error, message):
    with pytest.raises(error, match=message):
        AutoModelForCausalLM.from_pretrained(tiny_llama, **arguments)


def test_the_configuration_is_saved_beside_the_model_and_loaded_back(tiny_llama, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="neuron")
    assert again.__dict__["_neuron_prepared"].config == CONFIG


def test_what_preparing_leaves_as_it_was(tiny_llama, ids):
    import inspect

    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)
    assert list(model.state_dict()) == list(plain.state_dict())
    for name in ("forward", "generate", "prepare_inputs_for_generation", "save_pretrained"):
        assert inspect.signature(getattr(model, name)) == inspect.signature(getattr(plain, name))

    twin = copy.deepcopy(model)
    assert is_prepared(twin) and twin.forward is not model.forward
    with torch.no_grad():
        twin.lm_head.weight.zero_()
        assert (twin(ids).logits == 0).all() and (model(ids).logits != 0).any()

    loaded = pickle.loads(pickle.dumps(model))
    assert type(loaded) is LlamaForCausalLM and not is_prepared(loaded)
    assert torch.equal(loaded.lm_head.weight.cpu(), plain.lm_head.weight)


def test_preparing_twice_and_taking_it_back(tiny_bert, ids):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
    forward = model.forward
    assert ont.prepare(model, CONFIG) is model and model.forward is forward
    other = ont.NeuronConfig(buckets=ont.Buckets(batch=[8], sequence=[32]), options=CONFIG.options)
    ont.prepare(model, other)
    assert model.forward is not forward
    with torch.no_grad():
        model(ids)
    assert [use.bucket for use in ont.report(model).buckets] == [{"batch": 8, "sequence": 32}]
    assert ont.unprepare(model) is model and not is_prepared(model)
    assert "forward" not in vars(model) and model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match="was not prepared"):
        ont.report(model)


def test_prepare_moves_a_cpu_model_and_refuses_what_is_none(tiny_bert):
    model = ont.prepare(AutoModel.from_pretrained(tiny_bert), CONFIG)
    assert model.device.type == "neuron" and is_prepared(model)
    with pytest.raises(TypeError, match="cannot prepare a list"):
        ont.prepare([])
    with pytest.raises(TypeError, match="compiled with torch.compile already"):
        ont.prepare(torch.compile(model))
    with pytest.raises(TypeError, match="expected NeuronConfig"):
        ont.prepare(model, {"batch": [1]})
    with torch.device("meta"):
        empty = BertModel(BertConfig(**TINY))
    with pytest.raises(ValueError, match=r"on the meta device.*from_pretrained"):
        ont.prepare(empty)


def test_a_model_spread_over_devices_is_not_prepared_and_says_so(tiny_llama, ids):
    with pytest.warns(UserWarning, match=r"spreads the model.*device_map='neuron'"):
        model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map={"model": "neuron", "lm_head": "cpu"})
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    arguments = {"max_new_tokens": 4, "do_sample": False}
    assert torch.equal(model.generate(ids.to("neuron"), **arguments).cpu(), plain.generate(ids, **arguments))


def test_a_prepared_model_on_the_cpu_is_an_ordinary_one(tiny_bert, ids):
    plain = AutoModel.from_pretrained(tiny_bert)
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG).to("cpu")
    with torch.no_grad():
        torch.testing.assert_close(model(ids).last_hidden_state, plain(ids).last_hidden_state)
    assert ont.report(model).buckets == []


def test_changes_after_preparing_are_seen(tiny_llama, ids):
    plain = AutoModelForCausalLM.from_pretrained(tiny_llama)
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)

    def compare():
        with torch.no_grad():
            found, expected = model(ids).logits.cpu(), plain(ids).logits
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    compare()
    for each in (model, plain):
        torch.manual_seed(1)
        each.load_state_dict({name: torch.randn(tensor.shape) * 0.05 for name, tensor in each.state_dict().items()})
    compare()
    for each in (model, plain):
        each.resize_token_embeddings(300, mean_resizing=False)
    ids = ids.clamp(max=299)
    compare()
    model.to("neuron:1")
    compare()
    for each in (model, plain):
        each.set_attn_implementation("eager")
    compare()


def test_the_users_own_compile_around_a_prepared_model(tiny_bert, ids):
    plain = AutoModel.from_pretrained(tiny_bert)
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
    compiled = torch.compile(model, backend="neuron", dynamic=False, options=CONFIG.options)
    with torch.no_grad():
        found = compiled(ids.to("neuron")).last_hidden_state
    torch.testing.assert_close(found.cpu(), plain(ids).last_hidden_state, rtol=1e-5, atol=1e-5)


def test_training_passes_the_buckets_by(tiny_classifier, ids):
    from transformers import AutoModelForSequenceClassification

    plain = AutoModelForSequenceClassification.from_pretrained(
        tiny_classifier, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    ).train()
    model = AutoModelForSequenceClassification.from_pretrained(
        tiny_classifier,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        device_map="neuron",
        neuron_config=CONFIG,
    ).train()
    labels = torch.tensor([0, 2, 1])
    losses = []
    for each in (plain, model):
        loss = each(ids.to(each.device), labels=labels.to(each.device)).loss
        loss.backward()
        losses.append((loss.item(), each.classifier.weight.grad.cpu()))
    assert losses[0][0] == pytest.approx(losses[1][0], abs=1e-6)
    torch.testing.assert_close(losses[1][1], losses[0][1], rtol=1e-4, atol=1e-6)
    assert ont.report(model).buckets == []


def test_a_loss_in_buckets_is_that_of_the_real_rows(tiny_classifier, ids):
    from transformers import AutoModelForSequenceClassification

    plain = AutoModelForSequenceClassification.from_pretrained(tiny_classifier)
    model = AutoModelForSequenceClassification.from_pretrained(
        tiny_classifier, device_map="neuron", neuron_config=CONFIG
    )
    labels = torch.tensor([0, 2, 1])
    with torch.no_grad():
        found = model(ids.to("neuron"), labels=labels.to("neuron"))
    with torch.no_grad():
        expected = plain(ids, labels=labels)
    assert found.loss.item() == pytest.approx(expected.loss.item(), abs=1e-6)
    assert not ont.report(model).departures


def test_splitting_batches_above_the_largest_bucket(tiny_bert):
    buckets = ont.Buckets(batch=[4], sequence=[16], overflow="split")
    config = ont.NeuronConfig(buckets=buckets, options=CONFIG.options)
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=config)
    plain = AutoModel.from_pretrained(tiny_bert)
    many = torch.randint(5, 300, (10, 7))
    with torch.no_grad():
        torch.testing.assert_close(
            model(many).last_hidden_state.cpu(), plain(many).last_hidden_state, rtol=1e-5, atol=1e-5
        )
    (use,) = ont.report(model).buckets
    assert use.calls == 3 and (use.real, use.padded) == (70, 3 * 64)


def test_without_a_device_the_error_says_why(tiny_bert):
    code = f"""
import optimum_neuron_torch
from transformers import AutoModel
try:
    AutoModel.from_pretrained({tiny_bert!r}, device_map="neuron")
except RuntimeError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "NEURON_EMULATOR": "0"}
    )
    assert "NEURON_EMULATOR=0 switches the emulated one off" in result.stdout, result.stderr


def test_a_base_decoder_returns_a_cache_where_it_is_asked_for(tiny_llama, ids):
    plain = AutoModel.from_pretrained(tiny_llama)
    model = AutoModel.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG)
    with torch.no_grad():
        with pytest.warns(UserWarning, match="a cache was asked for"):
            first = model(ids.to("neuron"), use_cache=True)
        again = model(ids[:, :1].to("neuron"), cache=first.past_key_values, use_cache=True).last_hidden_state
        expected = plain(torch.cat([ids, ids[:, :1]], 1)).last_hidden_state
    torch.testing.assert_close(again.cpu(), expected[:, -1:], rtol=1e-5, atol=1e-5)


def test_warmup_names_the_buckets_that_serve_the_sizes(tiny_bert):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
    steps = ont.warmup(model, ont.Buckets(batch=[1, 3], sequence=[5, 16]), dry_run=True)
    assert [(step.function, step.bucket) for step in steps] == [("encode", {"batch": 4, "sequence": 16})]
    with pytest.raises(ValueError, match="sequence 17"):
        ont.warmup(model, ont.Buckets(batch=[1], sequence=[17]), dry_run=True)


MEASURE_LOADING = """
import gc, sys, threading, time
import optimum_neuron_torch, torch
from transformers import AutoModelForCausalLM

def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

small, large, dtype = sys.argv[1:]
load = lambda path: AutoModelForCausalLM.from_pretrained(path, device_map="neuron", dtype=getattr(torch, dtype))
load(small)  # what libraries keep for themselves is there now
gc.collect()
start, peak, done = anonymous(), 0, False

def watch() -> None:
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
model = load(large)
done = True
watcher.join()
print((peak - start) / sum(parameter.nbytes for parameter in model.parameters()))
"""


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_loading_needs_the_memory_of_the_model_once(tiny_llama, tmp_path, dtype):
    """Weights go from their file into the device's memory: no copy of the model is in anonymous memory beside it."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "vocab_size": 8000}
    LlamaForCausalLM(LlamaConfig(num_hidden_layers=8, **sizes)).save_pretrained(tmp_path, max_shard_size="50MB")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE_LOADING, str(tiny_llama), str(tmp_path), dtype],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) <= 1.1


@pytest.mark.parametrize(
    ("asked", "kept"), [(None, "nki"), ("eager", "eager"), ("sdpa", "sdpa"), ({"": "eager"}, "eager")]
)
@pytest.mark.parametrize("kind", [LlamaForCausalLM, AutoModelForCausalLM])
def test_an_attention_that_is_asked_for_is_kept(tiny_llama, tmp_path, kind, asked, kept):
    arguments = {} if asked is None else {"attn_implementation": asked}
    model = kind.from_pretrained(tiny_llama, device_map="neuron", neuron_config=CONFIG, **arguments)
    assert model.config._attn_implementation == kept and CONFIG.attn_implementation == "nki"
    model.save_pretrained(tmp_path)
    if not isinstance(asked, dict):
        assert kind.from_pretrained(tmp_path, device_map="neuron").config._attn_implementation == kept
