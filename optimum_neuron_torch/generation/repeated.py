"""A decode step that is run again: what was looked up for the last token serves the next ones of the same call.

Between two tokens only the ids, the mask's last column, the positions and the length change, and they are written into
the device tensors of the last step.

Shape legend: B batch, M columns of the mask; Bb: the batch's bucket.
"""

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from typing import Any

import torch

from ..buckets.pad import pad_rows
from ..buckets.undisturbed import current_stretch
from .cache import BucketCache


@dataclass
class RepeatedStep:
    """One decode step of `cache`, ready to run with other values.

    run: the compiled step, taking the tensors of a step and then those of the store.
    cache: the cache that it ran with. arguments: those that it ran with; the next ones may differ in ids, positions
    and mask.
    device: its tensors on the device: slots (1,), offset (0-d), keep (N,), then its inputs by `names`.
    ids, mask: the names of these inputs; per_token: of all inputs with one entry per token.
    use: what it is counted as: function, bucket, rows of the batch, positions whose logits are kept.
    """

    run: Callable
    cache: InitVar[BucketCache]
    arguments: InitVar[dict[str, Any]]
    device: list[torch.Tensor]
    names: tuple[str, ...]
    ids: str
    mask: str
    per_token: tuple[str, ...]
    use: tuple[str, dict[str, int], int, int]

    def __post_init__(self, cache: BucketCache, arguments: dict[str, Any]) -> None:
        self._stretch, self._state, self._rows_of_store = current_stretch(), cache.state, cache.rows
        self._slots, self._offset, _, *inputs = self.device
        self._inputs = dict(zip(self.names, inputs, strict=True))
        self._shapes = {name: arguments[name].shape for name in self.per_token if arguments.get(name) is not None}
        self._fixed = {k: v for k, v in arguments.items() if k not in (*self._shapes, self.mask, "cache")}
        self.batch, self.rows = arguments[self.ids].shape[0], self._inputs[self.ids].shape[0]
        self._length_1, self._length_0 = torch.zeros(1, dtype=torch.long), torch.zeros((), dtype=torch.long)
        self._mask_BbM = torch.zeros(self._inputs[self.mask].shape, dtype=torch.long)

    def serves(self, cache: BucketCache, arguments: dict[str, Any]) -> bool:
        """Whether a call with `arguments` is this step again."""
        is_same_store = cache.state is self._state and cache.rows == self._rows_of_store
        if current_stretch() is not self._stretch or not is_same_store or cache.length + 1 >= cache.rows:
            return False
        known = len(self._fixed) + len(self._shapes) + (self.mask in arguments) + ("cache" in arguments)
        mask_BM = arguments.get(self.mask)
        return (
            len(arguments) == known
            and (mask_BM is None or _is_plain(mask_BM, (self.batch, cache.length + 1)))
            and all(_is_plain(arguments.get(name), shape) for name, shape in self._shapes.items())
            and all(_is_same(arguments.get(name, self), value) for name, value in self._fixed.items())
        )

    def __call__(self, cache: BucketCache, arguments: dict[str, Any]) -> torch.Tensor:
        """Run it; returns the logits on the device."""
        past = cache.length
        self._slots.copy_(self._length_1.fill_(past))
        self._offset.copy_(self._length_0.fill_(past))
        for name in self._shapes:
            value = arguments[name]
            if value.shape[0] != self.rows:
                value = pad_rows(value.expand(self.batch, 1), self.rows)
            self._inputs[name].copy_(value.contiguous())
        self._write_mask(arguments.get(self.mask), past + 1)
        return self.run(*self.device, *cache.tensors)[0]

    def _write_mask(self, mask_BM: torch.Tensor | None, columns: int) -> None:
        seen, unseen = self._mask_BbM[:, :columns], self._mask_BbM[:, columns:]
        if mask_BM is None:
            seen.fill_(1)
        elif self.batch == self.rows:
            seen.copy_(mask_BM)
        else:
            seen.copy_(pad_rows(mask_BM, self.rows))
        unseen.zero_()  # the store was cut since
        self._inputs[self.mask].copy_(self._mask_BbM)


def _is_plain(value: Any, shape: tuple[int, ...]) -> bool:
    is_tensor = isinstance(value, torch.Tensor) and value.dtype == torch.long and value.device.type == "cpu"
    return is_tensor and value.shape == shape


def _is_same(value: Any, held: Any) -> bool:
    if value is held:
        return True
    return type(value) is type(held) and isinstance(value, (bool, int, float, str)) and value == held
