"""How output sizes follow input sizes: found rules, and refusals."""

import pytest

from optimum_neuron_torch.buckets.axes import DimRule, UnknownAxesError, find_rules


BOTH = ("batch", "sequence")


def test_fixed_affine_floor_and_product_rules():
    def run(sizes):
        b, s = sizes["batch"], sizes["sequence"]
        return [(b, s, 7), (b, 3 * s + 1), (b * s, 4), (5,), (s, b)]

    rules = find_rules(run, BOTH)
    for sizes in ({"batch": 4, "sequence": 9}, {"batch": 1, "sequence": 1}):
        assert [tuple(rule.size(sizes) for rule in output) for output in rules] == run(sizes)
    assert rules[2][0] == DimRule(("batch", "sequence"))


@pytest.mark.parametrize(
    "shape",
    [
        lambda b, s: (b, s * s),
        lambda b, s: (b + s,),
        lambda b, s: (b, min(s, 20)),
        lambda b, s: (b,) * (1 + (s > 20)),
    ],
)
def test_what_has_no_rule_is_refused(shape):
    with pytest.raises(UnknownAxesError):
        find_rules(lambda sizes: [shape(sizes["batch"], sizes["sequence"])], BOTH)
