"""The one line that names prepare(): for a model that only moved and meets new shapes, and for no other."""

import copy
import logging
import pickle

import pytest
import torch
from transformers import AutoModel, BertModel

import optimum_neuron_torch as ont
from optimum_neuron_torch.integrations import noticing


@pytest.fixture
def moved(tiny_bert, monkeypatch, caplog) -> BertModel:
    monkeypatch.setattr(noticing, "_has_spoken", False)
    caplog.set_level(logging.INFO, logger=noticing.logger.name)
    # Whatever other tests ran first, these shapes are new to the device.
    torch.neuron.synchronize()
    import torch_neuronx

    torch_neuronx.clear_op_tracking()
    return AutoModel.from_pretrained(tiny_bert).to("neuron")


def call(model, lengths, rows: int = 1) -> None:
    with torch.no_grad():
        for length in lengths:
            model(torch.ones(rows, length, dtype=torch.long).to("neuron"))


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == noticing.logger.name]


def test_new_shapes_at_every_call(moved, caplog):
    call(moved, range(3, 40))
    (line,) = lines(caplog)
    assert "BertModel" in line and "prepare(model)" in line
    assert not moved._forward_hooks and moved not in noticing._watched
    call(moved, range(40, 60), rows=2)
    assert len(lines(caplog)) == 1


def test_one_shape_is_no_reason_to_speak(moved, caplog):
    call(moved, [7] * 20)
    assert lines(caplog) == []


@pytest.mark.parametrize("how", ["prepared", "trained", "compiled", "back on the CPU"])
def test_other_models(moved, caplog, how):
    if how == "prepared":
        ont.prepare(moved, ont.NeuronConfig(options={"executor": "aten", "lowering": "off"}))
        call(moved, range(3, 8))
        assert not moved._forward_hooks
    elif how == "trained":
        moved.train()
        call(moved, range(3, 20))
    elif how == "compiled":
        compiled = torch.compile(moved, fullgraph=True, options={"executor": "aten", "lowering": "off"})
        call(compiled, range(3, 8))
    else:
        moved.to("cpu")
        with torch.no_grad():
            for length in range(3, 20):
                moved(torch.ones(1, length, dtype=torch.long))
    assert lines(caplog) == []


def test_copies_and_pickles_work(moved, caplog):
    for other in (copy.deepcopy(moved), pickle.loads(pickle.dumps(moved))):
        call(other, range(3, 20))
    assert lines(caplog) == []


def test_a_model_that_meets_nothing_new_is_left_alone(moved, monkeypatch):
    monkeypatch.setattr(noticing, "MOST_CALLS", 5)
    call(moved, [7] * 5)
    assert not moved._forward_hooks
