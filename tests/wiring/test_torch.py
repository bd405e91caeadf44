"""Entries for PyTorch that have no test beside what they serve."""

import inspect
import textwrap

from torch._dynamo import package

import optimum_neuron_torch as ont


def test_the_source_of_a_function_is_read_once_for_each_object(monkeypatch):
    """As the code of a layer comes from a model of many; what is noted is what PyTorch alone notes."""
    codes = [textwrap.dedent.__code__, textwrap.indent.__code__] * 3
    ont.unwire()
    try:
        alone = package.SourceInfo(set())
        for code in codes:
            alone.add_code(code)
    finally:
        ont.wire()
    read = []
    original = inspect.getsourcelines
    monkeypatch.setattr(package.inspect, "getsourcelines", lambda code: read.append(code) or original(code))
    for _ in range(2):
        found = package.SourceInfo(set())
        for code in codes:
            found.add_code(code)
        assert found == alone and len(found.inlined_sources) == 2
    assert [code for code in read if code in codes] == codes[:2] * 2
