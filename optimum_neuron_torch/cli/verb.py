"""What all verbs share: how what goes wrong becomes a message and an exit code.

Exit codes: 0 done, 1 failed (no device, a check that did not hold, bad input), 2 not there yet. `optimum-cli` loads
every verb's module at each start, so verbs import what they need when they run.
"""

import sys
from abc import abstractmethod

from optimum.commands.base import BaseOptimumCLICommand


FAILED = 1
NOT_THERE_YET = 2


class NeuronVerb(BaseOptimumCLICommand):
    """One verb of `optimum-cli neuron`: `execute()` does the work and returns the exit code."""

    @abstractmethod
    def execute(self) -> int:
        """Does what was asked with `self.args`; what it raises is printed without a traceback."""

    def run(self) -> None:
        from ..runtime import NeuronNotAvailableError

        try:
            code = self.execute()
        except NotImplementedError as error:
            code = self._complain(error, NOT_THERE_YET)
        except (NeuronNotAvailableError, ValueError, OSError) as error:
            code = self._complain(error, FAILED)
        if code:
            sys.exit(code)

    def _complain(self, error: Exception, code: int) -> int:
        print(f"optimum-cli neuron {self.COMMAND.name}: {error}", file=sys.stderr)
        return code
