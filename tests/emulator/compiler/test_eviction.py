"""The size limit: oldest entries go, whole, and nothing that was used since the process started."""

import os
import time

import pytest

from optimum_neuron_torch.emulator.compiler import eviction


MIB = 2**20


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    """Two machines' folders with entries of each kind, 1 MiB each, the later the newer; the last one is new."""
    monkeypatch.setattr(eviction, "_looked", float("-inf"))
    names = [
        "torch-2.13.0-old/programs/avx2/key",
        "torch-2.13.0-old/artifacts/key",
        "torch-2.14.0-new/aotautograd/key",
        "torch-2.14.0-new/programs/native-1/key",
        "torch-2.14.0-new/artifacts/key",
    ]
    for age, name in zip((500, 400, 300, 200, -1), names, strict=True):
        folder = tmp_path / "graphs" / name
        folder.mkdir(parents=True)
        for part in ("one", "two"):
            (folder / part).write_bytes(b"x" * (MIB // 2))
        for path in (*folder.iterdir(), folder):
            os.utime(path, (eviction._started - age, eviction._started - age))
    return tmp_path / "graphs"


def kept(graphs) -> list[str]:
    return sorted(str(path.relative_to(graphs)) for path in graphs.rglob("key"))


@pytest.mark.parametrize(
    ("limit", "remaining"),
    [("10MiB", 5), ("0", 5), ("4.5MiB", 4), ("3.5MB", 3), ("2500 KB", 2), ("1", 1)],
)
def test_what_was_not_used_for_longest_goes_first(graphs, monkeypatch, limit, remaining):
    monkeypatch.setenv(eviction.VARIABLE, limit)
    before = [entry.path for entry in sorted(eviction.entries(graphs), key=lambda entry: entry.used)]
    freed = eviction.trim(graphs / "torch-2.14.0-new")
    assert freed // MIB == 5 - remaining
    assert kept(graphs) == sorted(str(path.relative_to(graphs)) for path in before[5 - remaining :])
    assert not list(graphs.rglob(".deleting*"))


def test_a_use_counts(graphs, monkeypatch):
    monkeypatch.setenv(eviction.VARIABLE, "4.5MiB")
    os.utime(graphs / "torch-2.13.0-old/programs/avx2/key")
    eviction.trim(graphs / "torch-2.14.0-new")
    assert "torch-2.13.0-old/programs/avx2/key" in kept(graphs)
    assert "torch-2.13.0-old/artifacts/key" not in kept(graphs)


def test_it_looks_once_a_minute(graphs, monkeypatch):
    monkeypatch.setenv(eviction.VARIABLE, "10MiB")
    eviction.trim(graphs / "torch-2.14.0-new")
    monkeypatch.setenv(eviction.VARIABLE, "1")
    assert eviction.trim(graphs / "torch-2.14.0-new") == 0 and len(kept(graphs)) == 5


def test_what_killed_processes_left_is_removed_after_a_day(graphs):
    left = [
        graphs / "torch-2.14.0-new" / name
        for name in ("artifacts/key/.7.x.tmp", "programs/native-1/.building-x", "locks/key.lock", ".importing-x")
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if "ing" in path.name else path.write_text("")
    old = time.time() - 2 * eviction._STALE_S
    for path in left[:-1]:
        os.utime(path, (old, old))
    eviction.trim(graphs / "torch-2.14.0-new")
    assert [path.exists() for path in left] == [False, False, False, True]


@pytest.mark.parametrize("text", ["many", "-1", "5 XB", "1e9 GB"])
def test_a_size_that_is_none_says_what_one_looks_like(monkeypatch, text):
    monkeypatch.setenv(eviction.VARIABLE, text)
    with pytest.raises(ValueError, match="OPTIMUM_NEURON_CACHE_SIZE=.*like 512MB or 20GiB"):
        eviction.limit()


def test_the_default_is_a_limit(monkeypatch):
    monkeypatch.delenv(eviction.VARIABLE, raising=False)
    assert eviction.limit() == 20 * 2**30
