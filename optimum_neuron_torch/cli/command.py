"""The `neuron` command of `optimum-cli` and the table of its verbs."""

from optimum.commands.base import BaseOptimumCLICommand, CommandInfo

from .bench import BenchCommand
from .cache import CacheCommand
from .check import CheckCommand
from .env import EnvCommand
from .kernels import KernelsCommand
from .plan import PlanCommand
from .selftest import SelftestCommand
from .warmup import WarmupCommand


VERBS = (
    EnvCommand,
    CheckCommand,
    PlanCommand,
    WarmupCommand,
    CacheCommand,
    BenchCommand,
    KernelsCommand,
    SelftestCommand,
)


class NeuronCommand(BaseOptimumCLICommand):
    COMMAND = CommandInfo(name="neuron", help="Run models on PyTorch's neuron device, or on its emulation.")
    SUBCOMMANDS = tuple(CommandInfo(verb.COMMAND.name, verb.COMMAND.help, verb) for verb in VERBS)
