"""How long what is left will take, from what is known and what was seen."""

import pytest

from optimum_neuron_torch.buckets.forecast import Forecast, format_seconds


@pytest.mark.parametrize(
    ("expected", "taken", "remaining"),
    [
        ([10, 20, 30], [], 60),
        ([10, 20, 30], [20], 100),  # twice as slow as expected, so far
        ([10, 20], [10, 20], 0),
        ([None, None], [], None),
        ([None, None, None], [4], 8),
        ([None, 10, None], [], 30),
        ([10, None], [20], 20),
        ([0, 0], [1], 0),
        ([], [], 0),
    ],
)
def test_remaining(expected, taken, remaining):
    forecast = Forecast(expected)
    for seconds in taken:
        forecast.took(seconds)
    assert forecast.remaining() == (remaining if remaining is None else pytest.approx(remaining))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (99.4, "99 s"), (100, "2 min"), (3540, "59 min"), (4800, "1 h 20 min")]
)
def test_times_are_as_exact_as_an_estimate(seconds, text):
    assert format_seconds(seconds) == text
