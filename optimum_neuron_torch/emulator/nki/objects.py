"""`NKIObject`: the base of what kernels pass around."""

from typing import Any


class NKIObject:
    """Base class of kernels' own dataclasses and configuration objects.

    A dataclass derived from it may leave out annotations: every public attribute of the class is a field.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith(__package__):
            return
        annotations = cls.__dict__.get("__annotations__")
        if annotations is None:
            annotations = cls.__annotations__ = {}
        for name, value in list(vars(cls).items()):
            is_field = not name.startswith("_") and not callable(value)
            if is_field and not isinstance(value, (property, staticmethod, classmethod)):
                annotations.setdefault(name, Any)
