"""Loading Diffusers objects onto neuron, and what stays as it was once they are prepared."""

import copy
import inspect
import pickle

import pytest
import torch
from diffusers import AutoPipelineForText2Image, DiffusionPipeline, StableDiffusionPipeline, UNet2DConditionModel

import optimum_neuron_torch
from examples.generate_image import make_pipeline
from optimum_neuron_torch import NeuronConfig
from optimum_neuron_torch.integrations.diffusers import prepare_model, unprepare_model, unprepare_pipeline
from optimum_neuron_torch.wiring.diffusers import ENTRIES


PLACES = {
    "neuron": "neuron:0",
    "neuron:1": "neuron:1",
    "auto": "neuron:0",
    "balanced": "neuron:0",
    torch.device("neuron", 1): "neuron:1",
    1: "neuron:1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_pipeline(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture
def unet(folder):
    return UNet2DConditionModel.from_pretrained(folder / "unet")


def devices_of(*modules: torch.nn.Module) -> set[str]:
    return {str(t.device) for module in modules for t in (*module.parameters(), *module.buffers())}


def is_prepared(obj) -> bool:
    return hasattr(obj, "_neuron_ledger")


def arguments(device="cpu") -> dict:
    torch.manual_seed(1)
    tensors = {"sample": torch.randn(1, 4, 8, 8), "encoder_hidden_states": torch.randn(1, 5, 32)}
    return {**{name: tensor.to(device) for name, tensor in tensors.items()}, "timestep": 3}


@pytest.mark.parametrize("device_map", PLACES, ids=str)
def test_pipelines_end_on_one_core(folder, device_map):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map=device_map)
    assert type(pipe) is StableDiffusionPipeline
    assert devices_of(pipe.unet, pipe.vae, pipe.text_encoder) == {PLACES[device_map]}
    assert all(map(is_prepared, (pipe.unet, pipe.vae, pipe.text_encoder)))
    assert pipe._execution_device == torch.device("cpu")


@pytest.mark.parametrize("device_map", [*PLACES, {"": "neuron:1"}], ids=str)
def test_models_end_on_one_core(folder, device_map):
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet", device_map=device_map)
    assert devices_of(unet) == {"neuron:1" if device_map == {"": "neuron:1"} else PLACES[device_map]}
    assert is_prepared(unet)


@pytest.mark.parametrize("load", [DiffusionPipeline.from_pretrained, UNet2DConditionModel.from_pretrained])
def test_a_core_that_does_not_exist_is_named(folder, load):
    with pytest.raises(ValueError, match=r"'neuron:9' does not exist.*neuron:0"):
        load(folder, device_map="neuron:9")


def test_without_a_device_map_all_is_stock(folder):
    pipe = DiffusionPipeline.from_pretrained(folder)
    assert devices_of(pipe.unet, pipe.vae, pipe.text_encoder) == {"cpu"}
    assert not is_prepared(pipe.unet)


def test_other_device_maps_are_left_to_diffusers(folder):
    assert devices_of(DiffusionPipeline.from_pretrained(folder, device_map="cpu").unet) == {"cpu"}
    with pytest.raises(ValueError, match="neuron_config was given"):
        DiffusionPipeline.from_pretrained(folder, device_map="cpu", neuron_config=NeuronConfig())


def test_neuron_config_false_only_moves(folder):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=False)
    assert devices_of(pipe.unet) == {"neuron:0"}
    assert not is_prepared(pipe.unet)
    assert pipe._execution_device == torch.device("neuron", 0)


def test_automatic_pipelines_are_prepared_too(folder):
    config = NeuronConfig(compile=False)
    pipe = AutoPipelineForText2Image.from_pretrained(folder, device_map="neuron", neuron_config=config)
    assert is_prepared(pipe.unet)


def test_the_configuration_is_saved_with_the_pipeline(folder, tmp_path):
    config = NeuronConfig(options={"executor": "aten"})
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron", neuron_config=config)
    pipe.save_pretrained(tmp_path)
    again = DiffusionPipeline.from_pretrained(tmp_path, device_map="neuron")
    assert again.unet._neuron_exact_calls.config == config
    stock = DiffusionPipeline.from_pretrained(folder)
    for name, tensor in stock.unet.state_dict().items():
        assert torch.equal(again.unet.state_dict()[name].cpu(), tensor)


def test_the_object_stays_what_it_was(unet):
    before = type(unet), inspect.signature(unet.forward), list(unet.state_dict()), set(dir(unet))
    prepare_model(unet, NeuronConfig(compile=False))
    assert (type(unet), inspect.signature(unet.forward), list(unet.state_dict())) == before[:3]
    assert unet.forward.__doc__ == type(unet).forward.__doc__
    assert {name for name in set(dir(unet)) - before[3] if not name.startswith("_")} == set()
    unprepare_model(unet)
    assert set(dir(unet)) == before[3]
    assert "forward" not in vars(unet)


def test_off_the_device_nothing_is_compiled(unet):
    expected = unet(**arguments()).sample
    prepare_model(unet, NeuronConfig())
    assert torch.equal(unet(**arguments()).sample, expected)
    assert optimum_neuron_torch.report(unet).buckets == []


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda unet: pickle.loads(pickle.dumps(unet))], ids=["copy", "pickle"]
)
def test_copies_do_not_answer_with_the_originals_weights(unet, twin):
    prepare_model(unet.to("neuron"), NeuronConfig(compile=False))
    copied = twin(unet)
    with torch.no_grad():
        for parameter in unet.parameters():
            parameter.zero_()
        assert unet(**arguments("neuron")).sample.abs().max() == 0
        assert copied(**arguments("neuron")).sample.abs().max() > 0


def test_preparing_twice_keeps_graphs_and_takes_a_new_configuration(unet):
    prepare_model(unet.to("neuron"), NeuronConfig(compile=False))
    calls = unet._neuron_exact_calls
    assert prepare_model(unet, NeuronConfig(compile=False))._neuron_exact_calls is calls
    assert prepare_model(unet, NeuronConfig(compile=False, strict=("fallback",)))._neuron_exact_calls is not calls


def test_training_mode_is_stock(unet):
    prepare_model(unet.to("neuron"), NeuronConfig())
    unet.train()
    unet(**arguments("neuron")).sample.sum().backward()
    assert unet.conv_in.weight.grad is not None
    assert optimum_neuron_torch.report(unet).buckets == []


def test_answers_come_back_to_where_the_call_came_from(unet):
    prepare_model(unet.to("neuron"), NeuronConfig(compile=False))
    with torch.no_grad():
        assert unet(**arguments()).sample.device.type == "cpu"
        assert unet(**arguments("neuron")).sample.device.type == "neuron"
        assert isinstance(unet(**arguments(), return_dict=False), tuple)


def test_strict_exact_shapes(unet):
    prepare_model(unet.to("neuron"), NeuronConfig(compile=False, strict="exact_shapes"))
    with pytest.raises(RuntimeError, match="strict 'exact_shapes'.*spatial axes cannot be padded"), torch.no_grad():
        unet(**arguments())


def test_unprepared_pipelines_loop_on_the_device_again(folder):
    pipe = DiffusionPipeline.from_pretrained(folder, device_map="neuron")
    unprepare_pipeline(pipe)
    assert not any(map(is_prepared, (pipe.unet, pipe.vae, pipe.text_encoder)))
    assert pipe._execution_device == torch.device("neuron", 0)


def test_undo(folder):
    assert {entry.name for entry in ENTRIES} <= set(optimum_neuron_torch.wiring.wired())
    assert all(entry.upstream for entry in ENTRIES)
    optimum_neuron_torch.unwire()
    try:
        with pytest.raises(NotImplementedError, match="not supported"):
            DiffusionPipeline.from_pretrained(folder, device_map="auto")
    finally:
        optimum_neuron_torch.wire()
