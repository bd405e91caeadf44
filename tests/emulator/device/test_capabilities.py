"""The capability table: well-formed, true of this torch's operators, and known of what real models run."""

import json
import warnings
from collections import Counter

import pytest
import torch

from optimum_neuron_torch.emulator import device
from optimum_neuron_torch.emulator.device import strict_mode
from optimum_neuron_torch.emulator.device.capabilities import TABLE, capabilities, family_of


DOCUMENT = json.loads(TABLE.read_text())
ROWS = DOCUMENT["operations"]


@pytest.fixture(scope="module")
def operators() -> set[str]:
    """All ATen overloads of this torch, as "aten::add.Tensor"."""
    return {name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}


def test_rows_are_sorted_unique_and_sourced():
    names = [row["op"] for row in ROWS]
    assert names == sorted(set(names))
    assert {row["state"] for row in ROWS} == {"native", "cpu", "unknown"}
    used = {row["source"] for row in (*ROWS, *DOCUMENT["dtypes"])}
    assert used == set(DOCUMENT["sources"])
    assert all(set(row) <= {"op", "state", "source", "note"} for row in ROWS)


def test_every_row_names_an_operator_of_torch(operators):
    families = {family_of(name) for name in operators}
    missing = [row["op"] for row in ROWS if row["op"] not in operators | families]
    assert missing == []


def test_no_row_is_hidden_by_another():
    """A family's row beside rows of its overloads would be read as the whole truth."""
    families = {row["op"] for row in ROWS if row["op"].endswith(".*")}
    overloads = [row["op"] for row in ROWS if not row["op"].endswith(".*")]
    assert [name for name in overloads if families & {family_of(name), family_of(name, in_place=True)}] == []


def test_what_follows_an_out_form_is_structured():
    """The source "beta-structured" rests on PyTorch: its structured kernels call the out= form."""
    key = "CompositeExplicitAutogradNonFunctional"
    for row in ROWS:
        if row["source"] == "beta-structured" and not row["op"].endswith(".*"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key(row["op"], key), row


@pytest.mark.parametrize(
    ("op", "state"),
    [
        ("aten::add.Tensor", "native"),
        ("aten::add_.Tensor", "native"),
        ("aten::add.out", "native"),
        ("aten::max.dim", "native"),
        ("aten::view", "native"),
        ("aten::transpose.int", "native"),
        ("aten::linalg_qr", "cpu"),
        ("aten::normal_", "cpu"),
        ("aten::native_group_norm", "unknown"),
        ("aten::lgamma", "unknown"),
        ("mylib::kernel", "unknown"),
        ("no namespace", "unknown"),
    ],
)
def test_states(op, state):
    assert capabilities().state_of(op) == state


def test_strict_mode_reads_the_table_as_python_does(neuron):
    """In C++ the rows are looked up again: overload, family, in-place form."""
    x = torch.rand(3, 3, device=neuron)
    calls = {
        "aten::add_.Tensor": lambda: x.add_(x),
        "aten::max.dim": lambda: x.max(dim=1),
        "aten::lgamma": lambda: x.lgamma(),
        "aten::lgamma_": lambda: x.clone().lgamma_(),
        "aten::floor_": lambda: x.clone().floor_(),
        "aten::argmax": lambda: x.argmax(),
        "aten::linalg_qr": lambda: torch.linalg.qr(x),
        "aten::normal_": lambda: x.normal_(),
    }
    kinds = {"cpu": "fallback", "unknown": "unknown"}
    for op, call in calls.items():
        state = capabilities().state_of(op)
        with device.strict("fallback", "unknown"):
            if state == "native":
                call()
                continue
            with pytest.raises(RuntimeError, match=rf"strict mode \({kinds[state]}\): {op.replace('.', '[.]')} "):
                call()


def test_every_strict_dtype_kind_is_sourced():
    kinds = {fact.strict for fact in capabilities().dtypes if fact.strict}
    assert kinds == {"float64", "int64", "complex"} and kinds <= set(strict_mode.KINDS)
    assert all(isinstance(getattr(torch, fact.dtype), torch.dtype) for fact in capabilities().dtypes)


def _llama_training_step() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).to("neuron").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.arange(32).reshape(2, 16).to("neuron")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()


def _unet_forward() -> None:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    model = model.to("neuron").eval()
    with torch.no_grad():
        model(torch.ones(1, 4, 8, 8).to("neuron"), torch.tensor(10).to("neuron"), torch.ones(1, 5, 16).to("neuron"))


@pytest.mark.parametrize(
    ("run", "unknown"),
    [
        (_llama_training_step, []),
        (_unet_forward, ["aten::native_group_norm", "aten::upsample_nearest2d"]),
    ],
)
def test_what_models_run_is_known(neuron, run, unknown):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run()
    executed = device.executed_ops()
    states = Counter(map(capabilities().state_of, executed))
    print(f"{run.__name__}: {len(executed)} operations run eagerly, {dict(states)}")
    assert len(executed) > 15 and states["native"] == len(executed) - len(unknown)
    assert device.unknown_ops() == unknown and device.fallback_ops() == []
