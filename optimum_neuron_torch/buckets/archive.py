"""Compiled graphs in one file: written where they are compiled, read by machines that only run them.

The file is a zip. Its first member, `contents.json`, says for which versions and kind of machine the others are, and
has the digest and size of each. What is read is checked whole in a folder of its own before anything takes its place.
"""

import dataclasses
import hashlib
import json
import os
import re
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from .. import runtime
from ..files import replacing
from . import artifacts, manifest
from .artifacts import ArtifactStore, Header
from .manifest import Manifest
from .sources import versions


CONTENTS = "contents.json"
FORMAT = "optimum_neuron_torch compiled graphs, 1"
PROGRAMS, AUTOGRAD = "programs", "aotautograd"
# Programs first: a stored function that is there finds them.
_FOLDERS = (PROGRAMS, AUTOGRAD, artifacts.FOLDER, manifest.FOLDER)
_NAME = re.compile(r"[\w.+-]+(/[\w.+-]+)+", re.ASCII)
# Contents are read before anything is known of them.
_LARGEST_CONTENTS = 2**26


class ArchiveError(ValueError):
    """A file that holds no compiled graphs, is damaged, or is for other versions or another kind of machine."""


# ---- writing --------------------------------------------------------------------------------------------------------


def write(path: Path, models: list[torch.nn.Module] | None, *, isa: str | None, threads: int | None) -> Path:
    """Write what is stored for `models` (None: for all) into `path`; see `optimum_neuron_torch.export_cache`."""
    store = ArtifactStore.open()
    if store is None:
        raise ValueError("no compiled graphs are kept here: the compile backend has no directory for them")
    found = list(_everything(store) if models is None else _of_models(store, models))
    threads = threads or torch.get_num_threads()
    chosen = [(file, header) for file, header in found if header.threads == threads]
    if not chosen:
        raise ValueError(_nothing_to_write(found, models, threads))
    digests = sorted({digest for _, header in chosen for digest in header.programs})
    try:
        folders = runtime.graph_programs(digests, isa=isa, threads=threads, build_missing=models is not None)
    except LookupError as error:
        raise ValueError(f"{error}: call warmup(model) first, and export in the same process") from error
    files = [*(file for file, _ in chosen), *_below(folders)]
    if models is None and isa is None:
        files += _below([store.directory / PROGRAMS, store.directory / AUTOGRAD])
    names = {file: file.relative_to(store.directory).as_posix() for file in files if not file.name.startswith(".")}
    manifests = [Manifest(model).path for model in models or ()] or list((_manifests()).glob("*.json"))
    names |= {file: f"{manifest.FOLDER}/{file.name}" for file in manifests if file.is_file()}
    contents = {
        "format": FORMAT,
        "machine": store.directory.name,
        "versions": list(versions()),
        "threads": threads,
        "programs": sorted({PurePosixPath(name).parts[1] for name in names.values() if name.startswith(PROGRAMS)}),
    }
    return _write_zip(path, names, contents)


def _of_models(store: ArtifactStore, models: list[torch.nn.Module]) -> Iterator[tuple[Path, Header]]:
    keys = {
        entry.file
        for model in models
        for entry in Manifest(model).graphs()
        if entry.file is not None and entry.machine == store.directory.name
    }
    return (pair for key in sorted(keys) for pair in store.headers(key))


def _everything(store: ArtifactStore) -> Iterator[tuple[Path, Header]]:
    return (pair for key in store.keys() for pair in store.headers(key))


def _nothing_to_write(found: list, models: list | None, threads: int) -> str:
    whose = "in the cache" if models is None else "of this model"
    if found:
        others = ", ".join(sorted({str(header.threads) for _, header in found}))
        return (
            f"the compiled graphs {whose} are for {others} threads, not for {threads}: call "
            f"torch.set_num_threads({threads}), then warmup(model), and export again"
        )
    return f"there are no compiled graphs {whose}: call warmup(model), or the model, and export again"


def _write_zip(path: Path, names: dict[Path, str], contents: dict[str, Any]) -> Path:
    """Members, then their digests: the zip is made under another name and appears whole."""
    contents["files"] = {name: _facts(file) for file, name in sorted(names.items())}
    with (
        replacing(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=3) as archive,
    ):
        archive.writestr(CONTENTS, json.dumps(contents, indent=1))
        for file, name in sorted(names.items()):
            archive.write(file, name)
    return path


def _facts(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}


def _below(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.is_file() and not path.is_symlink() and not hidden:
                yield path


def _manifests() -> Path:
    return runtime.cache_dir() / manifest.FOLDER


# ---- reading --------------------------------------------------------------------------------------------------------


def read(path: Path) -> int:
    """Take the graphs of `path` into the cache; see `optimum_neuron_torch.import_cache`."""
    store = ArtifactStore.open()
    if store is None:
        raise ValueError("no compiled graphs can be kept here: the compile backend has no directory for them")
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ArchiveError(f"{path} is no file of export_cache(): {error}") from error
    with archive, tempfile.TemporaryDirectory(dir=store.directory, prefix=".importing-") as unfinished:
        contents = _contents(path, archive)
        _check_versions(path, contents, store.directory.name)
        _check_members(path, archive, contents["files"])
        for name, facts in contents["files"].items():
            _extract(path, archive, name, facts, Path(unfinished))
        _warn_other_cpu(path, contents["programs"])
        _take(Path(unfinished), store.directory)
    return sum(name.startswith(f"{artifacts.FOLDER}/") for name in contents["files"])


def _contents(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        with archive.open(CONTENTS) as member:
            contents = json.loads(member.read(_LARGEST_CONTENTS))
        if contents["format"] != FORMAT:
            raise ArchiveError(f"{path} has the format {contents['format']!r}; this version reads {FORMAT!r}")
        facts = [(name, facts["sha256"], facts["size"]) for name, facts in contents["files"].items()]
        if not all(type(s) is str and type(n) is int for _, s, n in facts):
            raise ValueError("digests or sizes are missing")
        if missing := {"machine", "versions", "programs"} - contents.keys():
            raise KeyError(*missing)
    except (KeyError, TypeError, AttributeError, zipfile.BadZipFile, OSError) as error:
        raise ArchiveError(f"{path} is no file of export_cache(), or its contents are damaged: {error}") from error
    except ArchiveError:
        raise
    except ValueError as error:
        raise ArchiveError(f"{path}: {CONTENTS} cannot be read: {error}") from error
    return contents


def _check_versions(path: Path, contents: dict[str, Any], machine: str) -> None:
    made, here = set(contents["versions"]), set(versions())
    if made != here:
        raise ArchiveError(
            f"{path} was made with {', '.join(sorted(made - here)) or 'fewer packages'}; here there is "
            f"{', '.join(sorted(here - made)) or 'nothing of that'}. Export again with the versions used here."
        )
    if contents["machine"] != machine:
        raise ArchiveError(
            f"{path} was made on {contents['machine']}, this is {machine}: another torch, processor architecture or C "
            "library. Export again on a machine of this kind."
        )


def _check_members(path: Path, archive: zipfile.ZipFile, files: dict[str, Any]) -> None:
    """Only what the contents list, once, as plain files in our own folders."""
    members = archive.infolist()
    listed = [member.filename for member in members]
    if sorted(listed) != sorted([CONTENTS, *files]):
        raise ArchiveError(f"{path} does not hold what its contents list, or holds something twice")
    for member in members:
        name, mode = member.filename, member.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise ArchiveError(f"{path}: {name!r} is a link or no plain file")
        if name == CONTENTS:
            continue
        parts = name.split("/")
        if not _NAME.fullmatch(name) or parts[0] not in _FOLDERS or any(part.startswith(".") for part in parts):
            raise ArchiveError(f"{path}: {name!r} is no name of a file in the compile cache")


def _extract(path: Path, archive: zipfile.ZipFile, name: str, facts: dict[str, Any], folder: Path) -> None:
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with archive.open(name) as member:
            content = member.read(facts["size"] + 1)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise ArchiveError(f"{path}: {name} is damaged: {error}") from error
    if len(content) != facts["size"] or hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise ArchiveError(f"{path}: {name} does not match its digest")
    target.write_bytes(content)
    target.chmod(0o600)


def _warn_other_cpu(path: Path, programs: list[str]) -> None:
    usable = runtime.usable_programs()
    if programs and usable is not None and not set(programs) & set(usable):
        warnings.warn(
            f"{path} has kernels for {', '.join(programs)}; this process can run {', '.join(usable)}. Graphs are not "
            "traced again, but their kernels are compiled here.",
            RuntimeWarning,
            stacklevel=4,
        )


def _take(unfinished: Path, directory: Path) -> None:
    """Move checked files to their places."""
    for program in sorted(unfinished.glob(f"{PROGRAMS}/*/*")):
        place = directory / program.relative_to(unfinished)
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not place.exists():  # a program is one folder: it comes whole
            program.rename(place)
    for folder in (AUTOGRAD, artifacts.FOLDER):
        for file in sorted(unfinished.glob(f"{folder}/*/*")):
            place = directory / file.relative_to(unfinished)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.replace(file, place)
    for file in sorted((unfinished / manifest.FOLDER).glob("*.json")):
        entries = [dataclasses.replace(entry, loads=0) for entry in Manifest.at(file).graphs()]
        Manifest.at(_manifests() / file.name).merge(entries)
