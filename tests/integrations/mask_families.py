"""What the mask hook says to each family of Transformers that calls it: its calls as the library's own sources have
them, run on tiny random models (`mask_models.py`, `mask_inputs.py`).

`python -m tests.integrations.mask_families` writes the table that `test_mask_ranges.py` compares with. For each call
it says what came: "ranges", "whole: why", "another attention" where the model has not taken "nki", "as given" where
the hook was not asked; and "not reached: n of m, why" where no model comes to n of the m places with this call.
"""

import contextlib
import copy
import inspect
import itertools
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from transformers import PreTrainedModel, StaticCache, masking_utils

from optimum_neuron_torch.integrations import attention
from optimum_neuron_torch.nki.masks import Seen, mask_of_ranges, nki_mask, seen_in
from tests.integrations.mask_inputs import ROWS, inputs_of
from tests.integrations.mask_models import CAUSES, MODELS, models_of, modules_of


TABLE = Path(__file__).with_name("mask_families.json")
CREATORS = {
    name
    for name in vars(masking_utils)
    if name.startswith("create_") and name.endswith(("_mask", "for_generate")) and "recurrent" not in name
}
NAMES = "|".join(sorted(CREATORS))
# A call, or a place where the function to call later is chosen.
CALL = re.compile(rf"(?<!def )(?<!\.)\b({NAMES})\(|(?:= |else |\": |^ +)({NAMES})(?= if |$|,$)", re.MULTILINE)
# What a call adds to the mask.
ADDED = re.compile(r"(\w+_function|\w+_sequence_ids)=")
STORE = 32


# ---- the sources ----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A place in a family's code that calls the hook: a function and what it adds to the mask.

    `line` is 0 for functions that are chosen in one place and called in another.
    """

    path: str
    line: int
    call: str


def families() -> dict[str, list[Place]]:
    """The families whose code calls the hook."""
    found: dict[str, list[Place]] = {}
    for path in sorted(MODELS.glob("*/modeling_*.py")):
        if places := list(dict.fromkeys(_places(path))):
            found.setdefault(path.parent.name, []).extend(places)
    return found


def _places(path: Path) -> Iterator[Place]:
    """By the text: parsing all of the library takes long."""
    text = path.read_text()
    start = text.rfind("\nfrom ", 0, text.find("\nclass "))  # behind the imports
    for call in CALL.finditer(text, text.find("\n\n\n", start)):
        if call[1] is None:
            yield Place(str(path), 0, call[2])
        else:
            added = sorted(set(ADDED.findall(_arguments(text, call.end()))))
            yield Place(str(path), text.count("\n", 0, call.start()) + 1, " + ".join([call[1], *added]))


def _arguments(text: str, start: int) -> str:
    depth = 1
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    raise ValueError("a call that does not end")


# ---- what it says ---------------------------------------------------------------------------------------------------


def expanded(seen: Seen, mask: torch.Tensor) -> torch.Tensor:
    """What is known of a mask, as a mask of its shape."""
    full = torch.ones_like(mask)
    if seen.ranges_B1Q2 is not None:
        full = full & mask_of_ranges(seen.ranges_B1Q2, mask.shape[-1])
    full = full if seen.padding_B11K is None else full & seen.padding_B11K
    return full.tril() if seen.is_causal else full


class RangesDifferError(AssertionError):
    """Key ranges are not those of their mask."""


def _compare(seen: Seen, mask: torch.Tensor) -> None:
    if seen.unknown is None and not torch.equal(expanded(seen, mask), mask):
        raise RangesDifferError(f"ranges of {seen} are not the mask's")


class Watch:
    """Compares the ranges of each mask with it, and notes what came at each place."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.came: dict[Place, set[str]] = {place: set() for place in places}
        self.attention: set[str] = set()
        self._by_line = {(place.path, place.line or place.call): place for place in places}
        self._kinds: list[set[str]] = [set()]

    @property
    def is_complete(self) -> bool:
        return all(self.came.values())

    def mask(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """In place of the hook."""
        mask = nki_mask(*args, **kwargs)
        seen = seen_in(mask)
        self._kinds[-1].add("ranges" if seen.unknown is None else f"whole: {seen.unknown}")
        _compare(seen, mask)
        return mask

    def what_is_seen(self, query: Any, key: Any, mask: Any, is_causal: bool) -> tuple:
        """In place of the attention's look at its mask."""
        if mask is not None:
            seen = seen_in(mask)
            _compare(seen, mask)
            self.attention |= {seen.unknown} - {None}
        return STOCK(query, key, mask, is_causal)

    def creator(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """In place of a function that a family's code calls."""

        @wraps(create)
        def called(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            path = caller.f_code.co_filename
            place = self._by_line.get((path, caller.f_lineno)) or self._by_line.get((path, create.__name__))
            self._kinds.append(set())
            try:
                result = create(*args, **kwargs)
            finally:
                kinds = self._kinds.pop()
            if place is not None:
                config = inspect.signature(create).bind(*args, **kwargs).arguments["config"].get_text_config()
                takes = config._attn_implementation == "nki"
                self.came[place] |= kinds or {"as given" if takes else "another attention"}
            return result

        return called


STOCK = attention.what_is_seen


@contextlib.contextmanager
def watched(family: str, places: Sequence[Place]) -> Iterator[Watch]:
    """Within the block, each mask's ranges are compared with it, and what the family's calls give is noted."""
    watch = Watch(places)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(masking_utils.AttentionMaskInterface._global_mapping, {"nki": watch.mask}))
        stack.enter_context(mock.patch.object(attention, "what_is_seen", watch.what_is_seen))
        for module in modules_of(family):
            creators = {name: watch.creator(vars(module)[name]) for name in CREATORS & vars(module).keys()}
            stack.enter_context(mock.patch.multiple(module, **creators) if creators else contextlib.nullcontext())
        yield watch


@torch.no_grad()
def outcome(family: str, places: Sequence[Place], names: Sequence[str] | None = None) -> dict[str, Any]:
    """A row of the table, from the models that are named; None: from those that it takes to come to all places.

    "errors" says what became of the models, where places are not reached and `CAUSES` does not say why.
    """
    row: dict[str, Any] = {"models": []}
    errors = []
    with watched(family, places) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in models_of(family):
            if watch.is_complete or (names is not None and name not in names):
                continue
            before = copy.deepcopy((watch.came, watch.attention))
            errors += [f"{name}: {type(error).__name__}: {str(error)[:200]}" for error in _run(make, watch)]
            if any(kinds and not before[0][place] for place, kinds in watch.came.items()):
                row["models"].append(name)
            else:
                watch.came, watch.attention = before
    row["calls"] = _by_call(watch.came, CAUSES.get(family, ""))
    if watch.attention:
        row["attention"] = sorted(watch.attention)
    if not watch.is_complete and family not in CAUSES:
        row["errors"] = list(dict.fromkeys(errors))
    return row


def _by_call(came: Mapping[Place, set[str]], cause: str) -> dict[str, list[str]]:
    found: dict[str, list[set[str]]] = defaultdict(list)
    for place, kinds in came.items():
        found[place.call].append(kinds)
    rows = {}
    for call, places in sorted(found.items()):
        rows[call] = sorted(set().union(*places))
        if missing := places.count(set()):
            rows[call].append(f"not reached: {missing} of {len(places)}, {cause}")
    return rows


def _run(make: Callable[[], PreTrainedModel], watch: Watch) -> list[Exception]:
    """Calls a model in each way that it knows, on caches too, until all is come to; gives what failed."""
    failures: list[Exception] = []
    with _noting(failures):
        model = make()
        for inputs in inputs_of(model):
            with _noting(failures):
                model(**inputs)
                _run_on_caches(model, inputs)
            if watch.is_complete:
                return failures
        if model.can_generate():
            for inputs in itertools.islice(inputs_of(model), 2):
                with _noting(failures):
                    _generate(model, inputs)
    return failures


@contextlib.contextmanager
def _noting(failures: list[Exception]) -> Iterator[None]:
    try:
        yield
    except RangesDifferError:
        raise
    except Exception as error:
        failures.append(error)


def _run_on_caches(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> None:
    """Prompts and one more token, on a cache that grows and on one that does not."""
    takes_cache = "cache" in inspect.signature(type(model).forward).parameters
    if not takes_cache or model.config.is_encoder_decoder or not {"input_ids", "attention_mask"} <= inputs.keys():
        return
    mask = torch.cat([inputs["attention_mask"], torch.ones(ROWS, 1, dtype=torch.long)], 1)
    for cache in (None, StaticCache(config=model.config, max_cache_len=STORE)):
        cache = model(**inputs, cache=cache, use_cache=True).cache
        if cache is not None:
            model(input_ids=inputs["input_ids"][:, :1], attention_mask=mask, cache=cache, use_cache=True)


def _generate(model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> None:
    """Two tokens, on a static cache: only then are masks made before the model is called."""
    model.generate(**inputs, max_new_tokens=2, do_sample=False, cache_implementation="static")


def main() -> None:
    """Those named on the command line, or all."""
    table = json.loads(TABLE.read_text()) if sys.argv[1:] else {}
    for family, places in families().items():
        if sys.argv[1:] and family not in sys.argv[1:]:
            continue
        table[family] = outcome(family, places)
        print(family, json.dumps(table[family]), file=sys.stderr, flush=True)
        TABLE.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
