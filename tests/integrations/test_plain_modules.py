"""prepare() on modules that are no Transformers models."""

import copy

import pytest
import torch

import optimum_neuron_torch as ont


CONFIG = ont.NeuronConfig(options={"executor": "aten", "lowering": "off"})


class Net(torch.nn.Module):
    def __init__(this):
        super().__init__()
        this.layer = torch.nn.Linear(4, 3)

    def forward(this, x, scale=1.0):
        return this.layer(x) * scale


class SumsRows(Net):
    def forward(self, x):
        return self.layer(x).sum(0)


class CentresRows(Net):
    def forward(self, x):
        return self.layer(x) - self.layer(x).mean(0)


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * self.calls


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(
    "make",
    [Net, lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()), SumsRows, CentresRows, Counts],
    ids=["module", "sequential", "sums rows", "centres rows", "counts"],
)
@pytest.mark.filterwarnings("ignore")
def test_results_are_the_cpus(make, mode):
    plain = make().eval()
    model = ont.prepare(copy.deepcopy(plain), CONFIG)
    with mode():
        for shape in ((5, 4), (3, 7, 4), (5, 4), (4,), (6, 4)):
            x = torch.rand(shape)
            torch.testing.assert_close(model(x).detach().cpu(), plain(x).detach(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(model(x.to("neuron")).detach().cpu(), plain(x).detach(), rtol=1e-5, atol=1e-5)
