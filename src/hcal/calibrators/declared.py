"""A method declares its parameters as fields; the constructor does nothing but store them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar, dataclass_transform, get_type_hints

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, eq_default=False)
def parameters(cls: type[T]) -> type[T]:
    """Write the constructor of a method from its annotated fields, all keyword-only (scikit-learn's rule).

    >>> @parameters
    ... class Method:
    ...     bins: int = 15
    >>> Method(bins=3).bins
    3
    """
    out = dataclass(kw_only=True, eq=False, repr=False)(cls)
    hints = get_type_hints(cls)  # each name is looked up where it was written, also of an inherited field
    out.__init__.__annotations__ = {field.name: hints[field.name] for field in fields(out)}  # type: ignore[arg-type]
    return out
