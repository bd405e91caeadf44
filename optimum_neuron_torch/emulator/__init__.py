"""The stand-in for the Neuron SDK on machines without Trainium: a `neuron` device, its compiler, `torch_neuronx`.

PyTorch calls `autoload` at the end of `import torch`, through the entry point `torch.backends: neuron_emulator`. This
file must not import torch itself, or importing it first would find itself half made.
"""


def autoload() -> None:
    """Makes the emulated neuron device available, unless a native one or another accelerator is there.

    Never raises, since PyTorch turns any exception here into a failing `import torch`: what is wrong is warned about
    once and raised where the device is first used.
    """
    try:
        from .device.autoload import install

        install()
    except Exception as error:
        from .device.autoload import warn

        warn(f"The emulated neuron device could not be set up: {type(error).__name__}: {error}")
