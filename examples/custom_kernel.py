"""An NKI kernel of your own in a model: squared ReLU, with its gradient, as an operator of PyTorch.

It is written, simulated, measured, registered, trained through, and compiled into the one graph of a Nemotron model.

python examples/custom_kernel.py [--rows 4096] [--output DIRECTORY]
"""

import argparse
from pathlib import Path

import torch
import torch_neuronx
from transformers import NemotronConfig, NemotronForCausalLM

import nki
import nki.isa as nisa
import nki.language as nl


ROWS, COLUMNS = 128, 2048  # of a tile: all partitions, and enough bytes for a DMA to be worth its start


@nki.jit
def relu2_kernel(x_NF):
    """max(x, 0)^2 of (N, F), any N and F; the cores take turns at tiles."""
    result_NF = nl.ndarray(x_NF.shape, x_NF.dtype, buffer=nl.shared_hbm)
    for rows, columns in _tiles(x_NF.shape):
        x = _loaded(x_NF, rows, columns)
        # (x max 0) * x, one instruction of the Vector Engine
        nisa.scalar_tensor_tensor(dst=x, data=x, op0=nl.maximum, operand0=0.0, op1=nl.multiply, operand1=x)
        nisa.dma_copy(dst=result_NF[rows, columns], src=x)
    return result_NF


@nki.jit
def relu2_backward_kernel(grad_NF, x_NF):
    """2 * max(x, 0) * grad."""
    result_NF = nl.ndarray(x_NF.shape, x_NF.dtype, buffer=nl.shared_hbm)
    for rows, columns in _tiles(x_NF.shape):
        x, grad = _loaded(x_NF, rows, columns), _loaded(grad_NF, rows, columns)
        nisa.tensor_scalar(dst=x, data=x, op0=nl.maximum, operand0=0.0, op1=nl.multiply, operand1=2.0)
        nisa.tensor_tensor(dst=x, data1=x, data2=grad, op=nl.multiply)
        nisa.dma_copy(dst=result_NF[rows, columns], src=x)
    return result_NF


def _tiles(shape):
    """The tiles of this core, as slices of rows and columns. Plain Python: it runs when the kernel is traced."""
    tiles = [
        (slice(row, min(row + ROWS, shape[0])), slice(column, min(column + COLUMNS, shape[1])))
        for row in range(0, shape[0], ROWS)
        for column in range(0, shape[1], COLUMNS)
    ]
    return tiles[nl.program_id(0) :: nl.num_programs(0)]


def _loaded(source_NF, rows, columns):
    tile = nl.ndarray((rows.stop - rows.start, columns.stop - columns.start), source_NF.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=source_NF[rows, columns])
    return tile


# The operators: typed functions that launch a kernel on the cores of a logical NeuronCore.

CORES = int(torch_neuronx.utils.get_lnc_setting())


@torch_neuronx.nki_op("my_kernels::relu2", mutates_args=())
def relu2(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0)^2, of any shape."""
    return relu2_kernel[CORES](x.reshape(-1, x.shape[-1]).contiguous()).reshape(x.shape)


@torch_neuronx.nki_op("my_kernels::relu2_backward", mutates_args=())
def relu2_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    rows = (tensor.reshape(-1, x.shape[-1]).contiguous() for tensor in (grad, x))
    return relu2_backward_kernel[CORES](*rows).reshape(x.shape)


relu2.register_autograd(
    lambda ctx, grad: relu2_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class SquaredReLU(torch.nn.Module):
    """The activation of Nemotron, by the kernel on neuron and by torch elsewhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return relu2(x) if x.device.type == "neuron" else x.relu().square()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--output", type=Path, help="directory for timeline.png")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    simulate_and_measure(torch.randn(arguments.rows, 4096, dtype=torch.bfloat16), arguments.output)
    train_and_compile()


def simulate_and_measure(x: torch.Tensor, output: Path | None) -> None:
    """The kernel against its definition, on host tensors, with its report."""
    with nki.simulation() as reports:
        result = relu2_kernel[CORES](x)
    torch.testing.assert_close(result, x.relu().square())
    print(reports[0])
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        reports[0].plot(output / "timeline.png")
        print(f"timeline: {output / 'timeline.png'}")


def train_and_compile() -> None:
    """A tiny Nemotron whose activations are kernels: gradients, and logits of one graph, against the CPU."""
    config = NemotronConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
        num_key_value_heads=2,
    )  # fmt: skip
    host = NemotronForCausalLM(config)
    ids = torch.randint(0, 128, (2, 12))
    host(input_ids=ids, labels=ids).loss.backward()

    device = NemotronForCausalLM(config)
    device.load_state_dict(host.state_dict())
    for layer in device.model.layers:
        layer.mlp.act_fn = SquaredReLU()
    device, ids = device.to("neuron"), ids.to("neuron")

    with nki.simulation() as reports:
        device(input_ids=ids, labels=ids).loss.backward()
    for mine, theirs in zip(device.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-6)
    print(f"training step: gradients as on the CPU, {len(reports)} kernels ran")

    compiled = torch.compile(device.eval(), backend="neuron", fullgraph=True, dynamic=False)
    with torch.no_grad(), nki.simulation() as reports:
        logits = compiled(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(logits.cpu(), host(input_ids=ids.cpu()).logits, rtol=1e-4, atol=1e-5)
    print(f"one graph: logits as on the CPU, {len(reports)} kernels ran in it")


if __name__ == "__main__":
    main()
