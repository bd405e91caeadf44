"""What FSDP asks of a device: streams, events, freed storages, pinned memory. One rank: no collective matters."""

import subprocess
import sys

import pytest


PROGRAM = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("cpu:fake,neuron:fake", rank=0, world_size=1, store=FakeStore())
x = torch.randn(4, 8)


def losses(policy=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)])
    where = "cpu" if policy is None else "neuron"
    for layer in [*model, model] if policy else []:
        fully_shard(layer, mesh=init_device_mesh(where, (1,)), offload_policy=policy)
    assert policy is None or model[0].weight.device.type == ("cpu" if type(policy) is CPUOffloadPolicy else where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(x.to(where)).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


expected = list(losses())
assert len(set(expected)) == 3
for policy in (OffloadPolicy(), CPUOffloadPolicy(pin_memory=True)):
    assert list(losses(policy)) == expected, policy
print("same")
"""


@pytest.mark.slow
def test_fully_shard():
    """Losses of three steps are the CPU's, with the weights on the device and offloaded to pinned memory."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200)
    assert result.stdout.strip().endswith("same"), result.stderr
