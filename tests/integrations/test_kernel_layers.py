"""RMSNorm, rotary embedding and gated MLPs of Transformers models by kernels: found by what they compute, exchanged
where kernels run, given back.
"""

import builtins
import copy
import dataclasses
import gc
import pickle
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from diffusers.models.activations import GEGLU, GELU, SwiGLU
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from diffusers.models.normalization import FP32LayerNorm
from diffusers.models.normalization import RMSNorm as DiffusersRMSNorm
from diffusers.models.unets.unet_stable_cascade import SDCascadeLayerNorm
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ModernBertConfig,
    MoonshineConfig,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    T5Config,
)
from transformers.models.bert.modeling_bert import BertIntermediate
from transformers.models.cohere import modeling_cohere
from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP, Gemma2RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.glm import modeling_glm
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama import modeling_llama
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm
from transformers.models.llama4 import modeling_llama4
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from transformers.models.modernbert.modeling_modernbert import ModernBertMLP
from transformers.models.moonshine.modeling_moonshine import MoonshineDecoderMLP
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense, T5LayerNorm

import optimum_neuron_torch as ont
from optimum_neuron_torch import NeuronConfig
from optimum_neuron_torch.integrations.kernel_layers import KernelLayers
from optimum_neuron_torch.integrations.layer_recognition import recognise, recognise_rotary
from optimum_neuron_torch.integrations.layer_variants import (
    Experts,
    FusedMLP,
    GatedMLP,
    GatedProjection,
    Halves,
    LayerNorm,
    Norm,
    Rotary,
)
from optimum_neuron_torch.integrations.rotary_functions import as_layer, leave_all, rotary_places
from optimum_neuron_torch.report import StrictError


kernels = pytest.importorskip("kernels")  # of the extra "test"

SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "pad_token_id": 0, "eos_token_id": 1,
    "bos_token_id": 2,
}  # fmt: skip
# Their own checks compare models with themselves, as other tests do.
COMPILED = NeuronConfig(nki="simulate", verify=False, options={"executor": "aten", "lowering": "off"})
SIMULATED = NeuronConfig(nki="simulate", verify=False, compile=False)


def made(config=LlamaConfig, kind=LlamaForCausalLM, **settings):
    """With weights that are not those of a new model: a norm's 1 or 0 would hide how it is used."""
    torch.manual_seed(0)
    model = kind(config(**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.3)
    return model


@pytest.fixture(scope="module")
def llama():
    return made()


def ids(rows=2, length=9):
    return torch.randint(3, 64, (rows, length), generator=torch.Generator().manual_seed(rows + length))


def exchanged(model):
    return Counter(
        type(layer).__name__ for layer in model.modules() if layer is not model and "forward" in vars(layer)
    )


# ---- what a layer is ------------------------------------------------------------------------------------------------


class Halved(torch.nn.Module):
    """An RMSNorm but for a constant."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(16)), 1e-6

    def forward(self, x):
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps) / 2).to(x)


class Gated(torch.nn.Module):
    """A gated MLP of a given activation, with biases, names of its own, and a dropout."""

    def __init__(self, activation, dropout=0.0):
        super().__init__()
        self.w1, self.w2, self.w3 = (torch.nn.Linear(*size) for size in ((8, 12), (12, 8), (8, 12)))
        self.activation, self.dropout = activation, torch.nn.Dropout(dropout)

    def forward(self, x):
        return self.w2(self.dropout(self.activation(self.w1(x)) * self.w3(x)))


class Fused(torch.nn.Module):
    """A gated MLP of one projection for gate and up, and how it takes its halves from that."""

    def __init__(self, halves, activation=F.silu, adapter=False):
        super().__init__()
        self.w1, self.w2 = torch.nn.Linear(8, 24), torch.nn.Linear(12, 8)
        self.halves, self.activation = halves, activation
        if adapter:
            self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        gate, up = self.halves(self.w1(x))
        return self.w2(self.activation(gate) * up)


class Adapted(Fused):
    """As a model that shares an MLP among layers calls it."""

    def forward(self, x, layer=None):
        return super().forward(x)


class InFloat32(torch.nn.Module):
    """A gated MLP that rounds the product alone."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.w3 = (torch.nn.Linear(*size) for size in ((8, 12), (12, 8), (8, 12)))
        self.activation = torch.nn.SiLU()

    def forward(self, x):
        return self.w2((self.activation(self.w1(x).float()) * self.w3(x).float()).to(x.dtype))


class Limited(Gated):
    """A gated MLP that limits what it multiplies."""

    def __init__(self, limit):
        super().__init__(F.silu)
        self.limit = limit

    def forward(self, x):
        up = self.w3(x).clamp(min=-self.limit, max=self.limit)
        return self.w2(self.activation(self.w1(x).clamp(max=self.limit)) * up)


class Plain(torch.nn.Module):
    """Two projections, of which the second is as wide as if it were gate and up of the first."""

    def __init__(self):
        super().__init__()
        self.w1, self.w2, self.activation = torch.nn.Linear(8, 12), torch.nn.Linear(12, 16), torch.nn.SiLU()

    def forward(self, x):
        return self.w2(self.activation(self.w1(x)))


class Convolved(Adapted):
    """The sizes of a mixer of a state-space model."""

    def __init__(self):
        super().__init__(in_halves)
        self.convolution = torch.nn.Conv1d(12, 12, 4)


class RoundedLayerNorm(torch.nn.LayerNorm):
    """LayerNorm that multiplies what is rounded already."""

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, None, None, self.eps) * self.weight + self.bias


class HalvesOfOne(torch.nn.Module):
    """As Diffusers' GEGLU, with another activation."""

    def __init__(self, activation):
        super().__init__()
        self.proj, self.activation = torch.nn.Linear(8, 24), activation

    def forward(self, x):
        up, gate = self.proj(x).chunk(2, dim=-1)
        return up * self.activation(gate)


def in_halves(gate_up):
    return gate_up.chunk(2, dim=-1)


def up_first(gate_up):
    return gate_up.chunk(2, dim=-1)[::-1]


def in_turn(gate_up):
    return gate_up[..., ::2], gate_up[..., 1::2]


def config(kind, **settings):
    return kind(**{**SIZES, **settings})


def experts(kind=MixtralExperts, implementation="grouped_mm", settings=MixtralConfig, **values):
    settings = config(settings, num_local_experts=4, num_experts_per_tok=2, **values)
    settings._experts_implementation = implementation
    return kind(settings)


class LimitedExperts(MixtralExperts):
    def _apply_gate(self, gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return self.act_fn(gate.clamp(max=50.0)) * up


USUAL = ("gate_proj", "up_proj", "down_proj")
KNOWN = {
    "Llama's norm": (lambda: LlamaRMSNorm(32), Norm("weight", "variance_epsilon", 0.0, False)),
    "T5's norm": (lambda: T5LayerNorm(32), Norm("weight", "variance_epsilon", 0.0, False)),
    "Gemma's norm": (lambda: Gemma2RMSNorm(32), Norm("weight", "eps", 1.0, True)),
    "OLMo's norm": (lambda: Olmo2RMSNorm(32), Norm("weight", "variance_epsilon", 0.0, True)),
    "SiLU": (lambda: LlamaMLP(config(LlamaConfig)), GatedMLP(*USUAL, "silu")),
    "GELU": (lambda: Qwen3MLP(config(Qwen3Config, hidden_act="gelu")), GatedMLP(*USUAL, "gelu")),
    "GELU by tanh": (lambda: Gemma2MLP(config(Gemma2Config)), GatedMLP(*USUAL, "gelu_tanh")),
    "square projections": (
        lambda: LlamaMLP(config(LlamaConfig, intermediate_size=32)),
        GatedMLP(*USUAL, "silu"),
    ),
    "biases and other names": (lambda: Gated(F.silu), GatedMLP("w1", "w3", "w2", "silu")),
    "gate and up in one": (
        lambda: Phi3MLP(config(Phi3Config)),
        FusedMLP("gate_up_proj", "down_proj", Halves("silu", up_is_first=False)),
    ),
    "GELU, gate and up in one": (
        lambda: ModernBertMLP(config(ModernBertConfig)),
        FusedMLP("Wi", "Wo", Halves("gelu", up_is_first=False)),
    ),
    "up and gate in one": (
        lambda: MoonshineDecoderMLP(config(MoonshineConfig), "silu"),
        FusedMLP("fc1", "fc2", Halves("silu", up_is_first=True)),
    ),
    "halves of a projection, GELU": (lambda: GEGLU(8, 12), GatedProjection("proj", Halves("gelu", up_is_first=True))),
    "halves of a projection, SiLU": (lambda: SwiGLU(8, 12), GatedProjection("proj", Halves("silu", up_is_first=True))),
    "LayerNorm": (lambda: torch.nn.LayerNorm(32), LayerNorm("weight", "bias", "eps", autocasts=True)),
    "LayerNorm without bias": (
        lambda: torch.nn.LayerNorm(32, bias=False),
        LayerNorm("weight", None, "eps", autocasts=True),
    ),
    "LayerNorm without weights": (
        lambda: torch.nn.LayerNorm(32, elementwise_affine=False),
        LayerNorm(None, None, "eps", autocasts=True),
    ),
    "Cohere's norm": (
        lambda: modeling_cohere.CohereLayerNorm(2048),
        LayerNorm("weight", None, "variance_epsilon"),
    ),
    "in float32 whatever it is given": (lambda: FP32LayerNorm(2048), LayerNorm("weight", "bias", "eps")),
    "PyTorch's RMSNorm": (lambda: torch.nn.RMSNorm(32), Norm("weight", "eps", 0.0, True, autocasts=True)),
    "without weights": (
        lambda: torch.nn.RMSNorm(32, eps=1e-5, elementwise_affine=False),
        Norm(None, "eps", 0.0, False, autocasts=True),
    ),
    "Diffusers' norm": (lambda: DiffusersRMSNorm(32, 1e-6), Norm("weight", "eps", 0.0, False)),
    "Llama 4's of queries": (Llama4TextL2Norm, Norm(None, "eps", 0.0, False)),
    "Gemma 3n's of values": (lambda: Gemma3nRMSNorm(32, with_scale=False), Norm(None, "eps", 0.0, False)),
    "experts": (experts, Experts(Halves("silu", up_is_first=False))),
    "experts of single rows": (
        lambda: experts(implementation="batched_mm", hidden_act="gelu_pytorch_tanh"),
        Experts(Halves("gelu_tanh", up_is_first=False)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_are_known_by_what_they_compute(case, dtype):
    make, variant = KNOWN[case]
    assert recognise(make().to(dtype)) == (variant, None)


UNKNOWN = {
    "a vector for each head": (lambda: modeling_cohere.CohereLayerNorm((4, 8)), "not weight (4, 8)"),
    "a bias after the root of squares": (lambda: DiffusersRMSNorm(32, 1e-6, bias=True), "no RMSNorm"),
    "several dimensions": (lambda: torch.nn.LayerNorm((4, 8)), "not weight (4, 8), bias (4, 8)"),
    "a mean, rounded before the weight": (lambda: RoundedLayerNorm(32), "no LayerNorm"),
    "a norm of channels": (lambda: WanRMS_norm(32), "not gamma (32, 1, 1)"),
    "along another dimension": (lambda: SDCascadeLayerNorm(32), "does not run by itself"),
    "a gate before the norm": (lambda: MambaRMSNormGated(32, 8), "more than rows: gate"),
    "a gate after the norm": (lambda: Qwen3NextRMSNormGated(32), "more than rows: gate"),
    "a sigmoid gates": (lambda: HalvesOfOne(torch.nn.Sigmoid()), "no act(gate) * up of halves"),
    "a constant": (Halved, "no RMSNorm"),
    "another activation": (lambda: Gated(F.relu), "no act"),
    "a limit": (lambda: Limited(10.0), "no act"),
    "a limit that only large numbers meet": (lambda: Limited(1e4), "no act"),
    "rounded once": (InFloat32, "no act"),
    "another activation of halves": (lambda: Fused(in_halves, F.relu), "no act"),
    "gate and up in turn": (lambda: Fused(in_turn), "no act"),
    "further weights": (lambda: Fused(in_halves, adapter=True), "no such weights: norm"),
    "a layer's number": (lambda: Adapted(in_halves), "more than rows"),
    "experts one after the other": (lambda: experts(implementation="eager"), "'eager': a kernel gates them with"),
    "experts with a limit": (lambda: experts(LimitedExperts), "it gates by no act"),
    "experts of other gates": (
        lambda: experts(modeling_gpt_oss.GptOssExperts, settings=GptOssConfig),
        "it gates by no act",
    ),
    "experts gated in their forward": (
        lambda: experts(modeling_llama4.Llama4TextExperts, settings=Llama4TextConfig),
        "gated in its forward",
    ),
    "dropout in training": (lambda: Gated(F.silu, dropout=0.1), "no act"),
    "T5's dropout": (lambda: T5DenseGatedActDense(T5Config(dropout_rate=0.1)), "no act"),
    "rows too wide": (lambda: LlamaRMSNorm(2**16), "rows of"),
    "no epsilon": (lambda: LlamaRMSNorm(32, eps=0.0), "eps"),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_layers_that_look_alike_have_a_reason(case):
    make, reason = UNKNOWN[case]
    variant, found = recognise(make().eval())
    assert variant is None and reason in found


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.GroupNorm(1, 2),
        lambda: torch.nn.BatchNorm1d(2),
        lambda: torch.nn.Dropout(0.1),
        lambda: torch.nn.PReLU(),
        lambda: torch.nn.Linear(8, 8),
        lambda: GELU(8, 12),
        lambda: BertIntermediate(config(BertConfig)),
        Plain,
        Convolved,
    ],
)
def test_others_are_not_spoken_of(make):
    assert recognise(make()) == (None, None)


def test_a_forward_that_needs_more_than_its_rows_has_a_reason():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.ones(4)), 1e-6

        def forward(self, x):
            return self.somewhere_else(x)

    variant, reason = recognise(Odd())
    assert variant is None and "does not run by itself (AttributeError" in reason


# ---- in models ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [(LlamaConfig, LlamaForCausalLM), (Gemma2Config, Gemma2ForCausalLM)])
def test_results_and_runs(family):
    """Logits and tokens of the CPU, by one run of a kernel for each layer."""
    stock = made(*family)
    model = ont.prepare(copy.deepcopy(stock), SIMULATED)
    layers = exchanged(model)
    norms = sum(count for name, count in layers.items() if name.endswith("RMSNorm"))
    assert norms == sum("norm" in name for name, _ in stock.named_parameters()) and layers.total() == norms + 2
    with torch.no_grad():
        expected = stock(ids()).logits
        with ont.nki.simulation() as runs:
            found = model(ids(), use_cache=False).logits.cpu()
    kernels = Counter(run.kernel for run in runs)
    assert (kernels["rms_norm_kernel"], kernels["swiglu_kernel"]) == (norms, 2)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert model.state_dict().keys() == stock.state_dict().keys()
    assert ont.report(model).departures == []
    options = {"max_new_tokens": 4, "do_sample": False, "attention_mask": torch.ones_like(ids())}
    assert torch.equal(model.generate(ids(), **options), stock.generate(ids(), **options))


FUSED = {
    "Phi-3": (lambda: made(Phi3Config, Phi3ForCausalLM), {"Phi3MLP": 2}),
    "Mixtral": (lambda: made(MixtralConfig, MixtralForCausalLM, num_local_experts=4), {"MixtralExperts": 2}),
}


@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("settings", [SIMULATED, COMPILED], ids=["eager", "compiled"])
def test_halves_of_one_projection(case, settings):
    """Logits of the CPU, one run of the kernel for each layer; all its own forwards again afterwards."""
    torch._dynamo.reset()
    make, layers = FUSED[case]
    stock = make()
    model = ont.prepare(copy.deepcopy(stock), settings)
    with torch.no_grad():
        expected = stock(ids()).logits
        with ont.nki.simulation() as runs:
            found = model(ids(), use_cache=False).logits.cpu()
    assert Counter(run.kernel for run in runs)["swiglu_halves_kernel"] == sum(layers.values())
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert ont.report(model).departures == []
    assert f"{sum(layers.values())} {next(iter(layers))}" in str(model._neuron_prepared.layers)
    for prepared in (copy.deepcopy(model), model):
        ont.unprepare(prepared)
        assert all(
            not {"forward", "_apply_gate", "_neuron_variant", "_neuron_activations"} & vars(part).keys()
            for part in prepared.modules()
        )


@pytest.mark.parametrize("case", ["Llama", *FUSED])
@pytest.mark.parametrize("settings", [SIMULATED, COMPILED], ids=["eager", "compiled"])
def test_an_activation_put_there_afterwards_is_used(case, settings):
    """By the layer's own forward, in copies too."""
    torch._dynamo.reset()
    stock = (FUSED[case][0] if case in FUSED else made)()
    model = ont.prepare(copy.deepcopy(stock), settings)
    for part in (*stock.modules(), *model.modules()):
        for name in part._modules.keys() & {"act_fn", "activation_fn"}:
            setattr(part, name, torch.nn.ReLU())
    with torch.no_grad():
        expected = stock(ids()).logits
        for prepared in (model, copy.deepcopy(model)):
            with ont.nki.simulation() as runs:
                found = prepared(ids(), use_cache=False).logits.cpu()
            assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
            assert not any("swiglu" in run.kernel for run in runs)


@pytest.mark.parametrize("case", FUSED)
def test_halves_of_one_projection_at_bfloat16(case):
    stock = FUSED[case][0]()
    with torch.no_grad():
        expected = stock(ids()).logits
        own = copy.deepcopy(stock).bfloat16()(ids()).logits.float()
        found = ont.prepare(copy.deepcopy(stock).bfloat16(), SIMULATED)(ids(), use_cache=False).logits.float().cpu()
    assert (found - expected).abs().mean() <= 1.5 * (own - expected).abs().mean()


@pytest.mark.parametrize("case", ["Llama", *FUSED])
def test_gradients(case):
    """Of all weights, in training mode."""
    stock = FUSED[case][0]() if case in FUSED else made()

    def gradients(model, tokens):
        model.train().zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: weight.grad.cpu() for name, weight in model.named_parameters()}

    expected = gradients(copy.deepcopy(stock), ids())
    model = ont.prepare(copy.deepcopy(stock), SIMULATED)
    with ont.nki.simulation() as runs:
        found = gradients(model, ids().to("neuron"))
    gating = "swiglu_halves_backward_kernel" if case in FUSED else "swiglu_backward_kernel"
    assert {"rms_norm_backward_kernel", gating} <= {run.kernel for run in runs}
    for name, gradient in found.items():
        assert (gradient - expected[name]).abs().max() <= 1e-5 * max(1e-3, expected[name].abs().max()), name


class Mixed(torch.nn.Module):
    """All that is known of norms and halves, one after the other."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.LayerNorm(8), GEGLU(8, 12), torch.nn.RMSNorm(12), SwiGLU(12, 8), FP32LayerNorm(8),
            torch.nn.Linear(8, 8), torch.nn.LayerNorm(8, elementwise_affine=False),
            torch.nn.Linear(8, 8), DiffusersRMSNorm(8, 1e-6, elementwise_affine=False),
            torch.nn.Linear(8, 8), modeling_cohere.CohereLayerNorm(8),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x)


MIXED = {"layer_norm_kernel": 4, "rms_norm_kernel": 2, "swiglu_halves_kernel": 2}


def mixed():
    torch.manual_seed(0)
    model = Mixed().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model, torch.randn(3, 5, 8)


def forward_and_gradients(model, rows, autocast=None):
    """Output, and gradients of it, all on the CPU and in float32."""
    rows = rows.clone().requires_grad_()
    with torch.autocast(rows.device.type, enabled=autocast is not None, dtype=autocast):
        output = model(rows)
    (output.float() * torch.arange(1.0, 9.0, device=rows.device)).sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return {"output": output.detach(), "rows": rows.grad, **gradients}


def distance(found, expected):
    return {name: (tensor.cpu().float() - expected[name].cpu().float()).abs() for name, tensor in found.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_layers_of_pytorch_and_diffusers(way, dtype):
    """Outputs and gradients of the CPU, by one run of a kernel for each layer; their own forwards afterwards."""
    torch._dynamo.reset()
    stock, rows = mixed()
    expected = forward_and_gradients(copy.deepcopy(stock), rows)
    model = ont.prepare(copy.deepcopy(stock).to("neuron", dtype).train(), SIMULATED)
    assert ont.report(model).departures == [] and exchanged(model).total() == 8
    call = torch.compile(model, backend="neuron", fullgraph=True) if way == "compiled" else model
    try:
        with ont.nki.simulation() as runs:
            found = forward_and_gradients(call, rows.to("neuron", dtype))
    finally:  # PyTorch's attention, which is exchanged once a user compiles
        ont.unwire()
        ont.wire()
    found = {name.removeprefix("_orig_mod."): tensor for name, tensor in found.items()}
    kernels = Counter(run.kernel for run in runs)
    assert {name: kernels[name] for name in MIXED} == MIXED
    assert all(kernels[name.replace("_kernel", "_backward_kernel")] == count for name, count in MIXED.items())
    assert {tensor.dtype for tensor in found.values()} == {dtype}
    if dtype is torch.float32:
        for name, error in distance(found, expected).items():
            assert error.max() <= 1e-5 * expected[name].abs().max(), name
    else:
        own = distance(forward_and_gradients(copy.deepcopy(stock).to(dtype), rows.to(dtype)), expected)
        for name, error in distance(found, expected).items():
            assert error.mean() <= 1.5 * own[name].mean() + 1e-3 * expected[name].abs().max(), name
    ont.unprepare(model)
    assert exchanged(model) == {}


def test_autocast_makes_float32_of_what_it_makes_float32_of():
    """With the dtypes and numbers of the same layers on the device, where no kernel runs."""
    stock, rows = mixed()
    model = ont.prepare(copy.deepcopy(stock).to("neuron").train(), SIMULATED)
    found = forward_and_gradients(model, rows.to("neuron"), torch.bfloat16)
    expected = forward_and_gradients(stock.to("neuron").train(), rows.to("neuron"), torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in found.items()} == {k: v.dtype for k, v in expected.items()}
    for name, error in distance(found, expected).items():
        assert error.mean() <= 0.01 * expected[name].abs().max(), name
    norm = copy.deepcopy(model.layers[0])
    with torch.autocast("neuron", torch.bfloat16), ont.nki.simulation() as runs:
        assert norm(torch.randn(3, 8, device="neuron", dtype=torch.bfloat16)).dtype is torch.float32
    assert [run.kernel for run in runs] == ["layer_norm_kernel"]


def test_vectors_of_another_dtype_and_further_arguments_are_the_layers_own():
    """A LayerNorm that stays float32 takes 16-bit rows as it does without kernels."""
    model = ont.prepare(torch.nn.Sequential(FP32LayerNorm(8), GEGLU(8, 12)).to("neuron"), SIMULATED)
    rows = torch.randn(3, 8).bfloat16()
    with ont.nki.simulation() as runs:
        found = model[0](rows.to("neuron"))
        assert runs == [] and torch.equal(found.cpu(), FP32LayerNorm(8)(rows))
        model[1](found.float(), scale=None)
        assert runs == []


def test_a_unet_of_diffusers():
    model = UNet2DConditionModel(
        sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=8, cross_attention_dim=8,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip
    inputs = {"sample": torch.randn(1, 4, 8, 8), "timestep": 3, "encoder_hidden_states": torch.randn(1, 5, 8)}
    with torch.no_grad():
        expected = model(**inputs).sample
    prepared = ont.prepare(copy.deepcopy(model), SIMULATED)
    blocks = sum(isinstance(layer, GEGLU) for layer in model.modules())
    assert exchanged(prepared) == {"LayerNorm": 3 * blocks, "GEGLU": blocks} and blocks == 4
    with torch.no_grad(), ont.nki.simulation() as runs:
        found = prepared(**inputs).sample.cpu()
        assert exchanged(copy.deepcopy(prepared)) == exchanged(prepared)
    kernels = Counter(run.kernel for run in runs)
    assert (kernels["layer_norm_kernel"], kernels["swiglu_halves_kernel"]) == (3 * blocks, blocks)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert exchanged(ont.unprepare(prepared)) == {}


def test_gated_norms_are_in_the_report():
    settings = config(Mamba2Config, num_heads=4, head_dim=16, state_size=8, n_groups=1, expand=2)
    rows = ont.report(ont.prepare(Mamba2ForCausalLM(settings), SIMULATED)).departures
    (row,) = [row for row in rows if row["where"] == "MambaRMSNormGated"]
    assert row["kind"] == "kernels" and row["reason"].endswith("more than rows: gate") and row["calls"] == 2


def test_without_kernels_nothing_is_exchanged(llama):
    model = ont.prepare(copy.deepcopy(llama), NeuronConfig(verify=False, compile=False))
    assert exchanged(model) == {}


def test_prepared_while_kernels_run(llama):
    with ont.nki.simulation():
        model = ont.prepare(copy.deepcopy(llama), NeuronConfig(verify=False, compile=False))
        assert exchanged(model).total() == 7
    tokens = ids().to("neuron")
    with torch.no_grad(), ont.nki.simulation() as runs:
        simulated = model.train()(tokens, use_cache=False).logits  # not in buckets
    assert {"rms_norm_kernel", "swiglu_kernel"} <= {run.kernel for run in runs}
    with torch.no_grad():
        torch.testing.assert_close(model(tokens, use_cache=False).logits, simulated, rtol=1e-5, atol=1e-5)


def test_unprepare_gives_forwards_back(llama):
    model = ont.prepare(copy.deepcopy(llama), SIMULATED)
    ont.unprepare(model)
    assert exchanged(model) == {}
    assert not hasattr(LlamaMLP, "kernel_layer_name") and not hasattr(LlamaMLP, "kernel_condition")
    assert all(not name.startswith("_neuron_") for layer in model.modules() for name in vars(layer))


def rotary_function():
    return modeling_llama.apply_rotary_pos_emb


@pytest.fixture
def stock_function():
    """What Llama's code calls while no model is prepared: a layer only where Transformers makes it one."""
    gc.collect()  # models of other tests that call it
    leave_all()
    return rotary_function()


def test_copies_run_their_own_layers(llama):
    model = ont.prepare(copy.deepcopy(llama), SIMULATED)
    twin = copy.deepcopy(model)
    assert exchanged(twin) == exchanged(model)
    for layer in twin.modules():
        if layer is not twin and "forward" in vars(layer):
            assert vars(layer)["forward"].__self__ is layer
    ont.unprepare(twin)
    assert exchanged(twin) == {} and exchanged(model).total() == 7


def test_pickled_models_have_their_own_forwards(llama, stock_function):
    if isinstance(stock_function, torch.nn.Module):
        pytest.skip("models that hold functions as layers cannot be pickled")
    model = ont.prepare(copy.deepcopy(llama), SIMULATED)
    loaded = pickle.loads(pickle.dumps(model)).to("cpu")
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids()).logits, llama(ids()).logits)
    assert exchanged(ont.prepare(loaded, SIMULATED)).total() == 7
    assert exchanged(ont.unprepare(loaded)) == {}


def test_pickled_experts_have_their_own_gates():
    """As in the graphs that are stored, which else are made twice."""
    layer = experts()
    exchanged = KernelLayers(layer)
    assert exchanged.exchange(layer, recognise(layer)[0]) is None
    loaded = pickle.loads(pickle.dumps(layer))
    gate_up = torch.randn(3, 96)
    assert torch.equal(loaded._apply_gate(gate_up), layer._apply_gate(gate_up))
    assert vars(loaded)["_apply_gate"].__self__ is loaded


def test_on_the_cpu_layers_are_their_own(llama):
    model = ont.prepare(copy.deepcopy(llama), SIMULATED).to("cpu")
    with torch.no_grad(), ont.nki.simulation() as runs:
        found = model(ids()).logits
    assert not {"rms_norm_kernel", "swiglu_kernel"} & {run.kernel for run in runs}
    with torch.no_grad():
        torch.testing.assert_close(found, llama(ids()).logits, rtol=1e-5, atol=1e-5)


def test_bfloat16(llama):
    """No further from float32 than half as much again as the CPU's own bfloat16."""
    with torch.no_grad():
        expected = llama(ids()).logits
        own = copy.deepcopy(llama).bfloat16()(ids()).logits.float()
        model = ont.prepare(copy.deepcopy(llama).bfloat16(), SIMULATED)
        found = model(ids(), use_cache=False).logits.float().cpu()
    for measure in (torch.max, torch.mean):
        assert measure((found - expected).abs()) <= 1.5 * measure((own - expected).abs())


# ---- reported -------------------------------------------------------------------------------------------------------


def test_reasons_are_in_the_report(llama):
    model = copy.deepcopy(llama)
    model.model.norm.forward = model.model.norm.forward
    model.model.layers[0].mlp.act_fn = torch.nn.ReLU()
    report = ont.report(ont.prepare(model, SIMULATED))
    rows = {(row["kind"], row["where"]): row["reason"] for row in report.departures}
    assert "a forward of its own" in rows["kernels", "LlamaRMSNorm"]
    assert "act(gate) * up" in rows["kernels", "LlamaMLP"]
    assert exchanged(model) == {"LlamaMLP": 1, "LlamaRMSNorm": 5}  # of which one is its own
    ont.unprepare(model)
    assert exchanged(model) == {"LlamaRMSNorm": 1}


def test_experts_that_are_gated_otherwise_are_in_the_report_once():
    settings = {"num_local_experts": 4, "num_experts_per_tok": 2}
    model = made(MixtralConfig, MixtralForCausalLM, **settings)
    model.set_experts_implementation("eager")
    rows = ont.report(ont.prepare(model, SIMULATED)).departures
    (row,) = [row for row in rows if row["where"] == "MixtralExperts"]
    assert row["kind"] == "kernels" and "'eager'" in row["reason"] and "'grouped_mm'" in row["reason"]
    with pytest.raises(StrictError, match="strict 'kernels'.*MixtralExperts"):
        ont.prepare(ont.unprepare(model), NeuronConfig(nki="simulate", strict=("kernels",)))


def test_strict_makes_them_errors_and_leaves_no_layer_exchanged(llama):
    model = copy.deepcopy(llama)
    model.model.layers[1].mlp.act_fn = torch.nn.ReLU()
    strict = NeuronConfig(nki="simulate", strict=("kernels",))
    with pytest.raises(StrictError, match="strict 'kernels'.*LlamaMLP"):
        ont.prepare(model, strict)
    assert exchanged(model) == {}


def test_without_the_package_that_is_reported(llama, monkeypatch):
    stock = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "kernels":
            raise ImportError("No module named 'kernels'")
        return stock(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    model = ont.prepare(copy.deepcopy(llama), SIMULATED)
    monkeypatch.undo()
    (row,) = ont.report(model).departures
    assert row["kind"] == "kernels" and "No module named 'kernels'" in row["reason"] and "pip install" in row["reason"]
    assert exchanged(model) == {}


# ---- rotary embedding -----------------------------------------------------------------------------------------------


ROTATIONS = {
    "halves": (modeling_llama.apply_rotary_pos_emb, Rotary(False, False, False)),
    "halves of a part": (modeling_gpt_neox.apply_rotary_pos_emb, Rotary(False, False, False)),
    "neighbours": (modeling_cohere.apply_rotary_pos_emb, Rotary(True, False, True)),
    "neighbours by half the cosines": (modeling_glm.apply_rotary_pos_emb, Rotary(True, True, False)),
}


@pytest.mark.parametrize("case", ROTATIONS)
def test_rotations_are_known_by_what_they_compute(case):
    function, variant = ROTATIONS[case]
    with ont.nki.simulation() as runs:
        assert recognise_rotary(as_layer(function)) == (variant, None)
    assert runs == []


def backwards(q, k, cos, sin, unsqueeze_dim=1):
    return modeling_gpt_neox.apply_rotary_pos_emb(q, k, cos, -sin, unsqueeze_dim)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (modeling_gpt_oss.apply_rotary_pos_emb, "as wide as its cosines"),
        (backwards, "no rotation"),
        (lambda q, cos, sin: q, "other arguments"),
    ],
)
def test_other_rotations_have_a_reason(function, reason):
    variant, found = recognise_rotary(as_layer(function))
    assert variant is None and reason in found


@pytest.mark.parametrize("settings", [SIMULATED, COMPILED], ids=["eager", "compiled"])
def test_models_rotate_by_the_kernel(settings):
    torch._dynamo.reset()
    stock = made()
    with torch.no_grad():
        expected = stock(ids()).logits
    model = ont.prepare(copy.deepcopy(stock), settings)
    with torch.no_grad(), ont.nki.simulation() as runs:
        found = model(ids(), use_cache=False).logits.cpu()
        torch.testing.assert_close(stock(ids()).logits, expected)  # it calls the same function, on the CPU
    kernels_run = Counter(run.kernel for run in runs)
    names = ("rope", "rms_norm", "swiglu", "flash_attention")
    assert [kernels_run[f"{name}_kernel"] for name in names] == [2, 5, 2, 2]
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    ont.unprepare(model)


def test_a_function_is_exchanged_while_a_model_that_calls_it_is_prepared(stock_function):
    model = ont.prepare(made(), SIMULATED)
    other = ont.prepare(copy.deepcopy(model), SIMULATED)
    layer = rotary_function()
    assert "forward" in vars(layer)
    ont.unprepare(model)
    assert rotary_function() is layer and "forward" in vars(layer)
    ont.unprepare(other)
    assert rotary_function() is stock_function and "forward" not in vars(layer)
    assert not [row for row in ont.report(ont.prepare(model, SIMULATED)).departures if row["kind"] == "kernels"]
    ont.unprepare(model)
    assert rotary_function() is stock_function


def test_a_function_that_somebody_put_there_meanwhile_stays(stock_function, monkeypatch):
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", stock_function)  # taken back after the test
    model = ont.prepare(made(), SIMULATED)
    modeling_llama.apply_rotary_pos_emb = backwards
    ont.unprepare(model)
    assert rotary_function() is backwards
    report = ont.report(ont.prepare(model, SIMULATED))
    reasons = {row["where"]: row["reason"] for row in report.departures if row["kind"] == "kernels"}
    assert reasons == {
        f"apply_rotary_pos_emb of {modeling_llama.__name__}": "it is no rotation of halves, or of neighbours, by its "
        "cosines and sines"
    }
    ont.unprepare(model)
    assert rotary_function() is backwards


def test_rotations_along_another_axis_and_by_other_dtypes(stock_function):
    """(B, S, H, D), which some models have, and float32 cosines of bfloat16 heads, which no kernel takes."""
    model = ont.prepare(made(), SIMULATED)
    generator = torch.Generator().manual_seed(0)
    q, k, cos, sin = (torch.randn(s, generator=generator) for s in ((2, 5, 4, 8), (2, 5, 2, 8), (1, 5, 8), (1, 5, 8)))
    moved = [tensor.to("neuron") for tensor in (q, k, cos, sin)]
    expected = stock_function(q, k, cos, sin, 2)
    with ont.nki.simulation() as runs:
        found = rotary_function()(*moved, unsqueeze_dim=2)
    assert [run.kernel for run in runs] == ["rope_kernel"]
    for output, reference in zip(found, expected, strict=True):
        torch.testing.assert_close(output.cpu(), reference, rtol=1e-5, atol=1e-5)
    with ont.nki.simulation() as runs:
        rotary_function()(moved[0].bfloat16(), moved[1].bfloat16(), *moved[2:], unsqueeze_dim=2)
    assert runs == []
    ont.unprepare(model)


REFUSED = {
    "rotary embedding": (lambda: made(Olmo2Config, Olmo2ForCausalLM).bfloat16(), "dtypes bfloat16, float32"),
    "LayerNorm": (lambda: with_wide_norms(made(GPT2Config, GPT2LMHeadModel).bfloat16()), "a vector of torch.float32"),
}


def with_wide_norms(model):
    for part in model.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.float()
    return model


@pytest.mark.parametrize("settings", [SIMULATED, COMPILED], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", REFUSED)
def test_calls_that_no_kernel_takes_are_reported(case, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path))
    make, reason = REFUSED[case]
    for graphs in ((1, 0), (0, 1)):  # traced, then from the store
        torch._dynamo.reset()
        model = ont.prepare(make(), settings)
        with torch.no_grad(), ont.nki.simulation() as runs:
            found = model(ids(), use_cache=False).logits.cpu()
            expected = make()(ids()).logits
        assert runs and (found - expected).abs().max() <= 2e-2 * expected.abs().max()
        report = ont.report(model)
        assert settings is SIMULATED or (report.graphs, report.cached) == graphs
        (row,) = report.departures
        assert row["kind"] == "kernels"
        assert row["reason"].startswith(case) and reason in row["reason"]
        ont.unprepare(model)
    model = ont.prepare(make(), dataclasses.replace(settings, strict={"kernels"}))
    with pytest.raises(StrictError, match=reason), torch.no_grad():
        model(ids(), use_cache=False)
    ont.unprepare(model)


def test_functions_stay_what_they_are_while_nothing_is_wired(stock_function):
    ont.unwire()
    try:
        assert list(rotary_places(made())) == [] or isinstance(stock_function, torch.nn.Module)
    finally:
        ont.wire()
