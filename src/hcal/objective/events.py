"""Which events are constrained: the families of h-𝒜 calibration (def:h-a-calib, eq:top-label-event).

A *family* is one list of events that are sorted and windowed together. ``"atomic"`` pools all classes in
one family (the paper's choice); every other choice has one family a subset, and the losses are averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

Events = Literal["atomic", "top-label", "class-wise"] | int | Sequence[Iterable[int]]
Kind = Literal["atomic", "top-label", "subsets"]


@dataclass(frozen=True)
class Families:
    """Events of a problem with K classes, resolved.

    Attributes
    ----------
    kind : {"atomic", "top-label", "subsets"}
    subsets : tuple of tuples of class indices
        For ``"subsets"``: one family each.
    """

    kind: Kind
    subsets: tuple[tuple[int, ...], ...] = ()


def check_events(events: Any) -> Events:
    """Check the form of ``events`` before K is known.

    Parameters
    ----------
    events : {"atomic", "top-label", "class-wise"}, int, or list of subsets of classes

    Returns
    -------
    the same, subsets as tuples

    Examples
    --------
    >>> check_events([{1, 0}, [2]])
    ((0, 1), (2,))
    """
    if isinstance(events, str):
        if events not in ("atomic", "top-label", "class-wise"):
            raise ValueError(
                "events must be 'atomic', 'top-label', 'class-wise', a class index or a list of subsets, "
                f"got {events!r}"
            )
        return events  # type: ignore[return-value]
    if isinstance(events, Integral):
        return int(events)
    try:
        subsets = tuple(tuple(sorted({int(c) for c in subset})) for subset in events)
    except TypeError:
        raise ValueError(f"events must be a list of subsets of classes, got {events!r}") from None
    if not subsets or not all(subsets):
        raise ValueError("events: a list of subsets needs at least one subset, and no empty one")
    return subsets


def resolve(events: Events, n_classes: int) -> Families:
    """Return the families of ``events`` for K classes.

    Parameters
    ----------
    events : see :func:`check_events`
    n_classes : int

    Returns
    -------
    Families

    Examples
    --------
    >>> resolve("class-wise", 2).subsets
    ((0,), (1,))
    """
    if events == "atomic":
        return Families("atomic")
    if events == "top-label":
        return Families("top-label")
    if events == "class-wise":
        return Families("subsets", tuple((c,) for c in range(n_classes)))
    subsets = ((events,),) if isinstance(events, int) else tuple(tuple(s) for s in events)
    for subset in subsets:
        for c in subset:
            if not 0 <= c < n_classes:
                raise ValueError(f"events name class {c}, but there are {n_classes} classes")
    return Families("subsets", subsets)
