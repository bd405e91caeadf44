"""How long a row of compilations will take, and the progress bar that says so."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from .progress import own_display


class Forecast:
    """The seconds that the steps still to come will take.

    Each has an expectation in seconds, or None; those that were seen to be off by some factor so far are taken to be
    off by it in what is left, and steps without an expectation to take as long as the others do on average.
    """

    def __init__(self, expected: Sequence[float | None]) -> None:
        self._expected = list(expected)
        self._taken: list[float] = []

    def took(self, seconds: float) -> None:
        """The next step is done."""
        self._taken.append(seconds)

    def remaining(self) -> float | None:
        """Seconds left; None where nothing is known yet."""
        left = self._expected[len(self._taken) :]
        both = [(expected, taken) for expected, taken in zip(self._expected, self._taken, strict=False) if expected]
        factor = sum(taken for _, taken in both) / sum(expected for expected, _ in both) if both else 1.0
        known = [factor * expected for expected in left if expected is not None]
        unknown = len(left) - len(known)
        if not unknown:
            return sum(known)
        seen = known + self._taken
        return sum(known) + unknown * sum(seen) / len(seen) if seen else None


class _RemainingColumn(ProgressColumn):
    def __init__(self, forecast: Forecast) -> None:
        super().__init__()
        self._forecast = forecast

    def render(self, task: object) -> Text:
        seconds = self._forecast.remaining()
        return Text("" if seconds is None else f"about {format_seconds(seconds)} left")


def format_seconds(seconds: float) -> str:
    """`40 s`, `12 min`, `1 h 20 min`: an estimate's precision."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress_bar(title: str, total: int, visible: bool, forecast: Forecast) -> Iterator[Callable[..., None]]:
    """A progress bar on stderr; yields advance(what or None, steps, line to leave above the bar)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        _RemainingColumn(forecast),
        TextColumn("{task.fields[what]}"),
    )
    with own_display(), Progress(*columns, console=Console(file=sys.stderr), disable=not visible) as bar:
        task = bar.add_task(title, total=total, what="")

        def advance(what: str | None, steps: int, done: str = "") -> None:
            bar.update(task, advance=steps, **({} if what is None else {"what": what}))
            if done and visible:
                bar.console.print(done, highlight=False, markup=False)

        yield advance
