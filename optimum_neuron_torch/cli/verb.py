"""What all verbs share: how what goes wrong becomes a message and an exit code.

Exit codes: 0 done, 1 failed (no device, a check that did not hold, bad input), 2 not there yet, 141 where the reader
of the output went, as shells say of programs that SIGPIPE ends. `optimum-cli` loads every verb's module at each start,
so verbs import what they need when they run.
"""

import os
import select
import sys
from abc import abstractmethod

from optimum.commands.base import BaseOptimumCLICommand


FAILED = 1
NOT_THERE_YET = 2
READER_WENT = 141


class NeuronVerb(BaseOptimumCLICommand):
    """One verb of `optimum-cli neuron`: `execute()` does the work and returns the exit code."""

    @abstractmethod
    def execute(self) -> int:
        """Does what was asked with `self.args`; what it raises is printed without a traceback."""

    def run(self) -> None:
        from ..runtime import NeuronNotAvailableError

        try:
            code = self.execute()
            sys.stdout.flush()
        except SystemExit as stop:  # as rich ends a program whose reader went
            if not isinstance(stop.__context__, BrokenPipeError):
                raise
            code = READER_WENT
        except BrokenPipeError as error:
            code = _end_quietly() if _reader_went() else self._complain(error, FAILED)
        except NotImplementedError as error:
            code = self._complain(error, NOT_THERE_YET)
        except (NeuronNotAvailableError, ValueError, OSError) as error:
            code = self._complain(error, FAILED)
        if code:
            sys.exit(code)

    def _complain(self, error: Exception, code: int) -> int:
        print(f"optimum-cli neuron {self.COMMAND.name}: {error}", file=sys.stderr)
        return code


def _reader_went() -> bool:
    """Whether it was the output that broke, and no pipe of ours."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # an output that is no file
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _end_quietly() -> int:
    """Let what is still to be written go nowhere, as Python writes it when it ends; returns the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return READER_WENT
