"""From a size to its bucket, and what happens above the largest."""

import pytest

from optimum_neuron_torch import Buckets, Growth
from optimum_neuron_torch.buckets.sizes import axis_sizes
from optimum_neuron_torch.config import BucketOverflowError


@pytest.mark.parametrize(
    ("buckets", "axis", "limit", "size", "expected"),
    [
        (Buckets(sequence=[16, 64]), "sequence", None, 1, 16),
        (Buckets(sequence=[16, 64]), "sequence", None, 17, 64),
        (Buckets(sequence=[16, 64], overflow="grow"), "sequence", None, 65, 128),
        (Buckets(), "sequence", 512, 3, 32),
        (Buckets(), "sequence", 500, 300, 500),
        (Buckets(), "sequence", 500, 501, 1000),
        (Buckets(), "sequence", 20, 3, 20),
        (Buckets(), "sequence", -1, 3000, 4096),
        (Buckets(), "batch", None, 5, 8),
        (Buckets(), "cache", 8192, 257, 512),
        (Buckets(cache=Growth(100, None, 1.5)), "cache", None, 160, 225),
    ],
)
def test_the_bucket_that_serves_a_size(buckets, axis, limit, size, expected):
    assert axis_sizes(buckets, axis, limit).fit(size) == expected


def test_overflow_of_a_list_names_sizes_and_ways_out():
    with pytest.raises(
        BucketOverflowError, match=r"sequence 65 .* 64 of \[16, 64\].*\[\.\.\., 128\].*overflow='grow'"
    ):
        axis_sizes(Buckets(sequence=[16, 64]), "sequence").fit(65)


def test_an_axis_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="no bucket axis 'image'"):
        axis_sizes(Buckets(), "image")
