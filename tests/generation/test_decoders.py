"""Decoders of every kind of cache layer: tokens and logits of generate() in buckets against the CPU's."""

import copy
import warnings

import pytest
import torch
import transformers

import optimum_neuron_torch as ont
from optimum_neuron_torch.generation import bucketed, check, placing
from optimum_neuron_torch.generation.cache import BucketCache
from optimum_neuron_torch.report import Ledger
from tests.tiny_models import TINY


GROUPED = {**TINY, "num_key_value_heads": 2}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 12, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 24,
    "first_k_dense_replace": 1, "n_shared_experts": 1, "num_key_value_heads": 4,
}  # fmt: skip
DELTA = {
    "head_dim": 12, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
LAYERS = {
    "sliding": ("Mistral", {**GROUPED, "sliding_window": 6}),
    "chunked": (
        "Llama4",
        {**GROUPED, "attention_chunk_size": 6, "intermediate_size_mlp": 96, "head_dim": 12, "num_local_experts": 2},
    ),
    "latent": ("DeepseekV3", {**TINY, **LATENT}),
    "mamba": ("Mamba", {**TINY, "state_size": 8}),
    "mamba2": ("Mamba2", {**TINY, "state_size": 8, "num_heads": 8, "head_dim": 12, "chunk_size": 8, "n_groups": 1}),
    "mamba2 and attention": ("Bamba", {**GROUPED, **MAMBA2, "attn_layer_indices": [1]}),
    "both in one layer": ("FalconH1", {**GROUPED, **MAMBA2, "mamba_d_ssm": 96}),
    "convolution": ("Lfm2", {**GROUPED, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "delta rule": ("Qwen3Next", {**GROUPED, **DELTA}),
    "layers without a cache": (
        "NemotronH",
        {**GROUPED, "hybrid_override_pattern": "M-*", "mamba_num_heads": 8, "mamba_head_dim": 12, "ssm_state_size": 8,
         "n_groups": 1, "chunk_size": 8, "head_dim": 12},
    ),
}  # fmt: skip
WINDOWED = ("Mistral", {**GROUPED, "sliding_window": 6})
BUCKETS = ont.Buckets(batch=[1, 4, 16], sequence=[16, 32], cache=[64])


def pair(name: str, values: dict, *, compile="model", attention: str | None = None) -> tuple:
    """A plain model whose weights hide nothing, and its prepared twin."""
    torch.manual_seed(0)
    if name == "Llama4":
        config = transformers.Llama4TextConfig(**values)
    else:
        config = getattr(transformers, f"{name}Config")(**values)
    plain = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    plain.generation_config.eos_token_id, plain.generation_config.pad_token_id = None, 0
    if attention is not None:
        plain.set_attn_implementation(attention)
    options = {"executor": "aten", "lowering": "off"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*no effect")
        model = ont.prepare(
            copy.deepcopy(plain).to("neuron"), ont.NeuronConfig(buckets=BUCKETS, compile=compile, options=options)
        )
    return plain, model


def assert_close(found, expected, mask=None) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        ours = ours.cpu()
        if mask is not None:
            ours, theirs = ours[mask], theirs[mask]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * max(1.0, theirs.abs().max().item()))


def stock_paths(model) -> list[str]:
    return [row["reason"] for row in ont.report(model).departures if row["kind"] == "stock_path"]


GREEDY = {"max_new_tokens": 14, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}


@pytest.mark.parametrize("kind", LAYERS)
def test_tokens_and_logits(ids, mask, kind):
    plain, model = pair(*LAYERS[kind], compile=False)
    for rows in (slice(1, 2), slice(0, 3)):
        prompt = {"input_ids": ids[rows], "attention_mask": mask[rows]}
        expected, found = plain.generate(**prompt, **GREEDY), model.generate(**prompt, **GREEDY)
        assert torch.equal(found.sequences, expected.sequences)
        assert_close(found.logits, expected.logits)
    beams = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False}
    assert torch.equal(
        model.generate(ids, attention_mask=mask, **beams), plain.generate(ids, attention_mask=mask, **beams)
    )
    assert stock_paths(model) == []


def test_recurrent_steps_are_one_graph_per_bucket(ids, mask):
    plain, model = pair(*LAYERS["mamba2 and attention"])
    for length in (11, 9, 7):
        prompt = {"input_ids": ids[:, :length], "attention_mask": mask[:, :length]}
        assert torch.equal(model.generate(**prompt, **GREEDY).sequences, plain.generate(**prompt, **GREEDY).sequences)
    assert ont.report(model).graphs + ont.report(model).cached == 2


@pytest.mark.parametrize("kind", ["mamba2", "mamba2 and attention", "convolution", "delta rule", "both in one layer"])
def test_long_prompts_of_recurrent_layers_are_read_in_blocks(monkeypatch, kind):
    monkeypatch.setattr(placing, "SCANNED_BLOCK", 8)
    plain, model = pair(*LAYERS[kind], compile=False)
    ids = torch.randint(5, 300, (3, 29), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :11], mask[1, :2] = 0, 0
    prompt = {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True}
    expected, found = plain.generate(**prompt, **GREEDY), model.generate(**prompt, **GREEDY)
    assert torch.equal(found.sequences, expected.sequences)
    assert_close(found.logits, expected.logits)
    assert_close(found.hidden_states[0], expected.hidden_states[0], mask.bool())
    used = {use.function: use for use in ont.report(model).buckets}
    assert used["block"].bucket["block"] == 8 and used["block"].calls == 3


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "mamba2 and attention", "convolution", "delta rule"])
def test_reading_on_equals_the_whole_sequence(kind):
    """Transformers' Mamba itself starts anew at a later block of several tokens."""
    plain, model = pair(*LAYERS[kind], compile=False)
    ids = torch.randint(5, 300, (1, 31), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = plain(ids, use_cache=False).logits
        output = model(ids[:, :3], use_cache=True)
        parts = [output.logits]
        for start, end in ((3, 9), (9, 10), (10, 31)):
            output = model(ids[:, start:end], cache=output.cache, use_cache=True)
            parts.append(output.logits)
    assert_close([torch.cat(parts, 1)], [whole])


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("case", [WINDOWED, LAYERS["mamba2 and attention"]], ids=["sliding", "recurrent"])
def test_attentions_and_hidden_states_have_their_true_sizes(ids, mask, case, beams):
    plain, model = pair(*case, compile=False, attention="eager")
    attention = model.config._attn_implementation
    asked = {"output_attentions": True, "output_hidden_states": True, "num_beams": beams, "attention_mask": mask}
    expected, found = plain.generate(ids, **asked, **GREEDY), model.generate(ids, **asked, **GREEDY)
    rows = mask.repeat_interleave(beams, 0).bool()  # what pads attend to is nobody's business
    for name in ("attentions", "hidden_states"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert len(theirs[0]) > 0
        first = [[x.transpose(1, 2) if name == "attentions" else x for x in step[0]] for step in (ours, theirs)]
        assert_close(*first, rows)
        for our_step, their_step in zip(ours[1:], theirs[1:], strict=True):
            assert_close(our_step, their_step)
    assert stock_paths(model) == [] and model.config._attn_implementation == attention


def test_the_configuration_may_ask_for_hidden_states(ids):
    plain, model = pair(*WINDOWED, compile=False)
    plain.config.output_hidden_states = model.config.output_hidden_states = True
    with torch.no_grad():
        assert_close(model(ids).hidden_states, plain(ids).hidden_states)
        assert model(ids, output_hidden_states=False).hidden_states is None


class Untraceable(transformers.LlamaForCausalLM):
    """A model whose forward cannot become one graph."""

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, cache=None, inputs_embeds=None, **kwargs
    ):
        torch._dynamo.graph_break()
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            **kwargs,
        )


def test_what_does_not_compile_takes_the_stock_path(ids, mask):
    class Texts(transformers.TextStreamer):
        def __init__(self):
            self.shapes = []

        def put(self, value):
            self.shapes.append(tuple(value.shape))

        def end(self):
            pass

    plain, _ = pair("Llama", GROUPED, compile=False)
    model = Untraceable(plain.config).eval()
    model.load_state_dict(plain.state_dict())
    model.generation_config = copy.deepcopy(plain.generation_config)
    model = ont.prepare(model.to("neuron"), ont.NeuronConfig(buckets=BUCKETS))
    prompt = {"input_ids": ids[1:2], "do_sample": True, "max_new_tokens": 5}
    streams = Texts(), Texts()
    torch.manual_seed(3)
    expected = plain.generate(**prompt, streamer=streams[0])
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="does not compile as one graph"):
        found = model.generate(**prompt, streamer=streams[1])
    assert torch.equal(found.cpu(), expected) and streams[0].shapes == streams[1].shapes
    torch.manual_seed(3)
    assert torch.equal(model.generate(**prompt).cpu(), expected)
    with ont.strict("stock_path"), pytest.raises(RuntimeError, match="does not compile as one graph"):
        model.generate(**prompt)
    with pytest.raises(ValueError, match="self check"):
        ont.prepare(model, ont.NeuronConfig(buckets=BUCKETS), verify=True)


@pytest.mark.parametrize(
    ("shape", "message"), [((0, 11), "holds no token"), ((3, 0), "holds no token")], ids=["no row", "no token"]
)
def test_empty_prompts_are_refused(shape, message):
    _, model = pair("Llama", GROUPED, compile=False)
    with pytest.raises(ValueError, match=message), torch.no_grad():
        model(torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("HBM is full"), KeyboardInterrupt()], ids=type)
@pytest.mark.parametrize("is_late", [False, True], ids=["before the step", "after the step"])
@pytest.mark.parametrize("case", [WINDOWED, LAYERS["mamba2 and attention"]], ids=["sliding", "recurrent"])
def test_a_step_that_fails_leaves_the_cache_as_it_was(monkeypatch, ids, case, error, is_late):
    plain, model = pair(*case, compile=False)
    owner = model._neuron_prepared.generation.get()
    with torch.no_grad():
        whole = plain(ids, use_cache=False).logits
        cache = model(ids[:, :8], use_cache=True).cache
        stock = owner.graphs.call

        def failing(*args):
            if is_late:
                stock(*args)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(owner.graphs, "call", failing)
            with pytest.raises(type(error)):
                model(ids[:, 8:9], cache=cache)
        if owner.is_recurrent:
            with pytest.raises(ValueError, match="start again with a new cache"):
                model(ids[:, 8:9], cache=cache)
            cache = model(ids[:, :8], use_cache=True).cache
        assert_close([model(ids[:, 8:9], cache=cache).logits], [whole[:, 8:9]])


def failing_at(stock, number):
    """`stock`, which fails at its call of that number."""
    calls = []

    def call(*args):
        calls.append(args)
        if len(calls) == number:
            raise torch.OutOfMemoryError("HBM is full")
        return stock(*args)

    return call


def test_a_prompt_of_several_parts_of_which_one_fails_starts_anew(monkeypatch, ids):
    monkeypatch.setattr(placing, "SCANNED_BLOCK", 4)
    plain, model = pair(*LAYERS["mamba2 and attention"], compile=False)
    owner = model._neuron_prepared.generation.get()
    with torch.no_grad():
        expected = plain(ids, use_cache=False).logits
        cache = BucketCache(owner, 32)
        with monkeypatch.context() as patch:
            patch.setattr(owner.graphs, "call", failing_at(owner.graphs.call, 2))
            with pytest.raises(torch.OutOfMemoryError):
                owner.forward(cache, {"input_ids": ids})
        assert_close([owner.forward(cache, {"input_ids": ids}).logits], [expected])


def test_a_block_of_several_parts_of_which_one_fails_is_not_read_twice(monkeypatch, ids):
    _, model = pair(*LAYERS["mamba2 and attention"], compile=False)
    owner = model._neuron_prepared.generation.get()
    with torch.no_grad():
        cache = model(ids[:, :5], use_cache=True).cache
        monkeypatch.setattr(owner, "make_room", failing_at(owner.make_room, 2))  # between two parts
        with pytest.raises(torch.OutOfMemoryError):
            model(ids[:, 5:10], cache=cache)
        with pytest.raises(ValueError, match="start again with a new cache"):
            model(ids[:, 5:10], cache=cache)


def test_a_prompt_whose_keys_could_not_be_stored_is_not_forgotten(monkeypatch, ids):
    plain, model = pair("Llama", GROUPED, compile=False)
    owner = model._neuron_prepared.generation.get()
    cache = model(ids[:, :8]).cache  # with gradients: its keys are stored when they are needed
    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(owner.graphs, "call", failing_at(owner.graphs.call, 1))
            with pytest.raises(torch.OutOfMemoryError):
                model(ids[:, 8:9], cache=cache)
        assert_close([model(ids[:, 8:9], cache=cache).logits], [plain(ids[:, :9], use_cache=False).logits[:, 8:]])


def test_the_self_check_runs_once_for_a_model(monkeypatch, ids):
    runs = []
    find = check._find

    def counted(*args):
        runs.append(args)
        return find(*args)

    monkeypatch.setattr(check, "_find", counted)
    values = {**GROUPED, "hidden_size": 32, "sliding_window": 7}
    results = []
    for _ in range(2):
        _, model = pair("Mistral", values, compile=False)
        results.append(model.generate(ids, max_new_tokens=3, do_sample=False))
        assert ont.report(model).attention == {"nki (torch)": 2 * 3}
    assert len(runs) == 1 and torch.equal(*results)
    _, model = pair("Mistral", values | {"sliding_window": 8}, compile=False)
    model.generate(ids, max_new_tokens=1, do_sample=False)
    assert len(runs) == 2


def test_the_self_check_finds_what_padding_changes():
    """Its own twin of a model whose mask counts from the end of the keys."""
    config = transformers.GPTNeoConfig(
        vocab_size=320, hidden_size=48, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=256, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.GPTNeoForCausalLM(config).eval()
    ledger = Ledger("GPTNeo")
    owner = bucketed.BucketedGeneration(model, ont.NeuronConfig(), ledger)
    assert "the self check found a difference" in check._find(owner, None, False)["reason"]


def test_ids_that_are_no_integers_are_refused():
    _, model = pair("Llama", GROUPED, compile=False)
    with pytest.raises(ValueError, match="token ids are integers"):
        model.generate(torch.ones(1, 3), max_new_tokens=2)


def test_a_mask_of_fractions_hides_what_is_zero_alone():
    plain, model = pair("Llama", GROUPED, compile=False)
    ids, mask = torch.arange(5, 12)[None], torch.tensor([[0, 0, 0.5, 1, 1, 1, 1]])
    with torch.no_grad():
        found, expected = (each(ids, attention_mask=mask, use_cache=True).logits for each in (model, plain))
    assert (found - expected)[:, 2:].abs().max() <= 1e-5 * expected.abs().max()


def test_positions_that_are_no_integers_take_the_stock_path():
    plain, model = pair("Llama", GROUPED, compile=False)
    call = {"input_ids": torch.arange(5, 12)[None], "position_ids": torch.arange(7)[None] * 1.5, "use_cache": True}
    with torch.no_grad(), pytest.warns(UserWarning, match="position_ids of dtype torch.float32"):
        assert_close([model(**call).logits], [plain(**call).logits])
