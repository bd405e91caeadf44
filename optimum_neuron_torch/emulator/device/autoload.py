"""The steps that make the emulated device available: decide, name it, load the extension, add `torch_neuronx`."""

import logging
import warnings

from . import environment, extension, presence


logger = logging.getLogger("optimum_neuron_torch.emulator")

_started = False


def install() -> None:
    """Makes `torch.device("neuron")` the emulated device, once per process, if `presence` says so."""
    global _started
    if _started:  # also where importing one of our own modules imports torch, which calls us again
        return
    _started = True

    _register_log_names()
    _add_nki()
    decision = presence.decide()
    if not decision.stands_in:
        logger.info("The emulated neuron device stays out: %s.", decision.reason)
        return

    # Named even where the extension is broken: torch.device("neuron") must parse for the error to be a helpful one.
    _name_backend()
    _load_extension()
    _add_facade()
    _install_wiring()
    if extension.is_loaded():
        logger.info(
            "%s: torch.device('neuron') is emulated by optimum-neuron-torch on the CPU, and is now the current "
            "accelerator. NEURON_EMULATOR=0 switches it off.",
            decision.reason,
        )
        _name_ignored_variables()


def _name_ignored_variables() -> None:
    """One line for what is set for the native package and changes nothing here."""
    ignored = environment.ignored_variables()
    if ignored:
        reasons = "; ".join(f"{name} ({why})" for name, why in sorted(ignored.items()))
        logger.info("Set, and without effect on the emulated neuron device: %s.", reasons)


def warn(message: str) -> None:
    """A warning that stays one under `-W error`, where it would become a failing `import torch`."""
    try:
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        logger.warning(message)


def _name_backend() -> None:
    import torch

    from . import torch_neuron

    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", torch_neuron)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    torch.set_autocast_dtype("neuron", torch.bfloat16)


def _load_extension() -> None:
    from . import strict_mode

    try:
        extension.load()
        strict_mode.apply_environment()
    except Exception as error:
        extension.remember_failure(error)
        warn(f"The emulated neuron device cannot be used: {error}")


def _add_nki() -> None:
    """The simulator of kernels needs no device: it is there where the emulated one stays out, too."""
    from ..nki import install as install_nki

    install_nki()


def _add_facade() -> None:
    from ..facade import install as install_facade

    install_facade()


def _register_log_names() -> None:
    """Even where the device stays out: a name in TORCH_LOGS that nobody knows is an error of `import torch`."""
    from .. import logs

    logs.register()


def _install_wiring() -> None:
    from .. import wiring

    wiring.install()
