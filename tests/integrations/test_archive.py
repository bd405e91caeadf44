"""export_cache() and import_cache(): what a fleet loads is what was compiled; what was tampered with is refused."""

import json
import stat
import zipfile

import pytest
import torch
from transformers import AutoModel

import optimum_neuron_torch as ont


CONFIG = ont.NeuronConfig(verify=False, options={"executor": "aten", "lowering": "off"})
IDS = torch.arange(5, 16)[None]


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Switch to a cache of a name."""

    def use(name: str):
        monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(tmp_path / name))
        return tmp_path / name

    use("first")
    return use


def run(path: str):
    model = AutoModel.from_pretrained(path, device_map="neuron", neuron_config=CONFIG)
    with torch.no_grad():
        found = model(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state.cpu()
        expected = AutoModel.from_pretrained(path)(IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    return model


@pytest.fixture(scope="module")
def compiled(tmp_path_factory, tiny_bert):
    """A cache with what one model compiled, and the model."""
    cache = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIMUM_NEURON_CACHE", str(cache))
        return cache, run(tiny_bert)


@pytest.fixture(scope="module")
def good(compiled):
    """The bytes of an archive that nobody changed."""
    cache, model = compiled
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTIMUM_NEURON_CACHE", str(cache))
        return ont.export_cache(cache / "graphs.zip", model).read_bytes()


@pytest.fixture
def archive(good, tmp_path):
    path = tmp_path / "graphs.zip"
    path.write_bytes(good)
    return path


def test_another_machine_compiles_nothing(caches, archive, tiny_bert):
    caches("second")
    assert ont.import_cache(archive, trust=True) == 1
    model = run(tiny_bert)
    assert (ont.report(model).graphs, ont.report(model).cached) == (0, 1)
    assert [step.bucket for step in ont.warmup(model, dry_run=True)] == [{"batch": 1, "sequence": 32}]


def test_the_whole_cache_or_one_model(caches, tiny_bert, tiny_classifier, tmp_path):
    bert, classifier = run(tiny_bert), AutoModel.from_pretrained(tiny_classifier, device_map="neuron")
    ont.prepare(classifier, CONFIG)
    with torch.no_grad():
        classifier(IDS.repeat(2, 1))
    for obj, count in ((bert, 1), (classifier, 1), (None, 2)):
        path = ont.export_cache(tmp_path / "graphs.zip", obj)
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        assert names[0] == "contents.json"
        assert sum(name.startswith("artifacts/") for name in names) == count
        assert any(name.startswith("aotautograd/") for name in names) == (obj is None)


def test_code_is_not_taken_unasked(caches, archive):
    directory = caches("second")
    with pytest.raises(PermissionError, match=r"takes code from that file.*trust=True"):
        ont.import_cache(archive)
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"threads": 7}, r"for 1 threads, not for 7: call torch.set_num_threads\(7\), then warmup"),
        ({"isa": "sse9"}, "no vector ISA 'sse9'"),
    ],
)
def test_what_cannot_be_exported(compiled, monkeypatch, tmp_path, arguments, message):
    cache, model = compiled
    monkeypatch.setenv("OPTIMUM_NEURON_CACHE", str(cache))
    with pytest.raises(ValueError, match=message):
        ont.export_cache(tmp_path / "graphs.zip", model, **arguments)
    assert not list(tmp_path.glob("*.zip*"))


def test_nothing_compiled_is_nothing_to_export(caches, tiny_bert, tmp_path):
    model = AutoModel.from_pretrained(tiny_bert, device_map="neuron", neuron_config=CONFIG)
    for obj in (model, None):
        with pytest.raises(ValueError, match="no compiled graphs.*warmup"):
            ont.export_cache(tmp_path / "graphs.zip", obj)


# ---- files that are refused -----------------------------------------------------------------------------------------


def rewrite(path, *, contents=lambda c: None, members=lambda m: None) -> None:
    """The archive with changed contents, or changed members: (name, mode) -> bytes."""
    with zipfile.ZipFile(path) as archive:
        listed = json.loads(archive.read("contents.json"))
        files = {(name, stat.S_IFREG | 0o600): archive.read(name) for name in archive.namelist()[1:]}
    contents(listed)
    members(files)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("contents.json", json.dumps(listed))
        for (name, mode), content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)


def _artifact(names):
    return next(name for name in names if name.startswith("artifacts/"))


def _renamed(to):
    def change(path):
        def in_contents(contents):
            contents["files"][to] = contents["files"].pop(_artifact(contents["files"]))

        def in_members(files):
            old = next(key for key in files if key[0].startswith("artifacts/"))
            files[to, old[1]] = files.pop(old)

        rewrite(path, contents=in_contents, members=in_members)

    return change


def _edited(path):
    def members(files):
        key = next(key for key in files if key[0].startswith("artifacts/"))
        files[key] = files[key][:-1] + b"x"

    rewrite(path, members=members)


def _linked(path):
    def members(files):
        key = next(key for key in files if key[0].startswith("artifacts/"))
        files[key[0], stat.S_IFLNK | 0o777] = files.pop(key)

    rewrite(path, members=members)


def _more(path):
    rewrite(path, members=lambda files: files.update({("artifacts/a/b", 0): b"more"}))


def _other_versions(path):
    def contents(listed):
        listed["versions"] = [
            "transformers 4.0" if version.startswith("transformers") else version for version in listed["versions"]
        ]

    rewrite(path, contents=contents)


def _other_machine(path):
    rewrite(path, contents=lambda listed: listed.update(machine="torch-2.13.0-elsewhere"))


def _cut(path):
    path.write_bytes(path.read_bytes()[:-40])


REFUSED = {
    "another byte": (_edited, "does not match its digest"),
    "a link": (_linked, "is a link"),
    "an escape": (_renamed("artifacts/../../../escaped"), "no name of a file in the compile cache"),
    "an absolute name": (_renamed("/tmp/escaped"), "no name of a file in the compile cache"),
    "a backslash": (_renamed("artifacts\\..\\escaped"), "no name of a file in the compile cache"),
    "another folder": (_renamed("elsewhere/a/b"), "no name of a file in the compile cache"),
    "more than is listed": (_more, "does not hold what its contents list"),
    "other versions": (_other_versions, r"made with transformers 4\.0; here there is transformers.*Export again"),
    "another machine": (_other_machine, "made on torch-2.13.0-elsewhere, this is"),
    "half a file": (_cut, "no file of export_cache"),
    "something else": (lambda path: path.write_text("no zip"), "no file of export_cache"),
    "another zip": (lambda path: zipfile.ZipFile(path, "w").writestr("a", "b"), "no file of export_cache"),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_leaves_nothing(caches, archive, tmp_path, change, message):
    change(archive)
    directory = caches("second")
    with pytest.raises(ValueError, match=message):
        ont.import_cache(archive, trust=True)
    assert not [file for file in directory.rglob("*") if file.is_file()]
    assert not list(directory.rglob(".importing*")) and not (tmp_path / "escaped").exists()


def test_a_file_that_is_not_there(caches, tmp_path):
    with pytest.raises(FileNotFoundError):
        ont.import_cache(tmp_path / "none.zip", trust=True)
