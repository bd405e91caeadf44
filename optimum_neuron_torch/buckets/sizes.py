"""From what the user asked for an axis to the one bucket that serves a size."""

from dataclasses import dataclass

from ..config import BucketOverflowError, Buckets, Growth


# Smallest automatic bucket of each axis: below it, padding costs less than another graph.
FLOORS = {"batch": 1, "sequence": 32, "encoder_sequence": 32, "cache": 256}


@dataclass(frozen=True)
class AxisSizes:
    """The buckets of one axis of one object.

    `sizes` is an ascending tuple or a growth rule; `overflow` says what happens above the largest.
    """

    axis: str
    sizes: tuple[int, ...] | Growth
    overflow: str
    is_automatic: bool

    @property
    def largest(self) -> int | None:
        return self.sizes[-1] if isinstance(self.sizes, tuple) else self.sizes.high

    def fit(self, size: int) -> int:
        """The bucket that serves `size`.

        Raises BucketOverflowError above the largest bucket where the policy is not "grow".
        """
        if isinstance(self.sizes, Growth):
            bucket = self.sizes.fit(size)
        else:
            bucket = next((bucket for bucket in self.sizes if bucket >= size), None)
        if bucket is not None:
            return bucket
        if self.overflow == "grow":
            return Growth(self.largest, None).fit(size)
        sizes = list(self.sizes) if isinstance(self.sizes, tuple) else self.sizes
        raise BucketOverflowError(
            f"{self.axis} {size} is larger than the largest bucket {self.largest} of {sizes}. Shorten the input, "
            f"add a bucket (Buckets({self.axis}=[..., {Growth(self.largest, None).fit(size)}])), or let buckets grow "
            "(Buckets(..., overflow='grow'))."
        )


def axis_sizes(buckets: Buckets, axis: str, limit: int | None = None) -> AxisSizes:
    """The rule of `axis`; `limit` is the model's own maximum, the ceiling of an automatic axis. Models without one
    (XLNet) write it as None or -1.

    Raises ValueError for an axis that `buckets` does not have.
    """
    if axis not in buckets.axes:
        raise ValueError(f"no bucket axis {axis!r}: this configuration has {sorted(buckets.axes)}")
    asked = buckets.axes[axis]
    is_automatic = asked == "auto"
    if is_automatic:
        floor = FLOORS.get(axis, 1)
        limit = limit if limit and limit > 0 else None
        asked = Growth(min(floor, limit) if limit else floor, limit)
    overflow = buckets.overflow or ("error" if isinstance(asked, tuple) else "grow")
    if overflow == "split" and axis != "batch":
        overflow = "error"
    return AxisSizes(axis, asked, overflow, is_automatic)
