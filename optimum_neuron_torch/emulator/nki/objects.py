"""`NKIObject`: the base of what kernels pass around."""

import dataclasses
from typing import Any


class _NKIObjectType(type):
    """Makes objects of dataclasses though fields without a default are not given, as NKI does: they stay unset."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "__dataclass_fields__" not in cls.__dict__ or not _is_generated(cls.__init__):
            return super().__call__(*args, **kwargs)
        missing = _missing_fields(cls, len(args), kwargs)
        made = super().__call__(*args, **kwargs, **dict.fromkeys(missing))
        for name in missing:
            object.__delattr__(made, name)
        return made


def _is_generated(init: Any) -> bool:
    """Whether `dataclass` wrote it, rather than the author of the class."""
    return init.__code__.co_filename == "<string>"


def _missing_fields(cls: type, given: int, kwargs: dict[str, Any]) -> list[str]:
    fields = [field for field in dataclasses.fields(cls) if field.init]
    absent = dataclasses.MISSING
    return [
        field.name
        for field in fields[given:]
        if field.name not in kwargs and field.default is absent and field.default_factory is absent
    ]


class NKIObject(metaclass=_NKIObjectType):
    """Base class of kernels' own dataclasses and configuration objects.

    Keywords become attributes. A dataclass derived from it may leave out annotations: every public attribute of the
    class is a field. Fields that a call leaves out stay unset: reading one is an `AttributeError`.
    """

    def __init__(self, **kwargs: Any) -> None:
        for name, value in kwargs.items():
            setattr(self, name, value)

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
